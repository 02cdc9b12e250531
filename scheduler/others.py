"""What is heard of the other proxies of the fleet: their leases and tickets, folded in beside our own.

Their leases are in the same ledger and count wherever ours do, and their tickets stand in the same line. But they are
theirs: nothing is claimed, refused, looked for or given back here. What a proxy tells of itself is believed; what it
held is dropped when it is gone.

*Turns.* When it is the turn of another proxy's ticket, its seats are kept for it as if its claim were on its way, for
the policy's `turn_s`; see `turns`.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from scheduler.admission import Admission
from scheduler.deadlines import Deadlines
from scheduler.domain import Decision
from scheduler.events import OccupancyReported
from scheduler.facts import Facts
from scheduler.leases import Lease, LeaseState, Ledger, Work
from scheduler.matching import Matching
from scheduler.news import (
    Hello,
    LeaseAbandoned,
    LeaseOver,
    LeaseStarted,
    LeaseTaken,
    News,
    Standing,
    TicketGone,
    TicketWaits,
)
from scheduler.outlook import Outlook
from scheduler.planner import Planner
from scheduler.replica import Replica
from scheduler.seats import Seats
from scheduler.telling import Telling, request_of
from scheduler.turns import SKIP_S
from scheduler.waiting import Ticket

PRESENCE_S = 20.0
"""Who tells something but is not said to be present by then is gone: its last words came late."""

REMEMBERED = 64
"""Proxies that went and may come back: one that could not reach the store for a while does."""
WRONG_UNTIL_ASKED = 3
"""Numbers of the store in a row that are not what the others told, after which these are asked for all they hold."""
ASK_EVERY_S = 30.0
"""They are not asked again sooner: there may be a proxy that tells nothing."""


class Others:
    """All other proxies, as far as they told."""

    def __init__(
        self,
        tickets: dict[str, Ticket],
        ledger: Ledger,
        replica: Replica,
        seats: Seats,
        matching: Matching,
        facts: Facts,
        admission: Admission,
        deadlines: Deadlines,
        outlook: Outlook,
        telling: Telling,
        standing: Callable[[float], Standing],
        planner: Planner,
    ) -> None:
        self._tickets = tickets
        """All open requests, ours too."""
        self._ledger = ledger
        self._replica = replica
        self._seats = seats
        self._matching = matching
        self._facts = facts
        self._admission = admission
        self._deadlines = deadlines
        self._outlook = outlook
        self._telling = telling
        self._standing = standing
        self._planner = planner
        self._present: frozenset[str] = frozenset()
        self._unsure: set[str] = set()
        """Who told something and is not known to be present."""
        self._left: deque[str] = deque(maxlen=REMEMBERED)
        """The last ones that went."""
        self._heard_s: dict[str, float] = {}
        """When each told something last."""
        self._ask_again_s = -inf
        self._reactions: dict[type, Callable[[str, Any, float], None]] = {
            Hello: self._hello,
            Standing: self._stands,
            TicketWaits: self._waits,
            TicketGone: self._gone,
            LeaseTaken: self._taken,
            LeaseStarted: self._started,
            LeaseAbandoned: self._abandoned,
            LeaseOver: self._over,
            **planner.loading.reactions,
        }

    # Who is there

    def heard(self, owner: str, news: News, now_s: float) -> None:
        """Another proxy told something. News of other things than leases, tickets and loads change nothing here."""
        reaction = self._reactions.get(type(news))
        if reaction is None:
            return
        if owner not in self._present and owner not in self._unsure:
            self._unsure.add(owner)
            self._deadlines.set(("presence", owner), now_s + PRESENCE_S)
            self._introduce(now_s)
        self._heard_s[owner] = now_s
        if owner in self._matching.turns.owners:
            self.forgive(owner)
        reaction(owner, news, now_s)

    def present(self, owners: frozenset[str], now_s: float) -> None:
        """Who else is in the fleet: what those had that are there no more is dropped."""
        for owner in self._unsure & owners:
            self._deadlines.cancel(("presence", owner))
        self._unsure -= owners
        gone, self._present = self._present - owners, owners
        for owner in sorted(gone):
            self._forget(owner, now_s)
            self._left.append(owner)
        self._introduce(now_s)
        if back := owners.intersection(self._left):
            self._left = deque([owner for owner in self._left if owner not in back], REMEMBERED)
            self._telling.tell(Hello())  # what it has was dropped

    def is_absent(self, owner: str, now_s: float) -> None:
        """Nobody said that this one is present."""
        self._unsure.discard(owner)
        self._forget(owner, now_s)
        self._introduce(now_s)

    def _introduce(self, now_s: float) -> None:
        """Once there are others, they are told all that we hold."""
        was_alone = self._telling.alone
        self._telling.alone = not (self._present or self._unsure)
        if was_alone and not self._telling.alone:
            self._telling.tell(self._standing(now_s))

    def _forget(self, owner: str, now_s: float) -> None:
        for lease in [lease for lease in self._ledger.elsewhere() if lease.owner == owner and lease.granted_s != inf]:
            self._end(lease, now_s)
        for ticket in [ticket for ticket in self._tickets.values() if ticket.owner == owner]:
            self._drop(ticket, now_s)
        self._planner.loading.forget(owner, now_s)
        self._heard_s.pop(owner, None)
        self.forgive(owner)

    # What they tell

    def _hello(self, _owner: str, _news: Hello, now_s: float) -> None:
        self._telling.tell(self._standing(now_s))

    def _stands(self, owner: str, news: Standing, now_s: float) -> None:
        """All that it has: what is not in it is over."""
        nonces = {taken.nonce for taken in news.leases}
        waiting = {told.request.id for told in news.tickets}
        for lease in list(self._ledger.elsewhere()):
            if lease.owner == owner and lease.granted_s != inf and lease.nonce not in nonces:
                self._end(lease, now_s)
        for ticket in list(self._tickets.values()):
            if ticket.owner == owner and ticket.request.id not in waiting:
                self._drop(ticket, now_s)
        for taken in news.leases:
            self._taken(owner, taken, now_s)
        for nonce in news.started:
            self._started(owner, LeaseStarted(nonce), now_s)
        for nonce in news.abandoned:
            self._abandoned(owner, LeaseAbandoned(nonce), now_s)
        for told in news.tickets:
            self._waits(owner, told, now_s)
        self._planner.loading.stands(owner, news.loads, now_s)

    def _waits(self, owner: str, news: TicketWaits, now_s: float) -> None:
        tried = frozenset(news.tried)
        known = self._tickets.get(news.request.id)
        if known is not None:
            if known.owner != owner or known.tried == tried:
                return
            self._drop(known, now_s)
        request = request_of(news.request, now_s)
        ticket = Ticket(request, now_s - news.stood_s, tried=tried, admitted=True, owner=owner)
        self._tickets[request.id] = ticket
        self._matching.add(ticket, now_s)
        if known is None:
            self._planner.asked(request, now_s)

    def _gone(self, owner: str, news: TicketGone, now_s: float) -> None:
        ticket = self._tickets.get(news.request_id)
        if ticket is not None and ticket.owner == owner:
            self._drop(ticket, now_s)

    def _taken(self, owner: str, news: LeaseTaken, now_s: float) -> None:
        known = self._ledger.heard(news.nonce)
        if known is not None:
            if news.slot is None:
                self._outlook.unname(known, now_s)
            return
        if news.request.id not in self._tickets:
            self._planner.asked(request_of(news.request, now_s), now_s)
        self._take_turn(owner, news, now_s)
        state = self._replica.get(news.backend_id)
        if state is not None and news.epoch < state.backend.epoch:
            return  # of an engine that is gone
        request = request_of(news.request, now_s)
        lease = Lease(
            news.nonce, request.id, news.backend_id, news.epoch, news.seats, request.model, now_s, LeaseState.HELD,
            now_s, granted_s=now_s, streams=request.stream, owner=owner, request=request, charged=news.charged,
            work=Work(news.tokens, news.reused_tokens, news.prefill_ms, news.output_tokens, news.slot),
        )  # fmt: skip
        self._ledger.hear(lease)
        self._matching.began(request.tenant)
        self._charge(lease, news.charged)
        if state is not None:
            state.hear_taken(news.seats)
            state.last_used_s = now_s
            self._replica.touch(news.backend_id)
            if news.epoch == state.backend.epoch:
                self._facts.granted(lease, request, now_s)

    def _started(self, owner: str, news: LeaseStarted, now_s: float) -> None:
        lease = self._lease(owner, news.nonce)
        if lease is not None and not lease.committed:
            lease.committed = True
            self._outlook.answered(lease, now_s)
            if self._matching.policy.max_prefills:
                self._matching.free(lease.backend_id)

    def _abandoned(self, owner: str, news: LeaseAbandoned, now_s: float) -> None:
        lease = self._lease(owner, news.nonce)
        if lease is not None and lease.state is LeaseState.HELD:
            lease.state = LeaseState.ABANDONED
            lease.since_s = now_s
            self._outlook.abandoned(lease)
            self._charge(lease, news.charge)
            self._matching.ended(lease.request.tenant if lease.request is not None else "")

    def _over(self, owner: str, news: LeaseOver, now_s: float) -> None:
        lease = self._lease(owner, news.nonce)
        if lease is None:
            return
        self._charge(lease, news.charge)
        if news.measured is not None and lease.request is not None:
            self._admission.completed(lease.seats, now_s)
            self._facts.learned(lease, lease.request, news.measured, now_s)
        self._end(lease, now_s)

    def compare(self, event: OccupancyReported, now_s: float) -> None:
        """The store told how many seats the others hold. If that is not what they told, time and again, ask them."""
        state = self._replica.get(event.backend_id)
        if state is None or self._telling.alone or event.kept:
            return
        before = since = 0
        for lease in self._ledger.at(event.backend_id):
            if lease.owner and lease.granted_s <= event.asked_at_s:
                before += lease.seats
            elif lease.owner and lease.granted_s != inf:
                since += lease.seats
        since += state.ended_seats(event.asked_at_s)
        is_right = before <= event.seats_elsewhere <= before + since
        state.elsewhere_wrong = 0 if is_right else state.elsewhere_wrong + 1
        if state.elsewhere_wrong >= WRONG_UNTIL_ASKED and now_s >= self._ask_again_s:
            state.elsewhere_wrong = 0
            self._ask_again_s = now_s + ASK_EVERY_S
            self._telling.tell(Hello())

    # Turns

    def give_turn(self, ticket: Ticket, decision: Decision, now_s: float) -> None:
        """It is the turn of another proxy's ticket: its seats are kept for it a moment. It stands aside already."""
        state = self._replica.get(decision.ranking[0].backend_id)
        if state is None or not ticket.request.seats or state.seats_kept:  # what is free is for us alone
            self._set_aside(ticket, now_s)
            return
        nonce = f"turn {ticket.request.id}"
        ticket.lease = lease = self._seats.lease(nonce, ticket.request, state.backend, now_s, ticket.owner)
        lease.since_s = now_s
        state.last_used_s = now_s
        self._ledger.hear(lease)
        self._outlook.claimed(lease, ticket.request, decision.ranking[0])
        self._matching.began(ticket.request.tenant)
        self._replica.touch(lease.backend_id)
        self._deadlines.set(("turn", ticket.request.id), now_s + self._matching.policy.turn_s)

    def _take_turn(self, owner: str, news: LeaseTaken, now_s: float) -> None:
        """A proxy took a seat: that request waits no more, and its turn there is used up, whoever it was for."""
        ticket = self._tickets.get(news.request.id)
        if ticket is None or ticket.owner != owner or ticket.lease is None:
            kept = [each for each in self._ledger.at(news.backend_id) if each.owner == owner and each.granted_s == inf]
            if kept:
                other = self._tickets[kept[0].request_id]
                self._end_turn(other, now_s)
                self._matching.turns.tickets.discard(other.request.id)
        if ticket is not None and ticket.owner == owner:
            self._drop(ticket, now_s)

    def turn_over(self, request_id: str, now_s: float) -> None:
        """It was not taken: the seat goes to the next."""
        ticket = self._tickets[request_id]
        began_s = ticket.lease.claimed_s if ticket.lease is not None else now_s
        self._set_aside(ticket, now_s)
        if self._heard_s.get(ticket.owner, -inf) < began_s:
            self._matching.turns.owners.add(ticket.owner)
            self._deadlines.set(("skip", ticket.owner), now_s + SKIP_S)
        self._end_turn(ticket, now_s)

    def due(self, kind: str, key: str, now_s: float) -> None:
        """A deadline has come that was set here."""
        if kind == "turn":
            self.turn_over(key, now_s)
        elif kind == "aside":
            self.bring_back(key)
        elif kind == "skip":
            self.forgive(key)
        elif kind == "late":
            self._drop(self._tickets[key], now_s)
        elif kind == "presence":
            self.is_absent(key, now_s)

    def bring_back(self, request_id: str) -> None:
        """A ticket stood aside long enough."""
        self._matching.turns.tickets.discard(request_id)
        self._matching.free_all()

    def forgive(self, owner: str) -> None:
        """A proxy stood aside long enough, or told something."""
        if owner in self._matching.turns.owners:
            self._matching.turns.owners.discard(owner)
            self._deadlines.cancel(("skip", owner))
            self._matching.free_all()

    # What becomes of backends

    def joined(self, backend_id: str, now_s: float) -> None:
        """A backend is new here, or has a new engine: what was heard of it before counts from now on, or no more."""
        state = self._replica.get(backend_id)
        if state is None:
            return
        for lease in list(self._ledger.at(backend_id)):
            if not lease.owner or lease.granted_s == inf:
                continue
            if lease.epoch < state.backend.epoch:
                self._end(lease, now_s)
            elif lease.epoch == state.backend.epoch and lease.request is not None:
                self._facts.granted(lease, lease.request, now_s)
                if lease.state is LeaseState.ABANDONED:
                    self._outlook.abandoned(lease)

    # One lease, one ticket

    def _lease(self, owner: str, nonce: str) -> Lease | None:
        lease = self._ledger.heard(nonce)
        return lease if lease is not None and lease.owner == owner else None

    def _charge(self, lease: Lease, tokens: float) -> None:
        if tokens and lease.request is not None:
            self._matching.charge(lease.request, tokens)

    def _end(self, lease: Lease, now_s: float) -> None:
        """A lease is over, or not heard of any more."""
        backend_id, state = lease.backend_id, self._replica.get(lease.backend_id)
        self._ledger.unhear(lease.nonce, now_s, remember=state is not None and state.reports_slots)
        self._outlook.gone(lease, now_s)
        self._deadlines.cancel((f"prefill {lease.nonce}", backend_id))
        if state is not None:
            state.hear_ended(lease.seats, now_s)
        if lease.state is not LeaseState.ABANDONED and lease.request is not None:
            self._matching.ended(lease.request.tenant)
        self._replica.touch(backend_id)
        self._matching.free(backend_id)

    def _drop(self, ticket: Ticket, now_s: float) -> None:
        """A ticket waits no more."""
        self._end_turn(ticket, now_s)
        self._matching.remove(ticket)
        del self._tickets[ticket.request.id]

    def _end_turn(self, ticket: Ticket, now_s: float) -> None:
        lease = ticket.lease
        if lease is None:
            return
        ticket.lease = None
        self._deadlines.cancel(("turn", ticket.request.id))
        self._ledger.unhear(lease.nonce, now_s)
        self._outlook.gone(lease, now_s)
        self._matching.ended(ticket.request.tenant)
        self._replica.touch(lease.backend_id)
        self._matching.free(lease.backend_id)

    def _set_aside(self, ticket: Ticket, now_s: float) -> None:
        self._deadlines.set(("aside", ticket.request.id), now_s + SKIP_S)
