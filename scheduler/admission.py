"""Refusing well: the reason why a request got no backend, a sentence for whoever reads it, and when to come back.

Pure functions; whether to refuse at all is the scheduler's business.
"""

from collections.abc import Iterable

from scheduler.domain import BackendView, Decision, Health, Rejection, Request
from scheduler.filters import PASSING
from scheduler.names import short
from scheduler.policy import Policy


def may_wait(decision: Decision) -> bool:
    """Whether some backend may take the request later."""
    return any(reason in PASSING for reason in decision.rejections.values())


def lasting_reason(decision: Decision) -> Rejection:
    """Why no backend will ever take the request: the reason of the backends that came closest."""
    reasons = set(decision.rejections.values())
    for reason in (Rejection.TOO_MANY_SLOTS, Rejection.UNSUPPORTED, Rejection.UNKNOWN_MODEL):
        if reason in reasons:
            return reason
    return Rejection.DOWN


def lasting_detail(reason: Rejection, request: Request, views: Iterable[BackendView]) -> str:
    """A sentence on what is missing and what would help."""
    views = list(views)
    model = short(request.model) if request.model else "any model"
    if reason is Rejection.UNKNOWN_MODEL:
        known = sorted({short(name) for view in views for name in view.backend.models})
        silent = sorted(view.backend.id for view in views if not view.backend.models)
        unasked = f"; could not be asked: {', '.join(silent)}" if silent else ""
        return f"no backend has the model {model!r}; there are: {', '.join(known) or 'none'}{unasked}"
    if reason is Rejection.UNSUPPORTED:
        having = [view.backend.id for view in views if request.model is None or request.model in view.backend.models]
        return (
            f"no backend that has {model!r} can answer {request.operation.value} requests: {', '.join(sorted(having))}"
        )
    if reason is Rejection.TOO_MANY_SLOTS:
        most = max((view.backend.running_limit for view in views), default=0)
        return f"the request needs {request.seats} slots at once, the largest running limit is {most}; send it in parts"
    return "no backend is configured"


def down_reason(decision: Decision | None) -> Rejection:
    """Why nothing took a request in time: what all backends that could have it have in common, else DOWN."""
    reasons = {reason for reason in decision.rejections.values() if reason in PASSING} if decision else set()
    return next(iter(reasons)) if reasons in ({Rejection.DRAINING}, {Rejection.STARTING}) else Rejection.DOWN


def down_detail(request: Request, views: Iterable[BackendView]) -> str:
    """A sentence on the state of the backends that have the model."""
    states = [
        f"{view.backend.id} is {view.health.value}"
        for view in views
        if request.model is None or request.model in view.backend.models or view.health is Health.STARTING
    ]
    return f"no backend that could answer is running: {', '.join(states) or 'none is known'}"


def retry_after_s(waiting_seats: int, seats_per_s: float, policy: Policy) -> float:
    """When a client should come back: how long the seats that wait now take at the pace of the last completions.

    With no completion in the window the pace is taken as one per window: none came, so nothing faster is known.
    """
    pace = max(seats_per_s, 1.0 / policy.completions_window_s)
    return min(policy.retry_after_max_s, max(policy.retry_after_min_s, waiting_seats / pace))
