"""`slotgate status`: the fleet at a glance."""

from typing import TYPE_CHECKING

import typer

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.ps import gpu_text
from proxy.cli.tables import columns, span

if TYPE_CHECKING:
    from proxy.admin_api import BackendStatus, StatusAnswer


def status(json: Json = False, socket: Socket = None) -> None:
    """Show the proxy, its store and every backend.

    Exit status 1 if a backend or the store is down.
    """
    with asking(socket) as proxy:
        answer = proxy.status()
    if json:
        print_json(answer)
    else:
        print(status_text(answer), end="")
    if not answer.store.up or any(backend.health == "down" for backend in answer.backends):
        raise typer.Exit(1)


def status_text(answer: "StatusAnswer") -> str:
    """The proxy in two lines, the backends as a table, then what is wrong."""
    kind = "embedded, " if answer.store.embedded else ""
    state = "up" if answer.store.up else "DOWN"
    head = (
        f"slotgate {answer.version}, up {span(answer.uptime_s)}, pid {answer.pid}, listening on {answer.listen}, "
        f"policy {answer.policy_version}\n"
        f"store {state} ({kind}{answer.store.url_shown}); {answer.running} running, {answer.waiting} waiting\n\n"
    )
    header = ("BACKEND", "ENGINE", "HEALTH", "GPU", "RUNNING", "SLOTS", "SOURCE", "EPOCH", "RESTARTS", "MODELS")
    table = columns(header, [_row(backend) for backend in answer.backends], gap=3)
    notes = [("slotgate", warning) for warning in answer.warnings]
    for backend in answer.backends:
        if backend.last_error and backend.health != "ready":
            notes.append((backend.name, backend.last_error))
        notes.extend((backend.name, warning) for warning in backend.warnings)
    tail = "".join(f"{name}: {' '.join(note.split())}\n" for name, note in notes)
    return head + table + (f"\n{tail}" if tail else "")


def _row(backend: "BackendStatus") -> tuple[str, ...]:
    taken = f"{backend.running}/{backend.running_limit}"
    if backend.elsewhere:
        taken += f" +{backend.elsewhere} elsewhere"
    if backend.foreign_busy:
        taken += f" +{backend.foreign_busy} foreign"
    if backend.deferred:
        taken += f" +{backend.deferred} deferred"
    return (
        backend.name,
        backend.engine if backend.managed else f"{backend.engine} (external)",
        "draining" if backend.draining and backend.health == "ready" else backend.health,
        gpu_text(backend.gpu),
        taken,
        str(backend.slots),
        backend.slot_source,
        str(backend.epoch),
        str(backend.restarts),
        ", ".join(name.removesuffix(":latest") for name in backend.models) or "-",
    )
