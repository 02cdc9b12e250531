"""`slotgate drain` and `undrain`: take a backend out of service and back, without losing a request."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import BackendName, Json, Socket, asking, fail, print_json, tell

if TYPE_CHECKING:
    from proxy.admin_api import DrainAnswer
    from proxy.admin_client import AdminClient

POLL_S = 0.5


def drain(
    name: BackendName,
    wait: Annotated[bool, typer.Option("--wait", help="Return once nothing runs there any more.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="With --wait: give up after this time (status 1).")
    ] = None,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Let a backend finish what runs and take nothing new."""
    with asking(socket) as proxy:
        answer = proxy.drain(name)
        if wait:
            answer = _drained(proxy, answer, timeout)
    _show(answer, json)


def undrain(name: BackendName, json: Json = False, socket: Socket = None) -> None:
    """Let a drained backend take requests again."""
    with asking(socket) as proxy:
        answer = proxy.undrain(name)
    _show(answer, json)


def _show(answer: "DrainAnswer", json: bool) -> None:
    if json:
        print_json(answer)
    elif not answer.draining:
        print(f"{answer.name} takes requests")
    elif answer.running:
        print(f"{answer.name} is draining: {answer.running} still running")
    else:
        print(f"{answer.name} is drained")


def _drained(proxy: "AdminClient", answer: "DrainAnswer", timeout_s: float | None) -> "DrainAnswer":
    """Ask until nothing runs at the backend. Draining again changes nothing, and tells how many still run."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = None
    while answer.running:
        if answer.running != told:
            told = answer.running
            tell(f"{answer.name}: {told} still running")
        if deadline is not None and time.monotonic() >= deadline:
            fail(f"{answer.name} still runs {answer.running} after {timeout_s:g} s; it goes on draining")
        time.sleep(POLL_S)
        answer = proxy.drain(answer.name)
    return answer
