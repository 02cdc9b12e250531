"""Late binding: which waiting ticket gets which backend, once something may fit. Never claims, rejects or dispatches.

Whatever may let a ticket run is told here: `free` where one backend may have become better, `shake` where the change
reaches further (health, models and policy: the rules *panic* and *again* of `decide.decide` look at all backends).
`next_match` is then asked until it has no answer; after that no waiting ticket has a candidate.
"""

from scheduler.case import Case
from scheduler.deadlines import Deadlines
from scheduler.decide import decide
from scheduler.domain import Decision
from scheduler.filters import could_ever
from scheduler.policy import Policy
from scheduler.replica import BackendState, Replica
from scheduler.waiting import Queue, Stage, Ticket, WaitingLine, kind_of


class Matching:
    """The waiting line, and what may have become possible since it was last looked at."""

    def __init__(self, policy: Policy, replica: Replica, deadlines: Deadlines) -> None:
        self.policy = policy
        self.line = WaitingLine()
        self._replica = replica
        self._deadlines = deadlines
        self._freed: dict[str, None] = {}
        self._shaken = False
        self._barren: set[str] = set()
        """Ids of requests that found no backend since something last became possible."""
        self._held: tuple[Ticket, str] | None = None
        """The overdue ticket and the backend whose seats are kept for it."""

    @property
    def unsettled(self) -> bool:
        """Whether a waiting ticket may have a candidate."""
        return self._shaken or bool(self._freed)

    def free(self, backend_id: str) -> None:
        """A backend may take a ticket now that it could not take before."""
        if self.line:
            self._freed[backend_id] = None
            self._barren.clear()

    def shake(self) -> None:
        """Any backend may take a ticket now that it could not take before, or may never take it any more."""
        self._shaken = bool(self.line)

    def add(self, ticket: Ticket, now_s: float) -> None:
        """Let a ticket wait. It must have been decided just now that it has no candidate."""
        ticket.stage = Stage.WAITING
        queue, is_new = self.line.add(ticket)
        if is_new:
            self._review(queue, now_s)
        self._set_deadline(ticket, queue, now_s)
        if ticket.request.least_seats > 1:
            self._deadlines.set(("overtake", ticket.request.id), now_s + self.policy.overtake_s)

    def remove(self, ticket: Ticket) -> None:
        """A ticket waits no more."""
        self.line.remove(ticket)
        self._deadlines.cancel(("wait", ticket.request.id))
        if ticket.request.least_seats > 1:
            self._deadlines.cancel(("overtake", ticket.request.id))
        if self._held is not None and self._held[0] is ticket:
            self._let_go()

    def is_down(self, ticket: Ticket) -> bool:
        """Whether no backend that may serve a waiting ticket is alive."""
        return self.line.queues[kind_of(ticket)].down_since_s is not None

    def is_overdue(self, ticket: Ticket, now_s: float) -> None:
        """A ticket for several seats has been overtaken long enough."""
        self.line.overdue[ticket.request.id] = ticket
        self._hold(now_s)

    def take_hopeless(self, now_s: float) -> list[Ticket]:
        """Look at all queues anew after a shake; removes and returns the tickets that no backend may ever serve."""
        if not self._shaken:
            return []
        self._shaken = False
        hopeless = []
        for queue in list(self.line.queues.values()):
            self._review(queue, now_s)
            if not queue.backends:
                hopeless += list(queue)
        for ticket in hopeless:
            self.remove(ticket)
        for state in self._replica.states():
            if state.usable:
                self.free(state.backend.id)
        return hopeless

    def next_match(self, now_s: float) -> tuple[Ticket, Decision] | None:
        """Remove and return the ticket that goes next, with the decision that says where. None: nothing fits."""
        if self._freed and self.line.overdue:
            self._hold(now_s)
        while self._freed:
            backend_id = next(iter(self._freed))
            while (ticket := self._first_ticket(backend_id)) is not None:
                decision = decide(self._replica.snapshot(now_s), ticket.request, self.policy, ticket.tried)
                ticket.decision = decision
                if decision.ranking:
                    self.remove(ticket)
                    return ticket, decision
                self._barren.add(ticket.request.id)
            del self._freed[backend_id]
        self._barren.clear()
        return None

    def _first_ticket(self, backend_id: str) -> Ticket | None:
        """Of the tickets that the backend could serve with the room that it has: the oldest."""
        state = self._replica.get(backend_id)
        if state is None or not state.usable:
            return None
        view = self._replica.view(backend_id)
        room = view.room
        first: Ticket | None = None
        for kind, queue in self.line.queues.items():
            if kind.seats > room or backend_id not in queue.backends:
                continue
            ticket = queue.head()
            if kind.seats and self._held is not None and self._held[1] == backend_id:
                ticket = self._held[0]
                if kind_of(ticket) != kind:
                    continue
            if ticket.request.id not in self._barren and (first is None or ticket.order < first.order):
                first = ticket
        return first

    def _review(self, queue: Queue, now_s: float) -> None:
        """Which backends may ever serve a queue, and whether one of them is alive."""
        case = Case(queue.head().request, self.policy, now_s)
        views = [view for view in self._replica.views() if could_ever(view, case)]
        queue.backends = frozenset([view.backend.id for view in views])
        alive = any(_usable(self._replica.get(view.backend.id)) for view in views)
        if alive == (queue.down_since_s is None):
            return
        queue.down_since_s = None if alive else now_s
        for ticket in queue:
            self._set_deadline(ticket, queue, now_s)

    def _set_deadline(self, ticket: Ticket, queue: Queue, now_s: float) -> None:
        at_s = ticket.request.wait_until_s
        if queue.down_since_s is not None:
            at_s = min(at_s, now_s + self.policy.down_wait_s)
        self._deadlines.set(("wait", ticket.request.id), at_s)

    def _hold(self, now_s: float) -> None:
        """See to it that a backend's seats are kept for the oldest overdue ticket that some backend may serve."""
        if self._held is not None:
            ticket, backend_id = self._held
            if self._may_hold(self._replica.get(backend_id), ticket, now_s):
                return
            self._let_go()
        for ticket in sorted(self.line.overdue.values(), key=lambda ticket: ticket.order):
            backends = [state for state in self._replica.states() if self._may_hold(state, ticket, now_s)]
            if backends:
                chosen = min(backends, key=lambda state: (-self._replica.view(state.backend.id).room, state.backend.id))
                chosen.held_for = ticket.request.id
                self._replica.touch(chosen.backend.id)
                self._held = ticket, chosen.backend.id
                return

    def _may_hold(self, state: BackendState | None, ticket: Ticket, now_s: float) -> bool:
        if state is None or not state.usable or now_s < state.cooling_until_s:
            return False
        backend_id = state.backend.id
        return backend_id in self.line.queues[kind_of(ticket)].backends and backend_id not in ticket.tried

    def _let_go(self) -> None:
        if self._held is None:
            return
        backend_id = self._held[1]
        self._held = None
        state = self._replica.get(backend_id)
        if state is not None:
            state.held_for = ""
            self._replica.touch(backend_id)
            self.free(backend_id)


def _usable(state: BackendState | None) -> bool:
    return state is not None and state.usable
