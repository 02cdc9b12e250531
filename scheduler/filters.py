"""Hard rules: whether a backend may take a request now. Knows nothing of costs, nor of how the rules are combined.

Each rule is a plain function that returns None (passed) or the reason; `FILTERS` is their order, and the first reason
is the one that a decision shows. The facts that never change come first, what changes with every request comes last:
so a reason such as NO_ROOM also says that everything before it was fine.
"""

from collections.abc import Callable

from scheduler.case import Case
from scheduler.domain import BackendView, Health, Rejection
from scheduler.residencies import needs_residency, resident, room_for

Filter = Callable[[BackendView, Case], Rejection | None]


def has_model(view: BackendView, case: Case) -> Rejection | None:
    """The model is loaded or loadable there.

    A backend that starts may not have told its models yet, so it may have any. One that is down and never told them
    counts only where nothing else is up: else a mistyped name would wait for it. A cloud model is on no backend.
    """
    model = case.request.model
    if case.request.cloud:
        return None if view.backend.cloud else Rejection.UNKNOWN_MODEL
    if model is None or model in view.backend.models:
        return None
    if not view.backend.models and (view.health is Health.STARTING or (view.health is Health.DOWN and not case.alive)):
        return None
    return Rejection.UNKNOWN_MODEL


def is_supported(view: BackendView, case: Case) -> Rejection | None:
    """The engine can answer this kind of request."""
    if view.backend.engine in case.request.engines and case.request.operation in view.backend.capabilities:
        return None
    return Rejection.UNSUPPORTED


def is_large_enough(view: BackendView, case: Case) -> Rejection | None:
    """The request's seats fit under the running limit of the idle backend."""
    return Rejection.TOO_MANY_SLOTS if case.request.least_seats > view.backend.running_limit else None


def is_alive(view: BackendView, _case: Case) -> Rejection | None:
    """The engine is up."""
    if view.health is Health.STARTING:
        return Rejection.STARTING
    return Rejection.DOWN if view.health is Health.DOWN else None


def takes_new_work(view: BackendView, _case: Case) -> Rejection | None:
    """No operator drains it."""
    return Rejection.DRAINING if view.draining or view.health is Health.DRAINING else None


def is_untried(view: BackendView, case: Case) -> Rejection | None:
    """It has not failed this request yet."""
    return Rejection.TRIED if view.backend.id in case.tried else None


def is_not_cooling(view: BackendView, case: Case) -> Rejection | None:
    """It has not failed, or asked for a pause, just now."""
    return Rejection.COOLING if case.now_s < view.cooling_until_s else None


def is_resident(view: BackendView, case: Case) -> Rejection | None:
    """The model is loaded there with options that suit. It is never sent to an engine that would have to load it."""
    if not needs_residency(case.request, view.backend) or resident(view, case.request) is not None:
        return None
    return Rejection.NOT_LOADED


def has_room(view: BackendView, case: Case) -> Rejection | None:
    """Enough seats are free under the running limit and on the loaded model, and not kept for another request."""
    request = case.request
    least = request.least_seats
    if least == 0:
        return None
    if view.held_for and view.held_for != request.id:
        return Rejection.NO_ROOM
    return Rejection.NO_ROOM if room_for(view, request) < least else None


FILTERS: dict[str, Filter] = {
    "model": has_model,
    "support": is_supported,
    "size": is_large_enough,
    "alive": is_alive,
    "draining": takes_new_work,
    "tried": is_untried,
    "cooling": is_not_cooling,
    "resident": is_resident,
    "room": has_room,
}

LASTING = ("model", "support", "size")
"""Filters whose answer does not change by waiting."""

PASSING = frozenset(
    {Rejection.STARTING, Rejection.DOWN, Rejection.DRAINING, Rejection.TRIED, Rejection.COOLING, Rejection.NO_ROOM}
) | {Rejection.PREFILLING, Rejection.TENANT_BUSY, Rejection.NOT_LOADED, Rejection.NO_MEMORY}
"""Reasons that waiting may cure."""


def first_rejection(view: BackendView, case: Case, ignoring: frozenset[str] = frozenset()) -> Rejection | None:
    """The reason of the first filter that the backend fails, leaving out the filters named in `ignoring`."""
    for name, rule in FILTERS.items():
        if name not in ignoring and (reason := rule(view, case)) is not None:
            return reason
    return None


def could_ever(view: BackendView, case: Case) -> bool:
    """Whether waiting for this backend can make sense at all."""
    return all(FILTERS[name](view, case) is None for name in LASTING)
