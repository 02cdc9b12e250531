"""A request's way: what becomes of each, from its arrival to its end. Owns no backend, lease or line.

An arrival is decided at once. If a backend has room, its seats are kept here and claimed from the store (`Claim`);
granted, the request is dispatched (`Dispatch`); refused, the store's truth is taken over and the request is decided
again. Without room it waits as a ticket in the line. It is over by `RequestEnded`, by a `Reject`, or because its client
left; then nothing of it is remembered but its lease, for as long as the engine may still work on it.

*Failure.* A request is tried elsewhere while no byte went out, attempts are left and the retry budget allows it.
Backends that failed it are avoided, then, when none is left, allowed again after their cool-down. LOADING and
OVERLOADED are no failures: the engine asked for a pause, which it gets, and the request's deadline bounds how often.
"""

from collections.abc import Callable
from math import inf, nextafter

import msgspec

from scheduler import events
from scheduler.admission import Admission, may_wait
from scheduler.domain import Decision, Failure, Measured, Outcome, Rejection, Request
from scheduler.effects import Cancel, Dispatch, Effect
from scheduler.facts import NOT_NOW, Facts
from scheduler.leases import Lease, LeaseState
from scheduler.matching import Matching
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.residencies import runs_on, told_runner
from scheduler.retries import RetryBudget
from scheduler.seats import Seats
from scheduler.telling import Telling
from scheduler.waiting import Stage, Ticket

ENGINE_DONE = frozenset({Failure.CONNECT, Failure.LOADING, Failure.OVERLOADED, Failure.ENGINE_ERROR})
"""Failures after which the engine surely does nothing for the request: it never got it, or answered it in full."""

SLOT_TRIES = 3
"""Slots that the store may refuse for a request, one after the other; then the engine chooses."""

SEAT_FREE = frozenset({Outcome.DONE, Outcome.ENGINE_REFUSED, Outcome.REJECTED})
"""Outcomes after which the engine is done with a request, or never got it."""


class Requests:
    """The open requests of this proxy."""

    def __init__(
        self,
        policy: Policy,
        tickets: dict[str, Ticket],
        replica: Replica,
        seats: Seats,
        matching: Matching,
        facts: Facts,
        admission: Admission,
        outlook: Outlook,
        telling: Telling,
        effects: list[Effect],
        asked: Callable[[Request, float], None] = lambda _request, _now_s: None,
    ) -> None:
        self.policy = policy
        self.now_s = -inf
        """The time of the event that is being handled."""
        self.stopping = False
        self._open = tickets
        """Those of other proxies too, as far as they wait."""
        self._replica = replica
        self._seats = seats
        self._matching = matching
        self._facts = facts
        self._admission = admission
        self._outlook = outlook
        self._telling = telling
        self._effects = effects
        self._asked = asked
        """Is told each request that comes."""
        self._budget = RetryBudget(policy.retry_window_s)
        self._order = -inf
        """Of the latest arrival."""

    def change(self, policy: Policy) -> None:
        """Another policy is in force."""
        if policy.retry_window_s != self.policy.retry_window_s:
            self._budget = RetryBudget(policy.retry_window_s)
        self.policy = policy

    def request_arrived(self, event: events.RequestArrived) -> None:
        """A client wants something."""
        request = event.request
        if request.id in self._open:
            return
        self._order = max(self.now_s, nextafter(self._order, inf))
        ticket = self._open[request.id] = Ticket(request, self._order)
        ticket.admitted = request.further
        if self.stopping and not request.further:
            self.reject(ticket, Rejection.SHUTTING_DOWN, "slotgate is shutting down", self.policy.retry_after_min_s)
            return
        self._budget.arrived(self.now_s)
        self._asked(request, self.now_s)
        self._place(ticket)

    def _place(self, ticket: Ticket) -> None:
        """Find a backend for a ticket that stands in no line; else let it wait, or refuse it."""
        if ticket.stage is Stage.CLAIMING:
            self._matching.ended(ticket.request.tenant)
        ticket.lease = None
        refusal = self._admission.refusal(ticket, self.now_s)
        decision, goes = self._matching.judge(ticket, self.now_s, may_hold=refusal is None)
        ticket.decision = decision
        if goes:
            self._matching.forgive(ticket.rank, ticket.request.tenant)
            self.send(ticket, decision)
        elif not decision.ranking and not may_wait(decision):
            self.reject_for_good(ticket, decision)
        elif refusal is not None:
            self.reject(ticket, *refusal)
        else:
            ticket.admitted = True
            self._matching.add(ticket, self.now_s)
            self._telling.waits(ticket, self.now_s)

    def send(self, ticket: Ticket, decision: Decision) -> None:
        """Claim the best backend's seats for a ticket that stands in no line."""
        state = self._replica.get(decision.ranking[0].backend_id)
        assert state is not None  # noqa: S101 - the decision was made on this replica
        backend = state.backend
        state.last_used_s = self.now_s
        ticket.admitted = True
        ticket.decision = decision
        ticket.backend_id = backend.id
        ticket.epoch = backend.epoch
        if ticket.request.seats == 0:
            self._replica.touch(backend.id)
            self._telling.gone(ticket)
            self._dispatch(ticket, "")
            return
        ticket.lease = self._seats.claim(ticket.request, backend, self.now_s, decision.ranking[0], self.policy)
        ticket.stage = Stage.CLAIMING
        self._matching.began(ticket.request.tenant)

    def _dispatch(self, ticket: Ticket, nonce: str) -> None:
        assert ticket.decision is not None  # noqa: S101 - nothing is sent undecided
        ticket.stage = Stage.RUNNING
        ticket.attempts += 1
        seats, slot = 0, None
        if (lease := ticket.lease) is not None:
            seats = lease.seats
            slot = lease.work.slot if lease.work is not None else None
            ticket.charged = lease.charged
            self._matching.charge(ticket.request, ticket.charged)
        runner = told_runner(self._replica.view(ticket.backend_id), ticket.request)
        self._effects.append(
            Dispatch(ticket.request.id, ticket.backend_id, nonce, ticket.decision, ticket.attempts, seats, slot, runner)
        )

    def claim_granted(self, event: events.ClaimGranted) -> None:
        """The store granted a claim."""
        lease = self._seats.grant(event.nonce, self.now_s)
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.owner:
            return
        ticket.told = False  # the claim's news said that it waits no more
        if lease is None:
            if ticket.stage is Stage.WAITING:
                self._telling.waits(ticket, self.now_s)
            return
        ticket.slot_refusals = 0
        state = self._replica.get(lease.backend_id)
        if state is not None and state.usable and runs_on(self._replica.view(lease.backend_id), ticket.request):
            named = lease.work.slot if lease.work is not None else None
            self._facts.granted(lease, ticket.request, self.now_s)
            self._telling.granted(lease, named, self.now_s)
            self._dispatch(ticket, lease.nonce)
            return
        # It went down, is drained, or has the model no more, while the store was asked.
        self._seats.give_back(lease, self.now_s, charge=-lease.charged)
        self._place(ticket)

    def claim_refused(self, event: events.ClaimRefused) -> None:
        """The store refused a claim."""
        lease = self._seats.refuse(event.nonce, self.now_s)
        if lease is None:
            return
        ticket = self._open.get(lease.request_id)
        self._telling.refused(lease, ticket, unsure=event.unsure)
        if lease.counted:
            self._facts.refused(lease, event, self.now_s, alone=self._telling.alone)
        if ticket is None:
            return
        if lease.state is not LeaseState.CLAIMING:
            if ticket.stage is Stage.WAITING:
                self._telling.waits(ticket, self.now_s)
            return
        ticket.slot_refusals += 1 if event.slot_refused else -ticket.slot_refusals
        if ticket.slot_refusals >= SLOT_TRIES:
            ticket.request = msgspec.structs.replace(ticket.request, can_name_slot=False)
        self._place(ticket)

    def answer_started(self, event: events.AnswerStarted) -> None:
        """The first byte of an answer went out."""
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.stage is not Stage.RUNNING or ticket.committed:
            return
        ticket.committed = True
        if ticket.lease is not None:
            ticket.lease.committed = True
            self._outlook.answered(ticket.lease, self.now_s)
            self._telling.started(ticket.lease)
            if self.policy.max_prefills:
                self._matching.free(ticket.backend_id)
        self._facts.answered(ticket.backend_id, ticket.epoch, self.now_s)

    def attempt_failed(self, event: events.AttemptFailed) -> None:
        """An attempt ended before its first byte."""
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.stage is not Stage.RUNNING:
            return
        failure = event.failure
        refund = 0.0 if ticket.committed else -ticket.charged
        self._matching.charge(ticket.request, refund)
        self._leave_seat(ticket, idle=failure in ENGINE_DONE, charge=refund)
        self._facts.failed(ticket.backend_id, ticket.epoch, failure, self.now_s)
        if ticket.committed:
            del self._open[event.request_id]
            return
        ticket.tried |= {ticket.backend_id}
        ticket.last_failure = f"{ticket.backend_id}: {failure.value}{f' ({event.detail})' if event.detail else ''}"
        if failure in NOT_NOW:
            self._place(ticket)
            return
        ticket.failed += 1
        policy = self.policy
        if ticket.failed >= policy.max_attempts:
            self.reject(ticket, Rejection.RETRIES_SPENT, f"{ticket.failed} attempts failed")
        elif not self._budget.spend(self.now_s, policy.retry_ratio, policy.retry_floor_per_s):
            self.reject(ticket, Rejection.RETRIES_SPENT, "so many attempts fail that none is repeated for now")
        else:
            self._place(ticket)

    def request_ended(self, event: events.RequestEnded) -> None:
        """An exchange is over."""
        ticket = self._open.get(event.request_id)
        if ticket is None:
            return
        outcome, measured, charge = event.outcome, None, 0.0
        if ticket.stage is Stage.RUNNING and outcome is Outcome.TRUNCATED:
            self._facts.failed(ticket.backend_id, ticket.epoch, Failure.TRUNCATED, self.now_s)
        elif ticket.stage is Stage.RUNNING and outcome is Outcome.DONE and ticket.lease is not None:
            self._admission.completed(ticket.lease.seats, self.now_s)
            measured = event.measured or Measured()
            charge = self._learn(ticket, ticket.lease, measured)
        self._forget(ticket, idle=outcome in SEAT_FREE, measured=measured, charge=charge)

    def _learn(self, ticket: Ticket, lease: Lease, measured: Measured) -> float:
        """An answer is complete: what it cost, and what its slot holds now; returns what is charged on top."""
        self._facts.learned(lease, ticket.request, measured, self.now_s)
        if measured.prompt_tokens is None:
            return 0.0
        fresh = measured.prompt_tokens - (measured.cached_tokens or 0)
        used = fresh + self.policy.output_weight * (measured.output_tokens or 0) - ticket.charged
        self._matching.charge(ticket.request, used)
        return used

    def client_left(self, event: events.ClientLeft) -> None:
        """A client went away, whatever its request is doing."""
        ticket = self._open.get(event.request_id)
        if ticket is None:
            return
        if ticket.stage is Stage.RUNNING:
            self._effects.append(Cancel(ticket.request.id, ticket.backend_id))
        self._forget(ticket, idle=False)

    def _forget(self, ticket: Ticket, *, idle: bool, measured: Measured | None = None, charge: float = 0.0) -> None:
        """A request is over, wherever it stands."""
        del self._open[ticket.request.id]
        self._telling.gone(ticket)
        if ticket.stage is Stage.RUNNING:
            self._leave_seat(ticket, idle=idle, measured=measured, charge=charge)
        elif ticket.stage is Stage.WAITING:
            self._matching.remove(ticket)
        elif ticket.lease is not None:
            self._matching.ended(ticket.request.tenant)
            self._seats.disown(ticket.lease, self.now_s)

    def _leave_seat(self, ticket: Ticket, *, idle: bool, measured: Measured | None = None, charge: float = 0.0) -> None:
        lease = ticket.lease
        if lease is None:
            return
        self._matching.ended(ticket.request.tenant)
        if idle:
            self._seats.give_back(lease, self.now_s, measured, charge)
        else:
            self._seats.abandon(lease, self.policy, self.now_s, charge)

    def reject(self, ticket: Ticket, reason: Rejection, detail: str, retry_after: float | None = None) -> None:
        """Refuse a request that is at no engine and in no line. Without `retry_after`: estimated."""
        del self._open[ticket.request.id]
        self._telling.gone(ticket)
        self._effects.append(self._admission.rejected(ticket, reason, detail, self.now_s, retry_after))

    def reject_for_good(self, ticket: Ticket, decision: Decision) -> None:
        """Refuse a request that no backend will ever take: coming back later does not help."""
        del self._open[ticket.request.id]
        self._telling.gone(ticket)
        self._effects.append(self._admission.rejected_for_good(ticket, decision))

    def adopt(self, request_ids: list[str]) -> None:
        """Requests whose claims went to an engine that is gone stand in line, each where its age puts it."""
        for request_id in request_ids:
            ticket = self._open[request_id]
            self._matching.ended(ticket.request.tenant)
            ticket.lease = None
            self._matching.add(ticket, self.now_s)
            self._telling.waits(ticket, self.now_s)
        if request_ids:
            self._matching.shake()

    def call_back(self, backend_id: str) -> None:
        """A backend went down: what got no byte from it need not wait there, if it can run elsewhere."""
        for ticket in self._open.values():
            waits_there = ticket.stage is Stage.RUNNING and not ticket.committed and ticket.backend_id == backend_id
            if waits_there and self._matching.could_run(ticket, self.now_s):
                self._effects.append(Cancel(ticket.request.id, backend_id))
