"""`slotgate load`, `unload`, `pin` and `unpin`: which models are in memory, and which stay there."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, Socket, asking, fail, print_json, tell
from proxy.cli.tables import printable, span

if TYPE_CHECKING:
    from proxy.admin_client import AdminClient
    from proxy.residency_api import LoadAnswer, PinAnswer, PinnedPlace

POLL_S = 0.2
WHEEL = "|/-\\"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model, as `slotgate list` shows it.")]
Backend = Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Only there. Default: see above.")]
Context = Annotated[
    int | None,
    typer.Option("--num-ctx", metavar="N", min=1, help="Context in tokens. Default: configured, else the engine's."),
]


def load(
    model: Model,
    backend: Backend = None,
    num_ctx: Context = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Give up waiting after this time (status 1); the load goes on.")
    ] = 900.0,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Load a model into an Ollama, and wait until it is there.

    Without --backend where it suits best. What has to leave for it is chosen as for a client's request: nothing that is
    pinned, nothing that runs.
    """
    from proxy.residency_api import ModelWish

    with asking(socket) as proxy:
        answer = _loaded(proxy, proxy.load(ModelWish(model, backend, num_ctx)), timeout, quiet=json)
    if json:
        print_json(answer)
    if answer.state == "failed":
        where = f" on {answer.backend}" if answer.backend else ""
        fail(printable(f"{answer.model} could not be loaded{where}: {answer.detail or 'no reason is known'}"))
    if answer.state != "loaded":
        detail = f": {answer.detail}" if answer.detail else ""
        fail(printable(f"{answer.model} is not loaded after {timeout:g} s{detail}; slotgate goes on trying"))
    if not json:
        print(_loaded_text(answer))


def unload(model: Model, backend: Backend = None, json: Json = False, socket: Socket = None) -> None:
    """Have a model unloaded, as soon as nothing runs on it.

    Without --backend everywhere. A pinned model stays until it is unpinned.
    """
    from proxy.residency_api import ModelWish

    with asking(socket) as proxy:
        answer = proxy.unload(ModelWish(model, backend))
    if json:
        print_json(answer)
    elif answer.backends:
        print(f"{answer.model} is unloaded from {', '.join(answer.backends)} as soon as nothing runs on it")
    else:
        print(f"{answer.model} is loaded nowhere" if backend is None else f"{answer.model} is not loaded on {backend}")


def pin(
    model: Model,
    backend: Backend = None,
    num_ctx: Context = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Keep a model loaded, in all proxies of the fleet.

    Without --backend on one backend at least, whichever suits. It is loaded now if it is not, and after restarts.
    """
    from proxy.residency_api import ModelWish

    with asking(socket) as proxy:
        answer = proxy.pin(ModelWish(model, backend, num_ctx))
    if json:
        print_json(answer)
        return
    print(f"{answer.model} is pinned{_places(answer.pins)}")
    if answer.loaded_on:
        tell(f"it is loaded on {', '.join(answer.loaded_on)}")
    else:
        tell("it is loaded now; `slotgate ps` tells when it is there")


def unpin(model: Model, backend: Backend = None, json: Json = False, socket: Socket = None) -> None:
    """Keep a model loaded no more.

    It stays until its time is over or another needs the room. Without --backend wherever it was pinned.
    """
    from proxy.residency_api import ModelWish

    with asking(socket) as proxy:
        answer = proxy.unpin(ModelWish(model, backend))
    if json:
        print_json(answer)
        return
    where = [each.backend for each in answer.removed if each.backend is not None] if answer.pins else []
    print(printable(f"{answer.model} is not pinned any more{' on ' if where else ''}{' and '.join(where)}"))
    if answer.pins:
        tell(f"it is still pinned{_places(answer.pins)}{_by(answer)}")


def _loaded(proxy: "AdminClient", answer: "LoadAnswer", timeout_s: float, *, quiet: bool) -> "LoadAnswer":
    """Ask until the load is over; on a terminal a line tells how it stands."""
    shown, live, turns = "", sys.stderr.isatty() and not quiet, 0
    deadline_s = time.monotonic() + timeout_s
    while answer.state in ("loading", "waiting") and time.monotonic() < deadline_s:
        where = f" on {answer.backend}" if answer.backend else ""
        detail = f" ({answer.detail})" if answer.detail else ""
        line = printable(f"{answer.state} {answer.model}{where}{detail}")
        if live:
            print(f"\r\033[K{WHEEL[turns % 4]} {line}, {span(answer.waited_s)}", end="", file=sys.stderr, flush=True)
        elif line != shown and not quiet:
            tell(line)
        shown, turns = line, turns + 1
        time.sleep(POLL_S)
        answer = proxy.load_state(answer.id)
    if live and turns:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return answer


def _loaded_text(answer: "LoadAnswer") -> str:
    context = "" if answer.context_tokens is None else f" with a context of {answer.context_tokens}"
    took = f" in {span(answer.took_ms / 1000)}" if answer.took_ms is not None else ""
    return printable(f"{answer.model} is loaded on {answer.backend}{context}{took}")


def _places(pins: "list[PinnedPlace]") -> str:
    told = []
    for each in pins:
        context = "" if each.context_tokens is None else f" with a context of {each.context_tokens}"
        told.append(f" on {each.backend or 'one backend at least'}{context}")
    return printable(" and".join(told))


def _by(answer: "PinAnswer") -> str:
    return " (residency.models of the configuration)" if any(pin.configured for pin in answer.pins) else ""
