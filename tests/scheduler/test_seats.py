import pytest

from scheduler.deadlines import Deadlines
from scheduler.effects import Claim, Effect, Look, Release
from scheduler.leases import Lease, LeaseState, Ledger
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.seats import Seats
from tests.scheduler.world import backend, request

POLICY = Policy(look_after_s=1.5, abandoned_grace_s=5.0, abandoned_limit_s=100.0)


class Desk:
    """Seats with everything around them in reach."""

    def __init__(self, slot_source: str = "slots") -> None:
        self.effects: list[Effect] = []
        self.freed: list[str] = []
        self.ledger = Ledger()
        self.replica = Replica(self.ledger)
        self.deadlines = Deadlines()
        self.seats = Seats(self.ledger, self.replica, self.deadlines, self.effects, self.freed.append)
        self.backend = backend(slot_source=slot_source)
        self.replica.join(self.backend)

    def held(self, request_id: str = "r1") -> Lease:
        lease = self.seats.claim(request(request_id), self.backend, 1.0)
        assert self.seats.grant(lease.nonce, 1.1) is lease
        self.effects.clear()
        return lease


def test_a_claim_takes_the_seats_at_once() -> None:
    desk = Desk()

    lease = desk.seats.claim(request(seats=2), desk.backend, 1.0)

    assert desk.effects == [Claim("r1", "a", lease.nonce, 2, 2, 1)]
    assert desk.replica.view("a").room == 0


def test_nonces_differ_though_requests_may_not() -> None:
    desk = Desk()

    assert desk.seats.claim(request(), desk.backend, 1.0).nonce != desk.seats.claim(request(), desk.backend, 1.0).nonce


def test_giving_back_twice_releases_once() -> None:
    desk = Desk()
    lease = desk.held()

    desk.seats.give_back(lease, 2.0)
    desk.seats.give_back(lease, 3.0)

    assert desk.effects == [Release("a", lease.nonce)]
    assert desk.freed == ["a"]
    assert desk.replica.view("a").room == 2


def test_a_claim_that_nobody_wants_any_more_goes_straight_back() -> None:
    desk = Desk()
    lease = desk.seats.claim(request(), desk.backend, 1.0)
    desk.effects.clear()
    desk.seats.disown(lease, 1.1)
    assert desk.replica.view("a").room == 1

    assert desk.seats.grant(lease.nonce, 1.2) is None

    assert desk.effects == [Release("a", lease.nonce)]
    assert desk.replica.view("a").room == 2


def test_a_refused_claim_owes_nothing() -> None:
    desk = Desk()
    lease = desk.seats.claim(request(), desk.backend, 1.0)
    desk.effects.clear()

    assert desk.seats.refuse(lease.nonce, 1.1) is lease
    assert desk.seats.refuse(lease.nonce, 1.1) is None
    assert desk.effects == []
    assert desk.freed == ["a"]


@pytest.mark.parametrize(
    ("slot_source", "looks", "due_s"), [("slots", [Look("a", 3.5)], 102.0), ("leases", [], 7.0)], ids=str
)
def test_abandoned_seats_stay_taken(slot_source: str, looks: list[Effect], due_s: float) -> None:
    desk = Desk(slot_source)
    lease = desk.held()

    desk.seats.abandon(lease, POLICY, 2.0)

    assert desk.effects == looks
    assert desk.replica.view("a").room == 1
    assert desk.seats.any_abandoned("a")
    assert desk.deadlines.earliest_s() == due_s
    desk.seats.seen_idle(lease.nonce, 3.0)
    assert desk.effects == [*looks, Release("a", lease.nonce)]
    assert len(desk.deadlines) == 0
    assert not desk.seats.any_abandoned("a")


@pytest.mark.parametrize(
    ("slot_source", "looks", "due_s"), [("slots", [Look("a", 2.2)], 102.0), ("leases", [], 2.5)], ids=str
)
def test_engines_notice_sooner_in_the_middle_of_a_stream(slot_source: str, looks: list[Effect], due_s: float) -> None:
    desk = Desk(slot_source)
    lease = desk.held()
    lease.committed = True

    desk.seats.abandon(lease, POLICY, 2.0)

    assert desk.effects == looks
    assert desk.deadlines.earliest_s() == due_s


def test_only_abandoned_seats_are_freed_by_a_look() -> None:
    desk = Desk()
    lease = desk.held()

    desk.seats.seen_idle(lease.nonce, 3.0)
    desk.seats.seen_idle("?", 3.0)

    assert desk.effects == []
    assert lease.state is LeaseState.HELD


def test_a_restart_frees_everything() -> None:
    desk = Desk()
    held, abandoned = desk.held("r1"), desk.held("r2")
    desk.seats.abandon(abandoned, POLICY, 2.0)
    desk.effects.clear()

    assert desk.seats.void("a", 3.0) == []

    assert desk.effects == [Release("a", held.nonce), Release("a", abandoned.nonce)]
    assert len(desk.deadlines) == 0
    desk.seats.abandon(held, POLICY, 4.0)
    desk.seats.give_back(held, 4.0)
    assert len(desk.effects) == 2


def test_a_restart_tells_whose_claims_are_void() -> None:
    desk = Desk()
    wanted = desk.seats.claim(request("r1"), desk.backend, 1.0)
    unwanted = desk.seats.claim(request("r2"), desk.backend, 1.0)
    desk.seats.disown(unwanted, 1.1)
    desk.effects.clear()

    assert desk.seats.void("a", 2.0) == ["r1"]

    assert desk.replica.view("a").room == 2
    assert desk.seats.grant(wanted.nonce, 3.0) is None
    assert desk.effects == [Release("a", wanted.nonce)]
    assert desk.replica.view("a").room == 2


def test_what_can_be_looked_into_no_more_has_its_abandoned_seats_freed_after_a_grace_time() -> None:
    desk = Desk("children")
    desk.held("r2")
    lease = desk.held()
    desk.seats.abandon(lease, POLICY, 2.0)
    assert desk.deadlines.earliest_s() == 102.0

    desk.seats.lost_sight("a", POLICY, 10.0)

    assert desk.deadlines.take_due(15.0) == ("grace", lease.nonce)
    assert len(desk.deadlines) == 0, "one that runs is not touched"
