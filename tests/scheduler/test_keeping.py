"""Seats kept for one overdue request at a time; what that means for others is in `test_matching`."""

import pytest

from scheduler.health import Signal
from scheduler.keeping import Keeping
from scheduler.leases import Ledger
from scheduler.replica import Replica
from scheduler.waiting import Ticket, WaitingLine
from tests.scheduler.world import backend, request


@pytest.fixture
def line() -> WaitingLine:
    return WaitingLine()


def kept(line: WaitingLine, *tickets: Ticket, could_use: bool = True) -> tuple[Keeping, Replica, list[str]]:
    replica, freed = Replica(Ledger()), list[str]()
    state = replica.join(backend("a", limit=3))
    state.life = state.life.after(Signal.ANSWERED, 3)
    for ticket in tickets:
        group, _ = line.add(ticket)
        group.backends = frozenset("a")
        line.overdue[ticket.request.id] = ticket
    return Keeping(replica, line, lambda _ticket: could_use, freed.append), replica, freed


def test_the_oldest_has_a_backend_s_seats_kept_until_it_goes(line: WaitingLine) -> None:
    younger, older = Ticket(request("r2", seats=2), 2), Ticket(request("r1", seats=2), 1)
    keeping, replica, freed = kept(line, younger, older)

    keeping.keep(0.0)
    keeping.keep(0.0)

    assert (keeping.ticket, keeping.kept_at("a"), keeping.kept_at("b")) == (older, older, None)
    assert replica.view("a").held_for == "r1"
    keeping.goes(younger)
    assert keeping.ticket is older
    keeping.goes(older)
    assert keeping.kept_at("a") is None
    assert (replica.view("a").held_for, freed) == ("", ["a"])


def test_nothing_is_kept_for_one_that_could_not_use_it(line: WaitingLine) -> None:
    keeping, replica, _ = kept(line, Ticket(request("r1", seats=2), 1), could_use=False)

    keeping.keep(0.0)

    assert keeping.ticket is None
    assert replica.view("a").held_for == ""
