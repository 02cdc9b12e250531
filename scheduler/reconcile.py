"""Reading a report against our own leases: what of the engine's busy slots is ours, what is foreign, what went idle.

Pure arithmetic over one report; knows neither where reports come from nor what is done with the result.

A look takes time: it shows the engine at some moment between `asked_at_s` and now. So our leases fall into groups.

*Known* ones had been dispatched when the look began. They are ours in it, also those that ended while it was under way:
counted as foreign, they would block seats that are free.

*Doubtful* ones were dispatched while the look was under way: it may show them or not. They must not hide foreign use,
so what they could explain is first taken as foreign. That errs to the safe side (the engine's own queue stays empty)
and costs nothing while they run, as their own seats are taken anyway. When such a lease ends, the doubt about it ends
with it, down to `foreign_least`, which is what the report proves even if it showed all of them.

*Abandoned* ones may be busy or not; that is what the look is for. Busy slots beyond those of live leases are put down
to abandoned ones first. Only seats that are then still unexplained by any busy slot are proven idle.

Requests in the engine's own queue count as busy slots: they will take the next ones that fall free.

*Leases of other proxies* explain busy slots like ours, also where the look may not have shown them: when they were
granted is not known here, only when we heard of it. Of those that they abandoned, none is taken to be idle while a slot
could be theirs: that is for them to prove.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from scheduler.domain import SlotState
from scheduler.leases import Ended, Lease, LeaseState

TAKEN_UP_S = 1.0
"""An engine has begun with a request by then, if a slot is idle; beside other work that takes it some milliseconds."""


class Reading(msgspec.Struct, frozen=True):
    """What a report says once our own leases are taken out of it. Seats."""

    idle: tuple[str, ...]
    """Nonces of abandoned leases whose seats are proven idle, oldest first."""
    unexplained: int
    """Busy slots beyond our own leases: held by other proxies, or foreign."""
    doubtful: int
    """How many of these may be our own requests after all, dispatched while the look was under way and still here."""
    doubtful_ended: int
    """The same for requests that began and ended while the look was under way."""


def read(
    busy: int,
    asked_at_s: float,
    leases: Iterable[Lease],
    ended: Iterable[Ended],
    seats_elsewhere: int,
    slots: Iterable[SlotState] = (),
) -> Reading:
    """Read a report.

    Args:
        busy: slots busy in the engine plus requests in its own queue.
        asked_at_s: when the look began.
        leases: all that are known at this backend now.
        ended: those that ended since the look began.
        seats_elsewhere: seats that other proxies hold beyond those leases, as last told.
        slots: the engine's, if it tells them one by one.
    """
    leases = list(leases)
    live = known = doubtful = 0
    abandoned: list[Lease] = []
    for lease in leases:
        if lease.owner and not (lease.state is LeaseState.HELD and lease.granted_s <= asked_at_s):
            known += lease.seats if lease.granted_s != inf else 0
        elif lease.state is LeaseState.HELD:
            if lease.granted_s <= asked_at_s:
                live += lease.seats
            else:
                doubtful += lease.seats
        elif lease.state is LeaseState.ABANDONED:
            if lease.since_s < asked_at_s:
                abandoned.append(lease)
            elif lease.granted_s <= asked_at_s:
                known += lease.seats
            else:
                doubtful += lease.seats
    idle = _proven_idle(abandoned, busy - live - seats_elsewhere)
    if idle and (seen := {slot.id: slot.busy for slot in slots}):
        idle = _seen_idle(idle, leases, seen, asked_at_s)
    known += live + sum(lease.seats for lease in abandoned if lease.nonce not in idle)
    doubtful_ended = 0
    for past in ended:
        if past.granted_s <= asked_at_s:
            known += past.seats
        else:
            doubtful_ended += past.seats
    return Reading(tuple(idle), max(0, busy - known), doubtful, doubtful_ended)


def _seen_idle(idle: list[str], leases: list[Lease], busy: dict[int, bool], asked_at_s: float) -> list[str]:
    """Of those that the count proves idle, those that the slots do not speak against.

    An engine answers a look before it takes up requests that have reached it: a live lease may not be on a slot yet,
    and then the slot that an abandoned one still holds would be put down to it. So one whose slot was named is idle
    when that slot is; others when each live lease is known to be on a slot. Nor may the abandoned one itself have been
    taken up yet, so a look that began soon after it was sent, before any byte of an answer, proves nothing.
    """
    unsure = any(
        lease.state is LeaseState.HELD
        and lease.granted_s <= asked_at_s
        and not lease.committed
        and not (lease.work is not None and lease.work.slot is not None and busy.get(lease.work.slot))
        for lease in leases
    )
    by_nonce = {lease.nonce: lease for lease in leases}
    kept = []
    for nonce in idle:
        lease = by_nonce[nonce]
        slot = lease.work.slot if lease.work is not None else None
        taken_up = lease.committed or lease.granted_s + TAKEN_UP_S <= asked_at_s
        if taken_up and (not unsure if slot is None else not busy.get(slot, False)):
            kept.append(nonce)
    return kept


def _proven_idle(abandoned: list[Lease], busy_beyond_live: int) -> list[str]:
    """Abandoned leases that no busy slot is left for."""
    abandoned.sort(key=lambda lease: (lease.since_s, lease.claimed_s, lease.nonce))
    proven = sum(lease.seats for lease in abandoned) - max(0, busy_beyond_live)
    idle = []
    for lease in abandoned:
        if lease.seats <= proven:
            proven -= lease.seats
            idle.append(lease.nonce)
    return idle
