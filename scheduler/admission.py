"""Who may wait, and refusing well: the reason, a sentence for whoever reads it, and when to come back."""

from collections.abc import Iterable, Mapping

from scheduler.domain import BackendView, Decision, Health, Rejection, Request
from scheduler.effects import Reject
from scheduler.filters import PASSING
from scheduler.names import short
from scheduler.policy import Policy
from scheduler.rates import SlidingSum
from scheduler.replica import Replica
from scheduler.waiting import Ticket, WaitingLine

LEAST_COMPLETIONS = 3
"""Requests that must have ended in the window before anything is said about the line's pace."""


class Admission:
    """The bounds of the waiting line, and the pace at which it moves."""

    def __init__(self, policy: Policy, line: WaitingLine, replica: Replica) -> None:
        self._policy = policy
        self._line = line
        self._replica = replica
        self._completions = SlidingSum(policy.completions_window_s)
        """Requests."""
        self._freed_seats = SlidingSum(policy.completions_window_s)

    def change(self, policy: Policy) -> None:
        """Another policy is in force."""
        if policy.completions_window_s != self._policy.completions_window_s:
            self._completions = SlidingSum(policy.completions_window_s)
            self._freed_seats = SlidingSum(policy.completions_window_s)
        self._policy = policy

    def completed(self, seats: int, now_s: float) -> None:
        """A request is done: its seats fell free."""
        self._completions.add(1, now_s)
        self._freed_seats.add(seats, now_s)

    def refusal(self, ticket: Ticket, now_s: float) -> tuple[Rejection, str] | None:
        """Why a ticket must not wait, with a detail; None: it may."""
        policy, length = self._policy, len(self._line)
        if length >= policy.max_waiting and not self._may_exceed(ticket):
            return Rejection.QUEUE_FULL, f"{length} requests wait already"
        if now_s >= ticket.request.wait_until_s:
            return Rejection.WAITED_TOO_LONG, "no slot is free, and the request must not wait for one"
        if ticket.admitted:
            return None
        waiting = self._line.of_tenant(ticket.request.tenant)
        if policy.tenant_max_waiting and waiting >= policy.tenant_max_waiting:
            return Rejection.TENANT_BUSY, f"{waiting} requests of this client wait already"
        wait_s = self.expected_wait_s(ticket, now_s)
        if policy.max_expected_wait_s and wait_s is not None and wait_s > policy.max_expected_wait_s:
            return Rejection.QUEUE_FULL, f"it would wait about {wait_s:.0f} s"
        return None

    def _may_exceed(self, ticket: Ticket) -> bool:
        """Whether a ticket may wait though the line is full: one that had its turn may, as many as there are seats."""
        if not ticket.admitted:
            return False
        seats = sum(state.backend.running_limit for state in self._replica.states())
        return len(self._line) < self._policy.max_waiting + seats

    def expected_wait_s(self, ticket: Ticket, now_s: float) -> float | None:
        """When a ticket's turn is likely to come: those before it, at the pace at which requests ended lately.

        None: too few did (`LEAST_COMPLETIONS`) to tell.
        """
        if self._completions.total(now_s) < LEAST_COMPLETIONS:
            return None
        return (self._line.before(ticket) + 1) / self._completions.per_s(now_s)

    def expired(
        self, ticket: Ticket, now_s: float, *, is_down: bool, obstacles: Mapping[str, str] | None = None
    ) -> tuple[Rejection, str]:
        """Why a ticket's time is over.

        Args:
            ticket: that waited.
            now_s: the time.
            is_down: no backend that may serve it is alive.
            obstacles: what stood in the way of loading its model, by backend; None or empty: nothing did.
        """
        if is_down:
            return down_reason(ticket.decision), down_detail(ticket.request, self._replica.views())
        waited_s = now_s - ticket.request.arrived_s
        if obstacles:
            why = "; ".join(f"{backend_id}: {obstacle}" for backend_id, obstacle in sorted(obstacles.items()))
            return Rejection.WAITED_TOO_LONG, f"no seat with its model fell free within {waited_s:.0f} s ({why})"
        return Rejection.WAITED_TOO_LONG, f"no slot fell free within {waited_s:.0f} s"

    def rejected(
        self, ticket: Ticket, reason: Rejection, detail: str, now_s: float, retry_after_s: float | None = None
    ) -> Reject:
        """The answer to a refused request; `retry_after_s` None: estimated."""
        if ticket.last_failure:
            detail = f"{detail}; last, {ticket.last_failure}"
        if retry_after_s is None:
            retry_after_s = self.retry_after_s(ticket, now_s)
        return Reject(ticket.request.id, reason, detail, retry_after_s, ticket.decision)

    def rejected_for_good(self, ticket: Ticket, decision: Decision) -> Reject:
        """The answer to a request that no backend will ever take."""
        reason = lasting_reason(decision)
        detail = lasting_detail(reason, ticket.request, self._replica.views())
        return Reject(ticket.request.id, reason, detail, None, decision)

    def retry_after_s(self, ticket: Ticket, now_s: float) -> float:
        """When a refused client should come back."""
        seats = self._line.seats + ticket.request.least_seats
        return retry_after_s(seats, self._freed_seats.per_s(now_s), self._policy)


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
    if reason is Rejection.UNKNOWN_MODEL and request.cloud:
        return f"{model!r} runs in the cloud, and no running backend passes requests for such models on"
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
    wait_s = waiting_seats / max(seats_per_s, 1.0 / policy.completions_window_s)
    return min(policy.retry_after_max_s, max(policy.retry_after_min_s, wait_s))
