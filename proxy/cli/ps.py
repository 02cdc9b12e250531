"""`slotgate ps`: what is loaded where, and what waits and runs."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, Socket, asking, print_json
from proxy.cli.tables import columns, processor, size, span, until

if TYPE_CHECKING:
    from proxy.admin_api import GpuStatus, LoadedModel, PsAnswer


def ps(
    json: Json = False,
    requests: Annotated[bool, typer.Option("--requests", "-r", help="List waiting and running requests too.")] = False,
    socket: Socket = None,
) -> None:
    """List loaded models, where they are and their slots."""
    with asking(socket) as proxy:
        answer = proxy.ps()
    if json:
        print_json(answer)
        return
    print(models_table(answer, time.time()), end="")
    if requests:
        print(f"\n{requests_table(answer)}", end="")


def models_table(answer: "PsAnswer", now_unix_s: float) -> str:
    """One line per model and backend."""
    rows = [
        (
            model.name,
            (model.digest or "-").removeprefix("sha256:")[:12],
            size(model.size_bytes),
            "-"
            if model.state == "loading"
            else processor(model.size_bytes, model.gpu_bytes, on_gpu=model.gpu is not None),
            "-" if model.context_tokens is None else str(model.context_tokens),
            _until(model, now_unix_s),
            model.backend,
            gpu_text(model.gpu),
            "-" if model.state == "loading" else f"{model.slots_busy}/{model.slots}",
        )
        for model in answer.models
    ]
    return columns(("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "BACKEND", "GPU", "SLOTS"), rows)


def _until(model: "LoadedModel", now_unix_s: float) -> str:
    """When it is unloaded, or what happens to it now."""
    if model.state == "loading":
        return "Loading..."
    text = "Stopping..." if model.state == "leaving" else until(model.expires_at_unix_s, now_unix_s)
    return f"{text} (pinned)" if model.pinned else text


def requests_table(answer: "PsAnswer") -> str:
    """One line per request: the running ones first, then those that wait, in the order of their turns."""
    ordered = sorted(answer.requests, key=lambda each: (each.state != "running", each.position or 0, -each.age_s))
    rows = [
        (
            request.id,
            request.state,
            request.model or "-",
            f"{request.dialect} {request.operation}",
            request.backend or "-",
            span(request.age_s),
            "-" if request.position is None else str(request.position),
            "-" if request.expected_wait_s is None else f"~{span(request.expected_wait_s)}",
            request.priority,
            request.tenant or "-",
        )
        for request in ordered
    ]
    return columns(("REQUEST", "STATE", "MODEL", "CALL", "BACKEND", "AGE", "PLACE", "WAIT", "PRIORITY", "TENANT"), rows)


def gpu_text(gpu: "GpuStatus | None") -> str:
    """`0 RTX 4090`; the vendor's prefix tells nothing new."""
    return "-" if gpu is None else f"{gpu.index} {gpu.name.removeprefix('NVIDIA ').removeprefix('GeForce ')}"
