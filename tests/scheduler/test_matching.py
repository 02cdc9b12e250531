from scheduler.deadlines import Deadlines
from scheduler.domain import Health
from scheduler.health import Life
from scheduler.leases import Lease, Ledger
from scheduler.matching import Matching
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.waiting import Ticket
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

POLICY = Policy(down_wait_s=30.0, overtake_s=5.0)


class Hall:
    """A waiting line before backends `a` (both models, two seats) and `b` (one model, one seat), all taken."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.replica = Replica(self.ledger)
        self.deadlines = Deadlines()
        self.matching = Matching(POLICY, self.replica, self.deadlines)
        for known in (backend("a", models=[MODEL, OTHER_MODEL]), backend("b", limit=1)):
            self.replica.join(known).life = Life(Health.READY)
            for number in range(known.running_limit):
                self.take(known.id, f"{known.id}{number}")

    def take(self, backend_id: str, nonce: str) -> None:
        self.ledger.claim(Lease(nonce, "r", backend_id, 1, 1, None, 0.0))
        self.replica.touch(backend_id)

    def free(self, backend_id: str, nonce: str) -> None:
        self.ledger.refuse(nonce)
        self.replica.touch(backend_id)
        self.matching.free(backend_id)

    def wait(self, number: int, *, model: str = MODEL, seats: int = 1, at_s: float = 0.0) -> Ticket:
        ticket = Ticket(request(f"r{number}", model=model, seats=seats), number)
        self.matching.add(ticket, at_s)
        return ticket

    def matches(self, now_s: float = 1.0) -> list[tuple[str, str]]:
        found = []
        while (match := self.matching.next_match(now_s)) is not None:
            ticket, decision = match
            backend_id = decision.ranking[0].backend_id
            for number in range(ticket.request.seats):
                self.take(backend_id, f"{ticket.request.id}/{number}")
            found.append((ticket.request.id, backend_id))
        return found


def test_nothing_freed_nothing_matched() -> None:
    hall = Hall()
    hall.wait(1)

    assert not hall.matching.unsettled
    assert hall.matches() == []


def test_a_freed_seat_goes_to_the_oldest_ticket_that_can_use_it() -> None:
    hall = Hall()
    hall.wait(1, model=OTHER_MODEL)
    hall.wait(2)
    hall.wait(3)

    hall.free("b", "b0")
    assert hall.matches() == [("r2", "b")]
    hall.free("a", "a0")
    assert hall.matches() == [("r1", "a")]
    assert [ticket.request.id for ticket in hall.matching.line] == ["r3"]
    assert not hall.matching.unsettled


def test_a_ticket_too_large_for_the_room_is_overtaken() -> None:
    hall = Hall()
    hall.wait(1, seats=2)
    hall.wait(2)

    hall.free("a", "a0")

    assert hall.matches() == [("r2", "a")]


def test_an_overdue_ticket_is_overtaken_no_more() -> None:
    hall = Hall()
    large = hall.wait(1, seats=2)
    hall.wait(2)
    hall.matching.is_overdue(large, 5.0)

    hall.free("a", "a0")
    assert hall.matches() == [], "kept for the large one"
    hall.free("b", "b0")
    assert hall.matches() == [("r2", "b")], "only one backend is"
    hall.wait(3)
    hall.free("a", "a1")
    assert hall.matches() == [("r1", "a")]
    hall.free("a", "r1/0")
    assert hall.matches() == [("r3", "a")], "and no longer than needed"


def test_seats_are_kept_for_the_overdue_ticket_itself_not_for_one_before_it() -> None:
    hall = Hall()
    overdue = hall.wait(2, seats=2)
    hall.matching.is_overdue(overdue, 5.0)
    hall.wait(1, seats=2)  # an older ticket that came back to the line

    hall.free("a", "a0")
    hall.free("a", "a1")

    assert hall.matches() == [("r2", "a")]


def test_kept_seats_are_let_go_when_the_backend_fails_or_the_ticket_leaves() -> None:
    hall = Hall()
    large = hall.wait(1, seats=2)
    hall.wait(2)
    hall.matching.is_overdue(large, 5.0)
    hall.free("a", "a0")
    assert hall.matches() == []

    hall.matching.remove(large)

    assert hall.matches() == [("r2", "a")]
    assert hall.replica.view("a").held_for == ""
    assert len(hall.deadlines) == 0


def test_seats_are_kept_elsewhere_when_the_backend_cannot_be_used_any_more() -> None:
    hall = Hall()
    hall.replica.join(backend("c")).life = Life(Health.READY)
    hall.take("c", "c0")
    hall.take("c", "c1")
    hall.matching.is_overdue(hall.wait(1, seats=2), 5.0)
    assert hall.replica.view("a").held_for == "r1"
    state = hall.replica.get("a")
    assert state is not None

    state.life = Life(Health.DOWN)
    hall.free("a", "a0")

    assert hall.matches() == []
    assert hall.replica.view("a").held_for == ""
    assert hall.replica.view("c").held_for == "r1"


def test_without_a_living_backend_the_deadline_is_near() -> None:
    hall = Hall()
    ticket = hall.wait(1, model=OTHER_MODEL)
    assert hall.deadlines.earliest_s() == 300.0
    state = hall.replica.get("a")
    assert state is not None

    state.life = Life(Health.DOWN)
    hall.replica.touch("a")
    hall.matching.shake()
    assert hall.matching.take_hopeless(10.0) == []
    assert hall.matching.is_down(ticket)
    assert hall.deadlines.earliest_s() == 40.0
    hall.wait(2, model=OTHER_MODEL, at_s=20.0)
    hall.matching.remove(ticket)
    assert hall.deadlines.earliest_s() == 50.0, "each waits as long for itself"

    state.life = Life(Health.READY)
    hall.replica.touch("a")
    hall.matching.shake()
    assert hall.matching.take_hopeless(30.0) == []
    assert hall.deadlines.earliest_s() == 300.0


def test_tickets_that_no_backend_may_ever_serve_are_hopeless() -> None:
    hall = Hall()
    lost = hall.wait(1, model=OTHER_MODEL)
    hall.wait(2)

    hall.replica.leave("a")
    hall.matching.shake()

    assert hall.matching.take_hopeless(1.0) == [lost]
    assert [ticket.request.id for ticket in hall.matching.line] == ["r2"]
    assert len(hall.deadlines) == 1
