"""`slotgate demo`: hands over to `proxy.demo`."""

import importlib.util
from typing import Annotated

import typer

from proxy.cli.asking import fail


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the table instead of serving on.")] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the proxy.")] = "127.0.0.1:11434",
    backends: Annotated[int, typer.Option(min=1, help="Engines to start on the CPU.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Chats to send at once.")] = 12,
) -> None:
    """Try it: real engines on the CPU, the proxy, some chats.

    Shows where each chat went and how long it took, then keeps serving.
    """
    if importlib.util.find_spec("proxy.demo") is None:
        fail("this installation has no demo; `make demo` in a clone of the repository sets it up")
    from proxy.demo import run

    raise typer.Exit(run(once=once, listen=listen, backends=backends, requests=requests))
