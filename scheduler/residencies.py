"""Where a model is loaded, and who can use it there. Pure questions to a snapshot.

Engines that load at request time hold *residencies*: models with the options that they were loaded with. A request goes
only where its model is resident; loading is planned apart from it. For other engines nothing of that matters: they have
loaded their model before they are ready.
"""

from collections.abc import Iterable

from scheduler.domain import Backend, BackendView, Engine, Operation, Request, Residency, Snapshot
from scheduler.names import short
from scheduler.runner import Runner, context_of, fits, shares, suits, told


def loads(backend: Backend) -> bool:
    """Whether its engine loads models by itself."""
    return backend.engine is Engine.OLLAMA


def unloadable(snapshot: Snapshot, model: str) -> tuple[str, ...]:
    """Ids of the backends whose engine has the model loaded and can unload it: Ollamas."""
    return tuple(
        view.backend.id
        for view in snapshot.backends
        if loads(view.backend) and any(residency.model == model for residency in view.residencies)
    )


def needs_residency(request: Request, backend: Backend) -> bool:
    """Whether a request goes to this backend only if its model is resident there."""
    if request.model is None or request.cloud or request.operation is Operation.UNLOAD:
        return False
    return loads(backend)


def resident(view: BackendView, request: Request) -> Residency | None:
    """The loaded model that a request would run on; None: there is none, or it takes nothing new."""
    for residency in view.residencies:
        if residency.model not in view.closing and fits(request, residency, view.backend):
            return residency
    return None


def holding(view: BackendView, model: str, runner: Runner | None) -> Residency | None:
    """The loaded model that requests for it with these options would run on, closing or not; None: there is none."""
    for residency in view.residencies:
        if suits(model, runner, residency, view.backend):
            return residency
    return None


def runs_on(view: BackendView, request: Request) -> bool:
    """Whether a request that was meant for a backend still finds its model there; one that closes finishes it."""
    if request.model is None or not needs_residency(request, view.backend):
        return True
    return holding(view, request.model, request.runner) is not None


def told_runner(view: BackendView, request: Request) -> Runner | None:
    """What to say of load options to the engine that a request goes to; None: nothing."""
    if request.model is None or request.runner is None or not needs_residency(request, view.backend):
        return None
    residency = holding(view, request.model, request.runner)
    return told(residency, view.backend) if residency is not None else None


def seats_on(view: BackendView, residency: Residency) -> int:
    """Seats of the whole fleet on a loaded model, under whatever name."""
    return sum(seats for model, seats in view.seats_by_model.items() if shares(model, residency, view.backend))


def seats_in_use(view: BackendView, residency: Residency, ended_s: float, looked_s: float) -> int:
    """Seats on a loaded model as far as anybody knows: leases of any proxy, and what the engine shows beyond them.

    Args:
        view: the backend.
        residency: what is loaded.
        ended_s: when the last lease on it ended.
        looked_s: when the last look at the backend began.

    Seats of other proxies of which nobody knows the model may be on any.
    """
    known = seats_on(view, residency)
    unknown = max(0, view.seats_held - sum(view.seats_by_model.values()))
    if not known and looked_s > ended_s:
        known = sum(slot.busy for slot in residency.slots)  # by somebody who goes around us
    return known + unknown


def room_for(view: BackendView, request: Request) -> int:
    """Seats that a request finds free at a backend, under its running limit and on the loaded model's own slots.

    -1: its model is not resident there. A request for more seats than the loaded model has slots finds them when
    nothing else runs on it: the engine runs it bit by bit.
    """
    if not needs_residency(request, view.backend):
        return view.room
    residency = resident(view, request)
    if residency is None:
        return -1
    if not residency.slots:
        return view.room
    held = seats_on(view, residency)
    own = len(residency.slots) - held if held else max(len(residency.slots), request.least_seats)
    return max(0, min(view.room, own))


def why_not_resident(view: BackendView, request: Request) -> str:
    """Why a request finds no loaded model at a backend, for people."""
    model = request.model or ""
    if view.loading:
        return f"{short(view.loading)} is being loaded"
    for residency in view.residencies:
        if not shares(model, residency, view.backend):
            continue
        if residency.model in view.closing:
            return f"{short(residency.model)} is about to be unloaded"
        wanted = context_of(request.runner or Runner(), model, view.backend)
        if wanted is not None and residency.context_tokens not in (None, wanted):
            return f"resident with context {residency.context_tokens}, {wanted} wanted"
        return "resident with other options than are wanted"
    return "its model is not in memory there"


def coming(model: str, runner: Runner, backend: Backend) -> Residency:
    """What a load of a model with these options leads to, until the engine tells more."""
    context_tokens = context_of(runner, model, backend)
    return Residency(model, context_tokens, weights=backend.weights.get(model, ""), asked=runner)


def without(residencies: Iterable[Residency], model: str, backend: Backend) -> list[Residency]:
    """Those that stay when a model is loaded, or unloaded: an engine holds the same weights once."""
    return [residency for residency in residencies if not shares(model, residency, backend)]
