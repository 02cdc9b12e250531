"""What commands share that ask the running proxy: finding its socket, and telling errors. Owns no command."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from proxy.admin_client import AdminClient

SERVICE_SOCKET = Path("/run/slotgate/admin.sock")
"""Where the systemd unit has it (RuntimeDirectory=slotgate)."""

Socket = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="Admin socket of the proxy. Default: as configured, else found."),
]
BackendName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the backend, as `slotgate status` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; its fields are stable.")]


def find_socket(named: Path | None) -> Path:
    """The admin socket to ask: the named one, else the configured one, else the service's if only that exists."""
    if named is not None:
        return named
    from proxy.config import Config, resolve
    from proxy.config_sources import ConfigError, load_config

    try:
        config = load_config({}, need_backends=False).config
    except ConfigError as error:
        # A file that is being edited must not keep the operator from looking at what runs.
        tell(f"note: the configuration has {len(error.problems)} problem(s), see `slotgate config check`")
        config = Config()
    configured = resolve(config, os.environ).admin_socket
    if config.admin_socket is None and not configured.exists() and may_exist(SERVICE_SOCKET):
        return SERVICE_SOCKET
    return configured


def may_exist(path: Path) -> bool:
    """Whether there may be something at a path: also where this user is not allowed to look."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def asking(socket: Path | None) -> Iterator["AdminClient"]:
    """A conversation with the running proxy; its errors end the command with a message and status 1."""
    from proxy.admin_client import AdminClient, AdminError, NotRunning

    try:
        with AdminClient(find_socket(socket)) as client:
            yield client
    except NotRunning as error:
        fail("\n".join([str(error), *_trials()]))
    except AdminError as error:
        fail(str(error))


def _trials() -> list[str]:
    """What to add for each `slotgate up` or `slotgate demo` that this user runs, which nothing else would find."""
    from proxy.trial import running_sockets

    options = [f"--socket={shlex.quote(str(path))}" for path in running_sockets()]
    return ["running here as a trial; to ask it, add:", *(f"  {option}" for option in options)] if options else []


def print_json(answer: Any) -> None:
    """An answer as indented JSON on stdout."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def tell(text: str) -> None:
    """Talk: goes to stderr, so that stdout stays data."""
    print(text, file=sys.stderr)


def fail(text: str, status: int = 1) -> NoReturn:
    """End the command with one message."""
    tell(f"error: {text}")
    raise typer.Exit(status)
