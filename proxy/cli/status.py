"""`slotgate status`: the fleet at a glance."""

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.ps import gpu_text
from proxy.cli.tables import columns, span

if TYPE_CHECKING:
    from proxy.admin_api import BackendStatus, StatusAnswer
    from proxy.residency_api import ResidentModel


_HEADER = ("BACKEND", "ENGINE", "HEALTH", "GPU", "RUNNING", "SLOTS", "SOURCE", "EPOCH", "RESTARTS")
LIMITED = "RUNNING counts up to the running limit; slots beyond it keep prefixes and run nothing (option running_limit)"


def status(
    json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each engine was started with, and what it took.")
    ] = False,
    socket: Socket = None,
) -> None:
    """Show the proxy, its store and every backend.

    Exit status 1 if a backend or the store is down, or a backend has not answered yet and something is wrong.
    """
    with asking(socket) as proxy:
        answer = proxy.status()
    if json:
        print_json(answer)
    else:
        print(status_text(answer) + (engines_text(answer) if verbose else ""), end="")
    if not answer.store.up or any(map(_is_out, answer.backends)):
        raise typer.Exit(1)


def _is_out(backend: "BackendStatus") -> bool:
    """It serves nothing, and not only because it is just being started."""
    return backend.health == "down" or _never_answered(backend)


def _never_answered(backend: "BackendStatus") -> bool:
    """It was never reached, or its last life failed and this one has not answered yet."""
    return backend.health == "starting" and (backend.state == "not-answering" or bool(backend.last_error))


def status_text(answer: "StatusAnswer") -> str:
    """The proxy in two lines, the backends as a table, then what is wrong."""
    kind = "embedded, " if answer.store.embedded else ""
    state = "up" if answer.store.up else "DOWN"
    head = (
        f"slotgate {answer.version}, up {span(answer.uptime_s)}, pid {answer.pid}, listening on {answer.listen}, "
        f"policy {answer.policy_version}\n"
        f"store {state} ({kind}{answer.store.url_shown}); {answer.running} running, {answer.waiting} waiting\n"
    )
    if answer.store.trouble:
        head += f"store: {answer.store.trouble}; each proxy goes on with its share of each backend\n"
    if answer.store.proxies > 1 and not answer.workers:
        head += f"fleet {answer.store.fleet}: {answer.store.proxies} proxies\n"
    if answer.workers:
        head += f"{_workers_text(answer)}\n"
    head += "\n"
    header = (*_HEADER, "LOADED", "MODELS")
    table = columns(header, [_row(backend) for backend in answer.backends], gap=3)
    limited = any(0 < backend.running_limit < backend.slots for backend in answer.backends)
    notes = [("slotgate", warning) for warning in answer.warnings]
    for backend in answer.backends:
        if backend.last_error and backend.health != "ready":
            advice = f"; it stays down until `slotgate restart {backend.name}`" if backend.state == "failed" else ""
            notes.append((backend.name, backend.last_error + advice))
        if backend.slot_source == "leases" and backend.slot_source_why:
            notes.append((backend.name, f"only slotgate's own leases tell what is busy: {backend.slot_source_why}"))
        if backend.context_exceeded:
            notes.append((backend.name, f"{backend.context_exceeded} requests may not have fit their context"))
        notes.extend((backend.name, warning) for warning in backend.warnings)
    tail = columns(("",), [(f"{name}: {' '.join(note.split())}",) for name, note in notes])
    return head + table + (f"\n{LIMITED}\n" if limited else "") + (tail if notes else "")


def _workers_text(answer: "StatusAnswer") -> str:
    states = Counter(worker.state for worker in answer.workers)
    cold = sum(worker.state == "serving" and not worker.warm for worker in answer.workers)
    told = [f"{count} {state}" for state, count in states.items()] + ([f"{cold} of them not warm"] if cold else [])
    return f"workers: {', '.join(told)}"


def engines_text(answer: "StatusAnswer") -> str:
    """For each backend: where its engine is in its life, what it was started with, and what it says it took."""
    rows = []
    for backend in answer.backends:
        looked = "" if backend.looked_s_ago is None else f", looked at {span(backend.looked_s_ago)} ago"
        facts = {
            "state": backend.state + looked,
            "address": backend.endpoint,
            "version": backend.version,
            "source": f"{backend.slot_source}: {backend.slot_source_why}" if backend.slot_source_why else "",
            "wanted": shlex.join(backend.wanted),
            "taken": "  ".join(f"{name} = {_plain(value)}" for name, value in backend.taken.items()),
            "log": backend.log_path or "",
        }
        rows += [("", ""), (backend.name, ""), *((f"  {name}", fact) for name, fact in facts.items() if fact)]
    return columns(("", ""), rows[1:], gap=3) if rows else ""


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)


def _health(backend: "BackendStatus") -> str:
    if backend.draining and backend.health == "ready":
        return "draining"
    return "not-answering" if backend.health == "starting" and backend.state == "not-answering" else backend.health


def _resident(model: "ResidentModel") -> str:
    """`llama3 8192 pinned`, `qwen loading`."""
    context = "" if model.context_tokens is None else f" {model.context_tokens}"
    state = "" if model.state == "loaded" else f" {model.state}"
    return f"{model.name}{context}{state}{' pinned' if model.pinned else ''}"


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
        _health(backend),
        gpu_text(backend.gpu),
        taken,
        str(backend.slots),
        backend.slot_source,
        str(backend.epoch),
        str(backend.restarts),
        ", ".join(map(_resident, backend.resident)) or "-",
        ", ".join(name.removesuffix(":latest") for name in backend.models) or "-",
    )
