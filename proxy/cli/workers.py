"""`slotgate workers`: the processes that serve clients, and their replacement without losing a request."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, Socket, asking, fail, print_json, tell
from proxy.cli.tables import columns, span

if TYPE_CHECKING:
    from proxy.admin_api import WorkersAnswer, WorkerStatus
    from proxy.admin_client import AdminClient

POLL_S = 0.2

app = typer.Typer(help="Show and restart the processes that serve clients.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def workers(context: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """Show the processes that serve clients."""
    if context.invoked_subcommand is not None:
        if json or socket is not None:
            fail("write options behind the command: slotgate workers restart --json", status=2)
        return
    with asking(socket) as proxy:
        answer = proxy.workers()
    if json:
        print_json(answer)
    else:
        print(workers_text(answer), end="")


@app.command()
def restart(
    wait: Annotated[bool, typer.Option("--wait", help="Return once the old ones have finished and ended.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Replace the workers one after the other; no request is cut or refused.

    Each replacement is ready before the one before it accepts nothing more. That one finishes what it has, within
    limits.retire_s, and ends; --wait waits for that. Breaking this command off does not break the restart off.
    """
    with asking(socket) as proxy:
        answer = _followed(proxy, proxy.restart_workers(), wait)
    if json:
        print_json(answer)
    if answer.problem:
        fail(f"{answer.problem}\n{answer.replaced} of {len(_places(answer))} were replaced; the others serve as before")
    if not json:
        left = [worker for worker in answer.workers if worker.state == "retiring"]
        print(f"{answer.replaced} workers replaced" + (f"; {_finishing(left)}" if left else ""))


def workers_text(answer: "WorkersAnswer") -> str:
    """A table of them."""
    if not answer.workers:
        return "one process does everything (workers = 1)\n"
    rows = [
        (
            str(worker.number),
            str(worker.pid or "-"),
            worker.state + ("" if worker.warm or worker.state in {"starting", "down"} else " (cold)"),
            span(worker.uptime_s),
            str(worker.running),
            str(worker.waiting),
            str(worker.connections),
            str(worker.served),
            str(worker.restarts),
        )
        for worker in answer.workers
    ]
    header = ("WORKER", "PID", "STATE", "UP", "RUNNING", "WAITING", "CLIENTS", "SERVED", "RESTARTS")
    note = f"\nthey are being restarted: {answer.replaced} replaced so far\n" if answer.restarting else ""
    if answer.problem:
        note += f"\nthe last restart ended early: {answer.problem}\n"
    return columns(header, rows) + note


def _followed(proxy: "AdminClient", answer: "WorkersAnswer", wait: bool) -> "WorkersAnswer":
    """The answer when it is done; what happens in between is told."""
    told = ""
    while True:
        now = _progress(answer)
        if now != told:
            tell(now)
            told = now
        retiring = any(worker.state == "retiring" for worker in answer.workers)
        if not answer.restarting and not (wait and retiring and not answer.problem):
            return answer
        time.sleep(POLL_S)
        answer = proxy.workers()


def _progress(answer: "WorkersAnswer") -> str:
    left = [worker for worker in answer.workers if worker.state == "retiring"]
    text = f"{answer.replaced} of {len(_places(answer))} replaced"
    if starting := [worker for worker in answer.workers if worker.state == "starting"]:
        text += f"; worker {starting[0].number} starts as pid {starting[0].pid}"
    return text + (f"; {_finishing(left)}" if left else "")


def _finishing(left: list["WorkerStatus"]) -> str:
    requests = sum(worker.requests for worker in left)
    return f"{len(left)} old still finishing, requests: {requests}"


def _places(answer: "WorkersAnswer") -> set[int]:
    return {worker.number for worker in answer.workers}
