"""Late binding: which waiting ticket gets which backend, once something may fit. Never claims, rejects or dispatches.

Whatever may let a ticket run is told here: `free` where one backend may have become better, `shake` where the change
reaches further (health, models and policy: the rules *panic* and *again* of `decide.decide` look at all backends).
`next_match` is then asked until it has no answer; after that no waiting ticket has a candidate, but those that hold.

*Who goes next.* Higher priorities first, always. Within one, the tenants whose turn it is (`fairness`); of their first
`window` tickets the one that costs least on the freed backend, less its age credit; those past the age guard before all
others, oldest first. The one that goes is decided over all backends: another one with room may suit it better.

*Holding.* A ticket may leave a seat to others, for `hold_s` at most and once, if a backend that is full now will be
much better for it: one that holds its conversation, for instance. So it may where a backend has room, but the slot that
holds the conversation is busy. At most `HOLDS_AT_ONCE` tickets leave the same seat; the next one takes it.

*Other proxies.* Their tickets stand in the same line. One whose turn it is stays there but stands aside (see `turns`):
its own proxy claims for it, by the same reckoning. Whoever asked `next_match` keeps the seats for it meanwhile.

*Overtaking.* A request for several seats would starve behind single ones that take each seat as it falls free. Once it
waited `overtake_s`, the seats of one backend are kept for it.
"""

from math import inf

from scheduler.case import Case
from scheduler.deadlines import Deadlines
from scheduler.decide import cost, decide, is_computing
from scheduler.domain import BackendView, Decision, Rejection, Request
from scheduler.fairness import Shares
from scheduler.filters import could_ever, first_rejection
from scheduler.keeping import Keeping
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import BackendState, Replica
from scheduler.residencies import room_for
from scheduler.turns import Turns
from scheduler.waiting import Group, Queue, Stage, Ticket, WaitingLine, kind_of, rank_of

SOFT = frozenset({Rejection.COOLING, Rejection.TRIED})
"""Reasons that a look at all backends may overrule."""

HOLD_LEAST_MS = 30.0
"""Less to compute than this is not worth waiting for, whatever the ratio."""
HOLD_LEAST_TOKENS = 64
"""Nor is a backend that has hardly more of the prompt than the one that has room."""
LATE_S = 5.0
"""Another proxy's request that still waits so long after its time is over was forgotten there."""
HOLDS_AT_ONCE = 4
"""Tickets that may leave the same seat to others; the next one takes it."""


class Matching:
    """The waiting line, and what may have become possible since it was last looked at."""

    def __init__(self, policy: Policy, replica: Replica, deadlines: Deadlines, outlook: Outlook | None = None) -> None:
        self.policy = policy
        self.line = WaitingLine()
        self.shares = Shares()
        self.turns = Turns()
        self._outlook = outlook or Outlook(replica.ledger)
        self._replica = replica
        self._deadlines = deadlines
        self._freed: dict[str, None] = {}
        self._shaken = False
        self._barren: set[str] = set()
        """Ids of requests that found no backend since something last became possible."""
        self._unfit: set[str] = set()
        """Ids of those that the backend which is being looked at cannot take; another one may."""
        self._keeping = Keeping(replica, self.line, self._could_use, self.free)

    @property
    def unsettled(self) -> bool:
        """Whether a waiting ticket may have a candidate."""
        return self._shaken or bool(self._freed)

    def free(self, backend_id: str) -> None:
        """A backend may take a ticket now that it could not take before."""
        if self.line:
            self._freed[backend_id] = None
            self._barren.clear()
            self._unfit.clear()

    def free_all(self) -> None:
        """Every backend may."""
        for state in self._replica.states():
            if state.usable:
                self.free(state.backend.id)

    def shake(self) -> None:
        """Any backend may take a ticket now that it could not take before, or may never take it any more."""
        self._shaken = bool(self.line)

    def add(self, ticket: Ticket, now_s: float) -> None:
        """Let a ticket wait. It must have been judged just now that it cannot go."""
        ticket.stage = Stage.WAITING
        group, is_new = self.line.add(ticket)
        if is_new:
            self._review(group, now_s)
        self._set_deadline(ticket, group, now_s)
        if ticket.hold_until_s is not None and ticket.hold_until_s > now_s:
            self._deadlines.set(("hold", ticket.request.id), ticket.hold_until_s)
        if ticket.request.least_seats > 1:
            self._deadlines.set(("overtake", ticket.request.id), now_s + self.policy.overtake_s)

    def remove(self, ticket: Ticket) -> None:
        """A ticket waits no more."""
        self.line.remove(ticket)
        self._deadlines.cancel(("wait", ticket.request.id))
        if ticket.owner:
            self.turns.tickets.discard(ticket.request.id)
            self._deadlines.cancel(("late", ticket.request.id))
            self._deadlines.cancel(("aside", ticket.request.id))
        if ticket.hold_until_s is not None:
            self._deadlines.cancel(("hold", ticket.request.id))
        if ticket.request.least_seats > 1:
            self._deadlines.cancel(("overtake", ticket.request.id))
        self._keeping.goes(ticket)

    def _take(self, ticket: Ticket) -> None:
        """A ticket goes: out of the line, or aside if its own proxy sends it."""
        if not ticket.owner:
            self.remove(ticket)
            return
        self.turns.tickets.add(ticket.request.id)
        self._keeping.goes(ticket)

    def is_down(self, ticket: Ticket) -> bool:
        """Whether no backend that may serve a waiting ticket is alive."""
        return self.line.groups[kind_of(ticket)].down_since_s is not None

    def is_overdue(self, ticket: Ticket, now_s: float) -> None:
        """A ticket for several seats has been overtaken long enough."""
        self.line.overdue[ticket.request.id] = ticket
        self._keeping.keep(now_s)

    def began(self, tenant: str) -> None:
        """A request of this tenant gets a seat. If that is its last one, no seats are kept for it any more."""
        self.shares.began(tenant)
        kept_for = self._keeping.ticket
        if kept_for is not None and self.at_cap(kept_for.request.tenant):
            self._keeping.let_go()

    def ended(self, tenant: str) -> None:
        """It has, and is claiming, that seat no more: its tenant may run another request."""
        self.shares.ended(tenant)
        if self.policy.tenant_max_running:
            self.free_all()

    def charge(self, request: Request, tokens: float) -> None:
        """A tenant uses so many weighted tokens; negative: it used less than it was charged for."""
        self.shares.charge(rank_of(request.priority), request.tenant, tokens, self.policy.quantum_tokens)

    def forgive(self, rank: int, tenant: str) -> None:
        """A tenant gets a seat that nobody else can use now."""
        others = self.line.others_wait(rank, tenant)
        self.shares.alone(rank, tenant, self.policy.quantum_tokens, others=others)

    def could_run(self, ticket: Ticket, now_s: float) -> bool:
        """Whether a living backend may ever serve a ticket."""
        case = Case(ticket.request, self.policy, now_s, alive=True)
        return any(
            state.usable and could_ever(self._replica.view(state.backend.id), case) for state in self._replica.states()
        )

    def take_hopeless(self, now_s: float) -> list[Ticket]:
        """Look at all groups anew after a shake; removes and returns those of ours that no backend may ever serve."""
        if not self._shaken:
            return []
        self._shaken = False
        hopeless = []
        for group in list(self.line.groups.values()):
            self._review(group, now_s)
            if not group.backends:
                hopeless += [ticket for ticket in group if not ticket.owner]
        hopeless.sort(key=lambda ticket: ticket.order)
        for ticket in hopeless:
            self.remove(ticket)
        self.free_all()
        return hopeless

    # Judging

    def judge(self, ticket: Ticket, now_s: float, *, may_hold: bool = True) -> tuple[Decision, bool]:
        """Decide for a ticket, and whether it goes: it has a candidate, may run now, and holds for nothing better.

        `may_hold`: it may wait at all; otherwise it takes what there is.
        """
        decision = decide(
            self._replica.snapshot(now_s), ticket.request, self.policy, ticket.tried, self._outlook, ticket.reuses
        )
        if not decision.ranking:
            return decision, False
        if self.at_cap(ticket.request.tenant) and ticket.request.seats:
            return decision, False
        return decision, not (may_hold and self._holds(ticket, decision, now_s))

    def _could_use(self, ticket: Ticket) -> bool:
        """Whether seats that are kept for a ticket would be used: its tenant may run more, and its proxy takes it."""
        return not (self.at_cap(ticket.request.tenant) or self.turns.is_aside(ticket))

    def at_cap(self, tenant: str) -> bool:
        """Whether a tenant runs as many requests as it may."""
        most = self.policy.tenant_max_running
        return bool(most) and self.shares.running(tenant) >= most

    def _holds(self, ticket: Ticket, decision: Decision, now_s: float) -> bool:
        policy, best = self.policy, decision.ranking[0]
        if policy.hold_s <= 0 or ticket.request.prompt is None or best.terms_ms["prefill"] < HOLD_LEAST_MS:
            return False
        if ticket.hold_until_s is None:
            if now_s + policy.hold_s >= ticket.request.wait_until_s:
                return False
        elif now_s >= ticket.hold_until_s:
            return False
        limit_ms = policy.hold_ratio * best.cost_ms
        case = Case(ticket.request, policy, now_s, ticket.tried, alive=True)
        for view in self._replica.views():
            reason = decision.rejections.get(view.backend.id)
            if view.held_for or not (reason is None or reason is Rejection.NO_ROOM):
                continue
            common = self._outlook.most_common_tokens(view.backend, ticket.request)
            if common < best.reused_tokens + HOLD_LEAST_TOKENS:
                continue
            full = reason is not None
            if self._outlook.later_ms(view, case, ticket.reuses, full=full, below_ms=limit_ms) >= limit_ms:
                continue
            if ticket.hold_until_s is None:
                ticket.hold_until_s = now_s + policy.hold_s
                if ticket.stage is Stage.WAITING:
                    self._deadlines.set(("hold", ticket.request.id), ticket.hold_until_s)
            return True
        return False

    def next_match(self, now_s: float) -> tuple[Ticket, Decision] | None:
        """The ticket that goes next, with the decision that says where. None: nothing fits.

        It is out of the line, or aside if it is another proxy's.
        """
        if self._freed and self.line.overdue:
            self._keeping.keep(now_s)
        while self._freed:
            backend_id = next(iter(self._freed))
            found = self._best_of(backend_id, now_s)
            if found is None:
                del self._freed[backend_id]
                self._unfit.clear()
                continue
            ticket, decision = found
            chosen_id = decision.ranking[0].backend_id
            if chosen_id != backend_id and self._is_due_higher(chosen_id, ticket):
                self._freed = {chosen_id: None, **self._freed}
                self._unfit.clear()
                continue
            self._take(ticket)
            return ticket, decision
        self._barren.clear()
        return None

    def _best_of(self, backend_id: str, now_s: float) -> tuple[Ticket, Decision] | None:
        """The ticket that goes next because of a freed backend, there or elsewhere."""
        held = 0
        while tickets := self._window(backend_id):
            for ticket in self._in_order(tickets, backend_id, now_s):
                decision, goes = self.judge(ticket, now_s, may_hold=held < HOLDS_AT_ONCE)
                ticket.decision = decision
                if goes:
                    return ticket, decision
                held += bool(decision.ranking)
                self._barren.add(ticket.request.id)
        return None

    def _is_due_higher(self, backend_id: str, ticket: Ticket) -> bool:
        """Whether a ticket of a higher priority may want the seat that this one would take, and was not asked yet."""
        if backend_id not in self._freed:
            return False
        kept_for, queues = self._contenders(backend_id)
        if kept_for is not None:
            return kept_for.rank < ticket.rank
        return any(queue.lane.rank < ticket.rank for queue in queues)

    def _window(self, backend_id: str) -> list[Ticket]:
        """Tickets that the backend could serve with the room that it has, of those whose turn it is.

        If all that contend have used up their shares, they get another turn.
        """
        kept_for, queues = self._contenders(backend_id)
        if kept_for is not None:
            return [kept_for]
        if not queues:
            return []
        rank, tenants = queues[0].lane.rank, {queue.lane.tenant for queue in queues}
        if len(tenants) == 1:
            self.forgive(rank, *tenants)
            return self._first(queues)
        eligible = self.shares.eligible(rank, tenants, self.policy.quantum_tokens)
        return self._first([queue for queue in queues if queue.lane.tenant in eligible])

    def _contenders(self, backend_id: str) -> tuple[Ticket | None, list[Queue]]:
        """Who could use the room of a backend; changes nothing.

        Returns:
            The ticket that its seats are kept for, if they do; else the queues of the highest priority that has any.
        """
        state = self._replica.get(backend_id)
        if state is None or not state.usable:
            return None, []
        view = self._replica.view(backend_id)
        kept_for = self._keeping.kept_at(backend_id)
        if kept_for is not None and kept_for.request.id not in self._barren and _fits_in(view, kept_for.request):
            return kept_for, []
        by_rank: dict[int, list[Queue]] = {}
        for group in self.line.groups.values():
            seats = group.kind.seats
            if seats > view.room or (seats and kept_for is not None) or backend_id not in group.backends:
                continue
            if not _fits_in(view, group.any().request):
                continue
            for lane, queue in group.queues.items():
                if not (seats and self.at_cap(lane.tenant)) and any(self._is_left(ticket) for ticket in queue):
                    by_rank.setdefault(lane.rank, []).append(queue)
        return None, by_rank[min(by_rank)] if by_rank else []

    def _first(self, queues: list[Queue]) -> list[Ticket]:
        """The first tickets of all queues together that may still find a backend; as many of each as of the others."""
        most = max(1, self.policy.window)
        share = max(1, most // len(queues))
        if len(queues) > most:
            queues = sorted(queues, key=lambda queue: queue.head().order)
        tickets: list[Ticket] = []
        for queue in queues:
            before = len(tickets)
            for ticket in queue:
                if self._is_left(ticket):
                    tickets.append(ticket)
                    if len(tickets) - before >= share:
                        break
            if len(tickets) >= most:
                break
        return tickets

    def _is_left(self, ticket: Ticket) -> bool:
        """Whether the backend that is being looked at may still take the ticket."""
        request_id = ticket.request.id
        return not (request_id in self._barren or request_id in self._unfit or self.turns.is_aside(ticket))

    def _in_order(self, tickets: list[Ticket], backend_id: str, now_s: float) -> list[Ticket]:
        """The tickets that the backend may take, in the order in which they go; the others become barren."""
        policy = self.policy
        if policy.order == "fcfs" or len(tickets) == 1:
            return sorted(tickets, key=lambda ticket: ticket.order)
        view = self._replica.view(backend_id)
        ordered: list[tuple[float, float, Ticket]] = []
        for ticket in tickets:
            case = Case(ticket.request, policy, now_s, ticket.tried, alive=True)
            age_s = now_s - ticket.request.arrived_s
            reason = first_rejection(view, case)
            if reason is not None and reason not in SOFT:
                self._unfit.add(ticket.request.id)
                continue
            if age_s >= policy.age_guard_s:
                ordered.append((-inf, ticket.order, ticket))
                continue
            fit = self._outlook.fit(view, case, ticket.reuses)
            if is_computing(view, case, fit, self._outlook):
                self._unfit.add(ticket.request.id)
                continue
            cost_ms = cost(view, case, fit).cost_ms
            ordered.append((cost_ms - policy.age_credit * age_s * 1000.0, ticket.order, ticket))
        ordered.sort(key=lambda entry: entry[:2])
        return [entry[2] for entry in ordered]

    # Keeping

    def _review(self, group: Group, now_s: float) -> None:
        """Which backends may ever serve a group, and whether one of them is alive."""
        case = Case(group.any().request, self.policy, now_s)
        views = [view for view in self._replica.views() if could_ever(view, case)]
        group.backends = frozenset([view.backend.id for view in views])
        alive = any(_usable(self._replica.get(view.backend.id)) for view in views)
        if alive == (group.down_since_s is None):
            return
        group.down_since_s = None if alive else now_s
        for ticket in group:
            self._set_deadline(ticket, group, now_s)

    def _set_deadline(self, ticket: Ticket, group: Group, now_s: float) -> None:
        at_s = ticket.request.wait_until_s
        if ticket.owner:
            self._deadlines.set(("late", ticket.request.id), at_s + LATE_S)
            return
        if group.down_since_s is not None:
            at_s = min(at_s, now_s + self.policy.down_wait_s)
        self._deadlines.set(("wait", ticket.request.id), at_s)


def _fits_in(view: BackendView, request: Request) -> bool:
    return request.least_seats <= room_for(view, request)  # less than 0 where its model is not resident


def _usable(state: BackendState | None) -> bool:
    return state is not None and state.usable
