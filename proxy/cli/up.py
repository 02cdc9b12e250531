"""`slotgate up`: a whole emulated box to try things on. What is started is `proxy.up`'s business."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, fail, print_json, tell
from proxy.cli.tables import columns

if TYPE_CHECKING:
    from proxy.up import Up


def up(
    emulate: Annotated[
        str, typer.Option(metavar="COUNTxCARD", help="Such as 4x4090; several by comma. Cards: 4090, h200, cpu.")
    ],
    slots: Annotated[int, typer.Option(min=1, max=1024, help="Of each engine.")] = 16,
    model: Annotated[str, typer.Option(metavar="NAME", help="What clients call the model.")] = "emulated",
    speed: Annotated[float, typer.Option(min=0.001, help="How many times faster than the cards are.")] = 1.0,
    api: Annotated[str, typer.Option(metavar="API", help="What the engines speak: llama-server or ollama.")] = (
        "llama-server"
    ),
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Of the proxy: HOST:PORT or unix:/PATH.")] = (
        "127.0.0.1:11434"
    ),
    context: Annotated[int, typer.Option(min=256, help="Tokens of one slot.")] = 8192,
    as_json: Json = False,
) -> None:
    """Run a whole box of emulated GPUs to try things on.

    Engines without a model, a store, the proxy. Answers are pseudo text, at the pace of the cards.
    Ctrl-C stops everything.
    """
    from proxy.trial import TrialError
    from proxy.up import Box, cards_of, run

    if api not in {"llama-server", "ollama"}:
        fail(f"--api={api}: llama-server or ollama", status=2)
    try:
        cards = cards_of(emulate)
    except TrialError as error:
        fail(str(error), status=2)
    box = Box(
        cards=cards, slots=slots, model=model, speed=speed, api=api, listen=listen, context_tokens=context
    )  # fmt: skip
    try:
        run(box, tell=tell, show=_json if as_json else _show)
    except TrialError as error:
        fail(str(error))
    except KeyboardInterrupt:
        tell("stopped")


def _json(running: "Up") -> None:
    print_json(running)
    sys.stdout.flush()


def _show(running: "Up") -> None:
    rows = [[engine.name, engine.gpu_name, engine.url, str(engine.pid)] for engine in running.engines]
    print(columns(["ENGINE", "CARD", "ADDRESS", "PROCESS"], rows))
    limited = (
        f", {running.running_limit} of which run requests at once" if running.running_limit < running.slots else ""
    )
    print(f"{running.api} with {running.slots} slots each{limited}; speed {running.speed:g}")
    print(f"clients: {running.url}\n")
    for line in _lines(running):
        print(f"  {line}")
    print(f"\nlogs: {running.log} and beside it\nCtrl-C stops everything", flush=True)


def _lines(running: "Up") -> list[str]:
    """What to try, ready to be copied."""
    curl, url = "curl -s", running.url
    if url.startswith("unix:"):
        curl, url = f"curl -s --unix-socket {shlex.quote(url.removeprefix('unix:'))}", "http://localhost"
    chat = f'{{"model":"{running.model}","messages":[{{"role":"user","content":"Hello!"}}]}}'
    socket = shlex.quote(running.admin_socket)
    return [
        f"{curl} {url}/v1/chat/completions -d {shlex.quote(chat)}",
        f"{curl} -N {url}/api/chat -d {shlex.quote(chat)}",
        f"slotgate status --socket={socket}",
        f"slotgate ps --requests --socket={socket}",
        f'curl -s {running.engines[0].url}/emulated/faults -d \'{{"kind":"slow","factor":5}}\'',
        f"kill -9 {running.engines[-1].pid}",
    ]
