"""The scheduler: owns all scheduling state; events in, effects out. Knows no sockets, no store, no clock.

Theory of operation
-------------------
`handle(event, now_s)` runs to its end before the next event: no locks, and the same events give the same effects. This
file hands out events and deadlines. A request's way is in `requests`, the ledger's arrows in `seats`, what happens to
backends in `facts`, what other proxies tell in `others`, who goes next in `matching`, and where to in `decide.decide`.
Which models are loaded where is planned in `planner`, after all else of an event is settled.

*Late binding.* A ticket belongs to no backend. Whatever may let a ticket run is told to `matching`, and before `handle`
returns `_settle` sends tickets until nothing fits any more. So this always holds between events: no waiting ticket has
a candidate, but those that `matching` lets hold for a better one. Nothing polls and nothing is rescanned.

*Room* is the running limit less our leases, less those of other proxies as they told, or as the store last told where
that is more, less foreign use as the engine last told (see `reconcile`). All of these only ever delay a claim; the
store decides it. A refusal that the told numbers do not explain pauses the backend shortly, so that nothing spins;
numbers that nobody confirms expire.

*One fleet.* Each proxy has the whole line and all leases before it, and matches alike; each claims only for requests
of its own (see `telling`, `others`). Where two differ for a moment, both claim, and the store lets one have the seat.

*Abandoned seats.* Where the engine may work on for a request that is gone, the seat counts as busy until a look that
began later shows it idle, or a grace time has passed where the engine cannot be looked at, or the engine restarts.
"""

from collections.abc import Callable
from copy import copy
from math import inf
from typing import Any

from msgspec.structs import replace

from scheduler import events
from scheduler.admission import Admission
from scheduler.deadlines import Deadlines
from scheduler.domain import Health, Rejection, Snapshot
from scheduler.effects import Effect, WakeAt
from scheduler.facts import Facts
from scheduler.health import Signal
from scheduler.leases import Lease, Ledger
from scheduler.loading import Loading, UnderWay
from scheduler.matching import Matching
from scheduler.news import Standing
from scheduler.others import Others
from scheduler.outlook import Outlook
from scheduler.picture import Picture
from scheduler.pictures import Pictures
from scheduler.planner import Planner
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.requests import Requests
from scheduler.seats import Seats
from scheduler.telling import Telling
from scheduler.waiting import Stage, Ticket


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
        self._telling = telling = Telling(self._effects)
        self._seats = Seats(
            self._ledger, self._replica, self._deadlines, self._effects, self._matching.free, outlook, telling
        )
        self._facts = Facts(policy, self._replica, self._seats, self._matching, self._deadlines, self._effects, outlook)
        self._admission = Admission(policy, self._matching.line, self._replica)
        self._loading = Loading(policy, self._replica, self._matching, self._deadlines, outlook, telling, self._effects)
        self._planner = planner = Planner(
            policy, self._replica, self._matching, self._deadlines, outlook, self._loading, self._effects,
            self._refuse,
        )  # fmt: skip
        self._requests = Requests(
            policy, self._open, self._replica, self._seats, self._matching, self._facts, self._admission, outlook,
            telling, self._effects, planner.asked,
        )  # fmt: skip
        self._others = Others(
            self._open, self._ledger, self._replica, self._seats, self._matching, self._facts, self._admission,
            self._deadlines, outlook, telling, self.standing, planner,
        )  # fmt: skip
        self._pictures = Pictures(outlook, self._replica, self._matching.shares)
        self._wake_at_s = inf
        requests = self._requests
        self._reactions: dict[type, Callable[[Any], None]] = {
            events.BackendChanged: self._backend_changed,
            events.BackendLeft: self._backend_left,
            events.BackendSignalled: lambda event: self._signal(event.backend_id, event.signal),
            events.BackendReported: lambda event: self._facts.reported(event.report, self._now_s),
            events.GpuReported: self._facts.gpu_reported,
            events.OccupancyReported: self._occupancy_reported,
            events.RequestArrived: requests.request_arrived,
            events.ClaimGranted: requests.claim_granted,
            events.ClaimRefused: requests.claim_refused,
            events.AnswerStarted: requests.answer_started,
            events.AttemptFailed: requests.attempt_failed,
            events.RequestEnded: requests.request_ended,
            events.ClientLeft: requests.client_left,
            events.DrainRequested: lambda event: self._signal(event.backend_id, Signal.DRAIN),
            events.UndrainRequested: lambda event: self._signal(event.backend_id, Signal.UNDRAIN),
            events.LoadEnded: lambda event: self._loading.ended(event, self._now_s),
            events.LoadWanted: lambda event: planner.operators.load_wanted(event, self._now_s),
            events.UnloadWanted: lambda event: planner.operators.unload_wanted(event, self._now_s),
            events.PinsChanged: planner.operators.pins_changed,
            events.PolicyChanged: self._policy_changed,
            events.NewsHeard: lambda event: self._others.heard(event.owner, event.news, self._now_s),
            events.ProxiesChanged: lambda event: self._others.present(event.owners, self._now_s),
            events.PictureHeard: self._picture_heard,
            events.StoppingAnnounced: lambda _event: setattr(requests, "stopping", True),
            events.TimePassed: lambda _event: setattr(self, "_wake_at_s", inf),  # if early, it is asked for again
        }

    def handle(self, event: events.Event, now_s: float) -> tuple[Effect, ...]:
        """Take in what happened; returns what is to be done, in this order.

        Args:
            event: what happened. Events about what is unknown or over are ignored.
            now_s: seconds on the one monotonic scale that all times in events use. Earlier than before: as before.
        """
        self._now_s = self._requests.now_s = now_s = max(self._now_s, now_s)
        while (due := self._deadlines.take_due(now_s)) is not None:
            self._due(*due)
            self._settle()  # before the event: what waits is older than what the event may bring
        self._reactions[type(event)](event)
        if self._matching.unsettled:
            self._settle()
        self._planner.step(now_s)
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

    @property
    def alone(self) -> bool:
        """Whether no other proxy is in the fleet, as far as is known: then nothing is told."""
        return self._telling.alone

    def standing(self, now_s: float) -> Standing:
        """All leases and tickets of this proxy, to be told now: what is told later goes on from there."""
        tickets = [ticket for ticket in self._matching.line if not ticket.owner]
        for ticket in self._open.values():
            if ticket.stage is Stage.CLAIMING:
                ticket.told = False  # its claim is told among the leases
        standing = self._telling.standing(self._ledger, tickets, now_s)
        return replace(standing, loads=self._loading.standing(now_s))

    def picture(self, now_s: float) -> Picture:
        """What was learned, for a proxy that starts."""
        return self._pictures.taken(now_s, self._facts.tuned)

    def snapshot(self, now_s: float) -> Snapshot:
        """The fleet as a decision at this time would see it."""
        return self._replica.snapshot(now_s)

    def waiting(self) -> tuple[Ticket, ...]:
        """Copies of the tickets that wait here, in order of arrival."""
        return tuple([copy(ticket) for ticket in self._matching.line if not ticket.owner])

    def elsewhere(self) -> tuple[tuple[Ticket, ...], tuple[Lease, ...]]:
        """Copies of the tickets that wait, and of the leases that are held, at the other proxies."""
        tickets = [copy(ticket) for ticket in self._matching.line if ticket.owner]
        leases = [copy(lease) for lease in self._ledger.elsewhere() if lease.granted_s != inf]
        return tuple(tickets), tuple(leases)

    def outlook_of(self, request_id: str, now_s: float) -> tuple[int, float | None] | None:
        """Of one that waits: its place in line, 1 for the next, and the seconds it will wait still; None: unknown."""
        ticket = self._open.get(request_id)
        if ticket is None or ticket.stage is not Stage.WAITING:
            return None
        return self._matching.line.before(ticket) + 1, self._admission.expected_wait_s(ticket, now_s)

    def ticket_of(self, request_id: str) -> Ticket | None:
        """A copy of the ticket of a request that waits; None: it does not."""
        ticket = self._open.get(request_id)
        return copy(ticket) if ticket is not None and ticket.stage is Stage.WAITING else None

    def tenant_running(self, tenant: str) -> int:
        """Requests of a tenant that have seats, or are claiming them, at all proxies."""
        return self._matching.shares.running(tenant)

    def running(self) -> tuple[Lease, ...]:
        """Copies of all leases of this proxy, held, being claimed or abandoned: what the store must not forget."""
        return tuple([copy(lease) for lease in self._ledger])

    def loads_under_way(self) -> tuple[UnderWay, ...]:
        """Copies of all loads that were decided and are not over, of any proxy."""
        return tuple([copy(load) for load in self._loading])

    def why_not_loaded(self, model: str) -> dict[str, str]:
        """By backend: why a model that is wanted there is not loaded, as of the planner's last look."""
        return dict(self._planner.obstacles.get(model, {}))

    @property
    def pins(self) -> tuple[events.Pin, ...]:
        """Models that shall stay loaded."""
        return self._planner.operators.pins

    def health(self, backend_id: str) -> Health:
        """Where a backend stands in its life; one that is not known (any more) is DOWN."""
        state = self._replica.get(backend_id)
        return Health.DOWN if state is None else state.life.health

    def _due(self, kind: str, key: str) -> None:
        """A deadline has come."""
        if kind == "wait":
            ticket = self._open[key]
            obstacles = self.why_not_loaded(ticket.request.model or "")
            is_down = self._matching.is_down(ticket)
            why = self._admission.expired(ticket, self._now_s, is_down=is_down, obstacles=obstacles)
            self._matching.remove(ticket)
            self._requests.reject(ticket, *why)
        elif kind == "overtake":
            self._matching.is_overdue(self._open[key], self._now_s)
        elif kind == "cool":
            self._matching.free_all()  # if its model is not resident there, those that failed may be tried again
        elif kind.startswith("prefill "):
            self._matching.free(key)
        elif kind.startswith("slot "):
            self.outlook.naming.unreserve(key, kind.removeprefix("slot "))
            self._matching.free(key)
        elif kind == "hold":
            self._matching.free_all()
        elif kind == "fresh":
            self._facts.unconfirmed(key)
        elif kind == "grace":
            self._seats.seen_idle(key, self._now_s)
        elif kind == "plan":
            pass  # it looks after each event
        elif kind == "load":
            self._loading.overdue(key, self._now_s)
        else:
            self._others.due(kind, key, self._now_s)

    def _refuse(self, ticket: Ticket, reason: Rejection, detail: str) -> None:
        self._requests.reject(ticket, reason, detail)

    def _occupancy_reported(self, event: events.OccupancyReported) -> None:
        self._others.compare(event, self._now_s)
        self._facts.occupancy(event, self._now_s)

    def _backend_changed(self, event: events.BackendChanged) -> None:
        backend_id = event.backend.id
        before = self._replica.get(backend_id)
        epoch = before.backend.epoch if before is not None else None
        self._requests.adopt(self._facts.changed(event.backend, self._now_s))
        if epoch is None or event.backend.epoch > epoch:
            self._planner.void(backend_id, event.backend.epoch)
            if (told := self._pictures.joined(event.backend, self._now_s)) is not None:
                self._facts.tune_limit(backend_id, told.tuned)
            self._others.joined(backend_id, self._now_s)

    def _backend_left(self, event: events.BackendLeft) -> None:
        self._requests.adopt(self._facts.left(event.backend_id, self._now_s))
        self._planner.void(event.backend_id)

    def _picture_heard(self, event: events.PictureHeard) -> None:
        for told in self._pictures.heard(event.picture, self._now_s):
            self._facts.tune_limit(told.backend_id, told.tuned)

    def _settle(self) -> None:
        """Send waiting tickets until nothing fits any more, and refuse those that nothing will ever fit."""
        for ticket in self._matching.take_hopeless(self._now_s):
            self._requests.reject_for_good(ticket, self._matching.judge(ticket, self._now_s)[0])
        while (match := self._matching.next_match(self._now_s)) is not None:
            if match[0].owner:
                self._others.give_turn(*match, self._now_s)
            else:
                self._requests.send(*match)

    def _signal(self, backend_id: str, signal: Signal) -> None:
        before = self.health(backend_id)
        self._requests.adopt(self._facts.signalled(backend_id, signal, self._now_s))
        if signal is Signal.EXITED:
            self._planner.void(backend_id)
        if before is not Health.DOWN and self.health(backend_id) is Health.DOWN:
            self._requests.call_back(backend_id)

    def _policy_changed(self, event: events.PolicyChanged) -> None:
        policy = event.policy
        self._requests.change(policy)
        self._policy = self._matching.policy = self._facts.policy = policy
        self._admission.change(policy)
        self._planner.change(policy)
        self._facts.tune_limits()
        self._matching.shake()
