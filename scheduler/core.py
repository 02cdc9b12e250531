"""The scheduler: owns all scheduling state; events in, effects out. Knows no sockets, no store, no clock.

Theory of operation
-------------------
`handle(event, now_s)` runs to its end before the next event: no locks, and the same events give the same effects. This
file holds a request's way; the ledger's arrows are in `seats`, what happens to backends in `facts`, who goes next in
`matching`, and where to in `decide.decide`.

*A request's way.* An arrival is decided at once. If a backend has room, its seats are kept here and claimed from the
store (`Claim`); granted, the request is dispatched (`Dispatch`); refused, the store's truth is taken over and the
request is decided again. Without room it waits as a ticket in the line. It is over by `RequestEnded`, by a `Reject`, or
because its client left; then nothing of it is remembered but its lease, for as long as the engine may still work on it.

*Late binding.* A ticket belongs to no backend. Whatever may let a ticket run is told to `matching`, and before `handle`
returns `_settle` sends tickets until nothing fits any more. So this always holds between events: no waiting ticket has
a candidate, but those that `matching` lets hold for a better one. Nothing polls and nothing is rescanned.

*Room* is the running limit less our leases, less the seats of other proxies as the store last told, less foreign use as
the engine last told (see `reconcile`). All three only ever delay a claim; the store decides it. A refusal that the
told numbers do not explain pauses the backend shortly, so that nothing spins; numbers that nobody confirms expire.

*Failure.* A request is tried elsewhere while no byte went out, attempts are left and the retry budget allows it.
Backends that failed it are avoided, then, when none is left, allowed again after their cool-down. LOADING and
OVERLOADED are no failures: the engine asked for a pause, which it gets, and the request's deadline bounds how often.

*Abandoned seats.* Where the engine may work on for a request that is gone, the seat counts as busy until a look that
began later shows it idle, or a grace time has passed where the engine cannot be looked at, or the engine restarts.
"""

from collections.abc import Callable
from copy import copy
from math import inf
from typing import Any

from scheduler import events
from scheduler.admission import Admission, may_wait
from scheduler.deadlines import Deadlines
from scheduler.domain import Decision, Failure, Health, Measured, Outcome, Rejection, Snapshot
from scheduler.effects import Cancel, Dispatch, Effect, WakeAt
from scheduler.facts import NOT_NOW, Facts
from scheduler.health import Signal
from scheduler.leases import Lease, LeaseState, Ledger
from scheduler.matching import Matching
from scheduler.outlook import Outlook
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.retries import RetryBudget
from scheduler.seats import Seats
from scheduler.waiting import Stage, Ticket

ENGINE_DONE = frozenset({Failure.CONNECT, Failure.LOADING, Failure.OVERLOADED, Failure.ENGINE_ERROR})
"""Failures after which the engine surely does nothing for the request: it never got it, or answered it in full."""

SEAT_FREE = frozenset({Outcome.DONE, Outcome.ENGINE_REFUSED, Outcome.REJECTED})
"""Outcomes after which the engine is done with a request, or never got it."""


class Scheduler:
    """All scheduling state of one proxy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._now_s = -inf
        self._effects: list[Effect] = []
        self._open: dict[str, Ticket] = {}
        self._deadlines = Deadlines()
        self._ledger = Ledger()
        self._replica = Replica(self._ledger)
        self.outlook = outlook = Outlook(self._ledger)
        self._matching = Matching(policy, self._replica, self._deadlines, outlook)
        self._seats = Seats(self._ledger, self._replica, self._deadlines, self._effects, self._matching.free, outlook)
        self._facts = Facts(policy, self._replica, self._seats, self._matching, self._deadlines, self._effects, outlook)
        self._shares = self._matching.shares
        self._budget = RetryBudget(policy.retry_window_s)
        self._admission = Admission(policy, self._matching.line, self._replica)
        self._wake_at_s = inf
        self._arrivals = 0
        self._stopping = False
        self._reactions: dict[type, Callable[[Any], None]] = {
            events.BackendChanged: lambda event: self._adopt(self._facts.changed(event.backend, self._now_s)),
            events.BackendLeft: lambda event: self._adopt(self._facts.left(event.backend_id, self._now_s)),
            events.BackendSignalled: lambda event: self._signal(event.backend_id, event.signal),
            events.BackendReported: lambda event: self._facts.reported(event.report, self._now_s),
            events.GpuReported: self._facts.gpu_reported,
            events.OccupancyReported: lambda event: self._facts.occupancy(event, self._now_s),
            events.RequestArrived: self._request_arrived,
            events.ClaimGranted: self._claim_granted,
            events.ClaimRefused: self._claim_refused,
            events.AnswerStarted: self._answer_started,
            events.AttemptFailed: self._attempt_failed,
            events.RequestEnded: self._request_ended,
            events.ClientLeft: self._client_left,
            events.DrainRequested: lambda event: self._signal(event.backend_id, Signal.DRAIN),
            events.UndrainRequested: lambda event: self._signal(event.backend_id, Signal.UNDRAIN),
            events.PolicyChanged: self._policy_changed,
            events.StoppingAnnounced: lambda _event: setattr(self, "_stopping", True),
            events.TimePassed: lambda _event: setattr(self, "_wake_at_s", inf),  # if early, it is asked for again
        }

    def handle(self, event: events.Event, now_s: float) -> tuple[Effect, ...]:
        """Take in what happened; returns what is to be done, in this order.

        Args:
            event: what happened. Events about what is unknown or over are ignored.
            now_s: seconds on the one monotonic scale that all times in events use. Earlier than before: as before.
        """
        self._now_s = now_s = max(self._now_s, now_s)
        while (due := self._deadlines.take_due(now_s)) is not None:
            self._due(*due)
            self._settle()  # before the event: what waits is older than what the event may bring
        self._reactions[type(event)](event)
        if self._matching.unsettled:
            self._settle()
        earliest_s = self._deadlines.earliest_s()
        if self._wake_at_s <= now_s:
            self._wake_at_s = inf
        if earliest_s < self._wake_at_s:
            self._wake_at_s = earliest_s
            self._effects.append(WakeAt(earliest_s))
        effects = tuple(self._effects)
        self._effects.clear()
        return effects

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    def snapshot(self, now_s: float) -> Snapshot:
        """The fleet as a decision at this time would see it."""
        return self._replica.snapshot(now_s)

    def waiting(self) -> tuple[Ticket, ...]:
        """Copies of the tickets that wait, in order of arrival."""
        return tuple([copy(ticket) for ticket in self._matching.line])

    def outlook_of(self, request_id: str, now_s: float) -> tuple[int, float | None] | None:
        """Of one that waits: its place in line, 1 for the next, and the seconds it will wait still; None: unknown."""
        ticket = self._open.get(request_id)
        if ticket is None or ticket.stage is not Stage.WAITING:
            return None
        return self._matching.line.before(ticket) + 1, self._admission.expected_wait_s(ticket, now_s)

    def running(self) -> tuple[Lease, ...]:
        """Copies of all leases, held, being claimed or abandoned: what the store must not forget."""
        return tuple([copy(lease) for lease in self._ledger])

    def health(self, backend_id: str) -> Health:
        """Where a backend stands in its life; one that is not known (any more) is DOWN."""
        state = self._replica.get(backend_id)
        return Health.DOWN if state is None else state.life.health

    # A request's way

    def _request_arrived(self, event: events.RequestArrived) -> None:
        request = event.request
        if request.id in self._open:
            return
        self._arrivals += 1
        ticket = self._open[request.id] = Ticket(request, self._arrivals)
        ticket.admitted = request.further
        if self._stopping and not request.further:
            self._reject(ticket, Rejection.SHUTTING_DOWN, "slotgate is shutting down", self._policy.retry_after_min_s)
            return
        self._budget.arrived(self._now_s)
        self._place(ticket)

    def _place(self, ticket: Ticket) -> None:
        """Find a backend for a ticket that stands in no line; else let it wait, or refuse it."""
        if ticket.stage is Stage.CLAIMING:
            self._runs_no_more(ticket)
        ticket.lease = None
        refusal = self._admission.refusal(ticket, self._now_s)
        decision, goes = self._matching.judge(ticket, self._now_s, may_hold=refusal is None)
        ticket.decision = decision
        if goes:
            self._matching.forgive(ticket.rank, ticket.request.tenant)
            self._send(ticket, decision)
        elif not decision.ranking and not may_wait(decision):
            self._reject_for_good(ticket, decision)
        elif refusal is not None:
            self._reject(ticket, *refusal)
        else:
            ticket.admitted = True
            self._matching.add(ticket, self._now_s)

    def _send(self, ticket: Ticket, decision: Decision) -> None:
        """Claim the best backend's seats for a ticket that stands in no line."""
        state = self._replica.get(decision.ranking[0].backend_id)
        assert state is not None  # noqa: S101 - the decision was made on this replica
        backend = state.backend
        state.last_used_s = self._now_s
        ticket.admitted = True
        ticket.decision = decision
        ticket.backend_id = backend.id
        ticket.epoch = backend.epoch
        if ticket.request.seats == 0:
            self._replica.touch(backend.id)
            self._dispatch(ticket, "")
            return
        ticket.lease = self._seats.claim(ticket.request, backend, self._now_s)
        self.outlook.claimed(ticket.lease, ticket.request, decision.ranking[0])
        ticket.stage = Stage.CLAIMING
        self._matching.began(ticket.request.tenant)

    def _dispatch(self, ticket: Ticket, nonce: str) -> None:
        assert ticket.decision is not None  # noqa: S101 - nothing is sent undecided
        ticket.stage = Stage.RUNNING
        ticket.attempts += 1
        seats, slot = 0, None
        if (lease := ticket.lease) is not None:
            seats = lease.seats
            if lease.work is not None:
                slot, ticket.charged = lease.work.slot, lease.work.weighted_tokens(self._policy.output_weight)
            self._shares.charge(ticket.rank, ticket.request.tenant, ticket.charged, self._policy.quantum_tokens)
        self._effects.append(
            Dispatch(ticket.request.id, ticket.backend_id, nonce, ticket.decision, ticket.attempts, seats, slot)
        )

    def _claim_granted(self, event: events.ClaimGranted) -> None:
        lease = self._seats.grant(event.nonce, self._now_s)
        if lease is None:
            return
        ticket = self._open[lease.request_id]
        state = self._replica.get(lease.backend_id)
        if state is not None and state.usable:
            self._facts.granted(lease, ticket.request, self._now_s)
            self._dispatch(ticket, lease.nonce)
            return
        self._seats.give_back(lease, self._now_s)  # it went down, or is drained, while the store was asked
        self._place(ticket)

    def _claim_refused(self, event: events.ClaimRefused) -> None:
        lease = self._seats.refuse(event.nonce, self._now_s)
        if lease is None:
            return
        if lease.counted:
            self._facts.refused(lease, event, self._now_s)
        if lease.state is LeaseState.CLAIMING:
            self._place(self._open[lease.request_id])

    def _answer_started(self, event: events.AnswerStarted) -> None:
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.stage is not Stage.RUNNING or ticket.committed:
            return
        ticket.committed = True
        if ticket.lease is not None:
            ticket.lease.committed = True
            self.outlook.answered(ticket.lease, self._now_s)
            if self._policy.max_prefills:
                self._matching.free(ticket.backend_id)
        self._facts.answered(ticket.backend_id, ticket.epoch, self._now_s)

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.stage is not Stage.RUNNING:
            return
        failure = event.failure
        self._leave_seat(ticket, idle=failure in ENGINE_DONE)
        self._facts.failed(ticket.backend_id, ticket.epoch, failure, self._now_s)
        if ticket.committed:
            del self._open[event.request_id]
            return
        self._shares.charge(ticket.rank, ticket.request.tenant, -ticket.charged, self._policy.quantum_tokens)
        ticket.tried |= {ticket.backend_id}
        ticket.last_failure = f"{ticket.backend_id}: {failure.value}{f' ({event.detail})' if event.detail else ''}"
        if failure in NOT_NOW:
            self._place(ticket)
            return
        ticket.failed += 1
        policy = self._policy
        if ticket.failed >= policy.max_attempts:
            self._reject(ticket, Rejection.RETRIES_SPENT, f"{ticket.failed} attempts failed")
        elif not self._budget.spend(self._now_s, policy.retry_ratio, policy.retry_floor_per_s):
            self._reject(ticket, Rejection.RETRIES_SPENT, "so many attempts fail that none is repeated for now")
        else:
            self._place(ticket)

    def _request_ended(self, event: events.RequestEnded) -> None:
        ticket = self._open.get(event.request_id)
        if ticket is None:
            return
        outcome = event.outcome
        if ticket.stage is Stage.RUNNING and outcome is Outcome.TRUNCATED:
            self._facts.failed(ticket.backend_id, ticket.epoch, Failure.TRUNCATED, self._now_s)
        elif ticket.stage is Stage.RUNNING and outcome is Outcome.DONE and ticket.lease is not None:
            self._admission.completed(ticket.lease.seats, self._now_s)
            self._learn(ticket, ticket.lease, event.measured or Measured())
        self._forget(ticket, idle=outcome in SEAT_FREE)

    def _learn(self, ticket: Ticket, lease: Lease, measured: Measured) -> None:
        """An answer is complete: what it cost, and what its slot holds now."""
        self._facts.learned(lease, ticket.request, measured, self._now_s)
        if measured.prompt_tokens is not None:
            fresh = measured.prompt_tokens - (measured.cached_tokens or 0)
            used = fresh + self._policy.output_weight * (measured.output_tokens or 0) - ticket.charged
            self._shares.charge(ticket.rank, ticket.request.tenant, used, self._policy.quantum_tokens)

    def _client_left(self, event: events.ClientLeft) -> None:
        ticket = self._open.get(event.request_id)
        if ticket is None:
            return
        if ticket.stage is Stage.RUNNING:
            self._effects.append(Cancel(ticket.request.id, ticket.backend_id))
        self._forget(ticket, idle=False)

    def _forget(self, ticket: Ticket, *, idle: bool) -> None:
        """A request is over, wherever it stands."""
        del self._open[ticket.request.id]
        if ticket.stage is Stage.RUNNING:
            self._leave_seat(ticket, idle=idle)
        elif ticket.stage is Stage.WAITING:
            self._matching.remove(ticket)
        elif ticket.lease is not None:
            self._runs_no_more(ticket)
            self._seats.disown(ticket.lease, self._now_s)

    def _leave_seat(self, ticket: Ticket, *, idle: bool) -> None:
        lease = ticket.lease
        if lease is None:
            return
        self._runs_no_more(ticket)
        if idle:
            self._seats.give_back(lease, self._now_s)
        else:
            self._seats.abandon(lease, self._policy, self._now_s)

    def _runs_no_more(self, ticket: Ticket) -> None:
        """A request has, and is claiming, no seat any more: its tenant may run another one."""
        self._shares.ended(ticket.request.tenant)
        if self._policy.tenant_max_running:
            self._matching.free_all()

    def _reject(self, ticket: Ticket, reason: Rejection, detail: str, retry_after: float | None = None) -> None:
        """Refuse a request that is at no engine and in no line. Without `retry_after`: estimated."""
        del self._open[ticket.request.id]
        self._effects.append(self._admission.rejected(ticket, reason, detail, self._now_s, retry_after))

    def _reject_for_good(self, ticket: Ticket, decision: Decision) -> None:
        """Refuse a request that no backend will ever take: coming back later does not help."""
        del self._open[ticket.request.id]
        self._effects.append(self._admission.rejected_for_good(ticket, decision))

    def _due(self, kind: str, key: str) -> None:
        """A deadline has come."""
        if kind == "wait":
            ticket = self._open[key]
            why = self._admission.expired(ticket, self._now_s, is_down=self._matching.is_down(ticket))
            self._matching.remove(ticket)
            self._reject(ticket, *why)
        elif kind == "overtake":
            self._matching.is_overdue(self._open[key], self._now_s)
        elif kind == "cool" or kind.startswith("prefill "):
            self._matching.free(key)
        elif kind == "hold":
            self._matching.free_all()
        elif kind == "fresh":
            self._facts.unconfirmed(key)
        elif kind == "grace":
            self._seats.seen_idle(key, self._now_s)

    def _adopt(self, request_ids: list[str]) -> None:
        """Requests whose claims went to an engine that is gone stand in line, each where its age puts it."""
        for request_id in request_ids:
            ticket = self._open[request_id]
            self._runs_no_more(ticket)
            ticket.lease = None
            self._matching.add(ticket, self._now_s)
        if request_ids:
            self._matching.shake()

    def _settle(self) -> None:
        """Send waiting tickets until nothing fits any more, and refuse those that nothing will ever fit."""
        for ticket in self._matching.take_hopeless(self._now_s):
            self._reject_for_good(ticket, self._matching.judge(ticket, self._now_s)[0])
        while (match := self._matching.next_match(self._now_s)) is not None:
            self._send(*match)

    def _signal(self, backend_id: str, signal: Signal) -> None:
        before = self.health(backend_id)
        self._adopt(self._facts.signalled(backend_id, signal, self._now_s))
        if before is not Health.DOWN and self.health(backend_id) is Health.DOWN:
            self._call_back(backend_id)

    def _call_back(self, backend_id: str) -> None:
        """A backend went down: what got no byte from it need not wait there, if it can run elsewhere."""
        for ticket in self._open.values():
            waits_there = ticket.stage is Stage.RUNNING and not ticket.committed and ticket.backend_id == backend_id
            if waits_there and self._matching.could_run(ticket, self._now_s):
                self._effects.append(Cancel(ticket.request.id, backend_id))

    def _policy_changed(self, event: events.PolicyChanged) -> None:
        policy = event.policy
        if policy.retry_window_s != self._policy.retry_window_s:
            self._budget = RetryBudget(policy.retry_window_s)
        self._policy = self._matching.policy = self._facts.policy = policy
        self._admission.change(policy)
        self._facts.tune_limits()
        self._matching.shake()
