"""What this proxy tells the others of its own leases and tickets. Owns the words; decides nothing.

A claim carries the news of its lease, and the store makes them known with the grant; a release likewise. Whatever else
others must know is told by effects of its own. While there are no others nothing is said, and once there are some, they
are told all that we hold.
"""

from collections.abc import Iterable
from math import inf

from scheduler.domain import Measured, Request
from scheduler.effects import Effect, Tell
from scheduler.leases import Lease, LeaseState
from scheduler.news import (
    Asked,
    LeaseAbandoned,
    LeaseOver,
    LeaseStarted,
    LeaseTaken,
    News,
    Standing,
    TicketGone,
    TicketWaits,
)
from scheduler.waiting import Ticket


class Telling:
    """News of our own."""

    def __init__(self, effects: list[Effect]) -> None:
        self.alone = True
        """No other proxy is in the fleet."""
        self._effects = effects

    def tell(self, news: News) -> None:
        """Say something, if there is anybody to hear it."""
        if not self.alone:
            self._effects.append(Tell(news))

    def waits(self, ticket: Ticket, now_s: float) -> None:
        """A ticket of ours stands in line; said once as long as it waits."""
        if not self.alone and not ticket.told:
            ticket.told = True
            self.tell(_waits(ticket, now_s))

    def gone(self, ticket: Ticket) -> None:
        """It waits no more, and no granted claim says so."""
        if ticket.told:
            ticket.told = False
            self.tell(TicketGone(ticket.request.id))

    def claims(self, lease: Lease, now_s: float) -> LeaseTaken | None:
        """What the others hear when the store grants this claim."""
        return None if self.alone else _taken(lease, now_s)

    def granted(self, lease: Lease, named: int | None, now_s: float) -> None:
        """A claim was granted that named a slot; if the engine chooses after all, the others must know."""
        if named is not None and lease.work is not None and lease.work.slot is None:
            news = _taken(lease, now_s)
            if news is not None:
                self.tell(news)

    def refused(self, lease: Lease, ticket: Ticket | None, *, unsure: bool) -> None:
        """A claim was refused. Nobody heard of it, unless it was told with all that we hold.

        `unsure`: or it was granted after all.
        """
        if lease.stood or unsure:
            self.tell(LeaseOver(lease.nonce, charge=-lease.charged))
            if ticket is not None:
                self.gone(ticket)  # what they think of it is not known; if it waits on, it is told anew

    def started(self, lease: Lease) -> None:
        """The first byte of an answer came."""
        self.tell(LeaseStarted(lease.nonce))

    def abandoned(self, lease: Lease, charge: float) -> None:
        """Nobody waits for an answer any more."""
        lease.charged += charge
        self.tell(LeaseAbandoned(lease.nonce, charge))

    def over(self, lease: Lease, measured: Measured | None, charge: float) -> LeaseOver | None:
        """What the others hear when a lease is given back."""
        return None if self.alone else LeaseOver(lease.nonce, measured, charge)

    def standing(self, leases: Iterable[Lease], tickets: Iterable[Ticket], now_s: float) -> Standing:
        """All that we hold and all that waits here; from now on the others know it."""
        taken, started, abandoned = [], [], []
        for lease in leases:
            news = _taken(lease, now_s) if lease.counted else None
            if news is None:
                continue
            taken.append(news)
            lease.stood = lease.granted_s == inf
            if lease.committed:
                started.append(lease.nonce)
            if lease.state is LeaseState.ABANDONED:
                abandoned.append(lease.nonce)
        waiting = []
        for ticket in tickets:
            ticket.told = True
            waiting.append(_waits(ticket, now_s))
        return Standing(tuple(taken), tuple(started), tuple(abandoned), tuple(waiting))


def _waits(ticket: Ticket, now_s: float) -> TicketWaits:
    return TicketWaits(asked_of(ticket.request, now_s), tuple(sorted(ticket.tried)), max(0.0, now_s - ticket.order))


def _taken(lease: Lease, now_s: float) -> LeaseTaken | None:
    work, request = lease.work, lease.request
    if work is None or request is None:
        return None
    return LeaseTaken(
        lease.nonce,
        lease.backend_id,
        lease.epoch,
        lease.seats,
        asked_of(request, now_s),
        work.slot,
        work.tokens,
        work.reused_tokens,
        work.prefill_ms,
        work.output_tokens,
        lease.charged,
    )


_SAME = tuple(name for name in Asked.__struct_fields__ if name in Request.__struct_fields__ and name != "engines")


def asked_of(request: Request, now_s: float) -> Asked:
    """A request as others need to know it."""
    return Asked(
        waited_s=now_s - request.arrived_s,
        may_wait_s=request.wait_until_s - now_s,
        engines=tuple(sorted(request.engines)),
        **{name: getattr(request, name) for name in _SAME},
    )


def request_of(asked: Asked, now_s: float) -> Request:
    """A request that another proxy told of."""
    return Request(
        arrived_s=now_s - asked.waited_s,
        wait_until_s=now_s + asked.may_wait_s,
        engines=frozenset(asked.engines),
        **{name: getattr(asked, name) for name in _SAME},
    )
