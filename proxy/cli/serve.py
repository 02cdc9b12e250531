"""`slotgate serve`: runs the proxy."""

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from proxy.cli.asking import fail


def serve(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read this file instead of /etc/slotgate and the user's own.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="HOST:PORT or unix:/PATH. Default: 127.0.0.1:11434.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="An engine that runs already; repeat it for more.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="redis://, rediss://, unix:// or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB. "
            "Default: an embedded Valkey.",
        ),
    ] = None,
    state_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Sockets, logs, the embedded store.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. Default: info.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="json, console, or auto: console on a terminal.")
    ] = None,
    worker: Annotated[int | None, typer.Option(hidden=True)] = None,
    channel: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the proxy and the engines of its configuration.

    No file is needed: slotgate serve --backend=http://127.0.0.1:11435 --backend=http://127.0.0.1:11436
    """
    if worker is not None or channel is not None:  # how slotgate starts its own workers
        _serve_as_worker(worker, channel)
    from proxy.config_sources import ConfigError, load_config

    flags: dict[str, Any] = {
        "listen": listen,
        "backends": [{"url": url} for url in backend] if backend else None,
        "store.url": store,
        "state_dir": state_dir,
        "log.level": log_level,
        "log.format": log_format,
    }
    try:
        loaded = load_config(flags, config_file=config)
    except ConfigError as error:
        fail(f"the configuration cannot be used\n{error}", status=2)
    from proxy.process import run

    raise typer.Exit(run(loaded, lambda: load_config(flags, config_file=config)))


def _serve_as_worker(number: int | None, channel: int | None) -> NoReturn:
    """The main process names both; the number is only there for who looks at the list of processes."""
    if number is None or channel is None:
        fail("--worker is for slotgate's own use: set the option `workers` instead", status=2)
    from proxy.process import run_worker

    raise typer.Exit(run_worker(channel))
