"""A slotgate to try things on: a process of its own in a directory of its own, gone with whoever started it.

Shared by `slotgate demo` and `slotgate up`. Must not know which engines there are.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from proxy.admin_client import AdminClient, AdminError
from proxy.listen_address import parse_listen

NEEDED_BYTES = 256 * 1024 * 1024
"""Free space for logs, sockets and the embedded store, with room to spare."""
PREFIX = "slotgate-"
"""Of the directories in the temporary one."""
ADMIN_SOCKET = "admin.sock"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class TrialError(Exception):
    """It cannot go on; the message says why and what to do."""


def stop_on_signals() -> None:
    """Make SIGTERM and a closed terminal what Ctrl-C is: a KeyboardInterrupt, so that everything is cleared away."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@contextlib.contextmanager
def state_dir(name: str) -> Iterator[Path]:
    """A directory that is removed at the end.

    Raises:
        TrialError: it cannot be made, or there is too little space.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
    except OSError as error:
        raise TrialError(
            f"cannot make a directory in {tempfile.gettempdir()}: {error.strerror}. Free some space"
        ) from error
    try:
        free = shutil.disk_usage(path).free
        if free < NEEDED_BYTES:
            raise TrialError(
                f"{path.parent} has {free >> 20} MiB free; {NEEDED_BYTES >> 20} MiB are wanted. "
                "Free some space, or set TMPDIR"
            )
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def running_sockets() -> list[Path]:
    """Admin sockets in this user's directories of `state_dir` at which somebody listens."""
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{ADMIN_SOCKET}")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            if path.parent.stat().st_uid == os.getuid():
                probe.connect(str(path))
                found.append(path)
    return found


def check_listen(listen: str, advice: str) -> None:
    """Find out before anything is started whether the proxy could listen.

    Raises:
        TrialError: it could not; `advice` says how to take another address.
    """
    try:
        address = parse_listen(listen)
    except ValueError as error:
        raise TrialError(f"--listen={listen}: write HOST:PORT, such as 127.0.0.1:11435") from error
    if address.unix_path is not None:
        return
    with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise TrialError(
                f"cannot listen on {listen}: {error.strerror}. Is an Ollama running there? Take another port: {advice}"
            ) from error


def quoted(value: object) -> str:
    """A value as a TOML string: a JSON string is one."""
    return msgspec.json.encode(str(value)).decode()


@contextlib.contextmanager
def serve(directory: Path, listen: str, rest: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `slotgate serve`; its log is `slotgate.log`, its admin socket `admin.sock` in the directory.

    Args:
        directory: for everything.
        listen: address of the proxy.
        rest: of the configuration, as TOML: tables only.
    """

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    config = directory / "config.toml"
    config.write_text(
        f"listen = {quoted(listen)}\nstate_dir = {quoted(directory)}\n"
        f"admin_socket = {quoted(directory / ADMIN_SOCKET)}\n{rest}"
    )
    with (directory / "slotgate.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "serve", f"--config={config}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the command's; it stops the proxy in order
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the command has one thread
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL if that is not enough."""
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_ready(
    process: "subprocess.Popen[bytes]", directory: Path, backends: int, tell: Callable[[str], None]
) -> str:
    """Wait until so many backends are ready; returns the address that the proxy listens on.

    Args:
        process: see `serve`.
        directory: see `serve`.
        backends: how many there are.
        tell: is told, once each, what has come up and what has not.

    Raises:
        TrialError: the proxy ended, or it takes too long; the end of its log is in the message.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    told: set[str] = set()

    def once(what: str) -> None:
        if what not in told:
            told.add(what)
            tell(what)

    with AdminClient(directory / ADMIN_SOCKET) as admin:
        while True:
            if (status := process.poll()) is not None:
                raise TrialError(f"slotgate ended with status {status} while starting:\n{tail(directory)}")
            with contextlib.suppress(AdminError):
                answer = admin.status()
                if answer.store.up:
                    once("store is up")
                for backend in answer.backends:
                    problem = f": {backend.last_error}" if backend.last_error else ""
                    once(f"backend {backend.name} is {backend.health}{problem}")
                if len(answer.backends) == backends and all(backend.health == "ready" for backend in answer.backends):
                    return answer.listen
            if time.monotonic() > deadline:
                raise TrialError(f"not ready after {READY_TIMEOUT_S:.0f} s:\n{tail(directory)}")
            time.sleep(0.1)


def tail(directory: Path, lines: int = 15) -> str:
    """The end of the proxy's log."""
    return "\n".join((directory / "slotgate.log").read_text(errors="replace").splitlines()[-lines:])
