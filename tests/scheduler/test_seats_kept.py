"""Seats that are kept for other proxies while the store is away: they bound our room, and are no use of an engine."""

import msgspec
import pytest

from scheduler import effects, events
from scheduler.policy import Policy
from tests.scheduler.many import ask, claims, fleet
from tests.scheduler.world import World, backend, of_type, request


@pytest.fixture
def world() -> World:
    made = World(Policy(elsewhere_fresh_s=10.0))
    made.join(backend("a", limit=2))
    return made


@pytest.mark.parametrize(
    ("limit", "elsewhere", "kept", "room"),
    [(8, 0, 6, 2), (8, 3, 6, 2), (8, 7, 6, 1), (8, 0, 0, 8), (8, 0, 8, 0)],
)
def test_seats_kept_for_others_bound_our_room_and_are_no_use_of_the_engine(
    limit: int, elsewhere: int, kept: int, room: int
) -> None:
    world = World(Policy())
    world.join(backend("a", limit=limit))
    world.look("a")
    world.feed(events.OccupancyReported("a", elsewhere, world.now_s))

    world.feed(events.OccupancyReported("a", kept, world.now_s, kept=True))
    view = world.view("a")
    assert (view.seats_kept, view.seats_elsewhere, view.names_slots) == (kept, 0, True)
    assert view.room == limit - kept

    told = msgspec.structs.replace(view, seats_elsewhere=elsewhere)
    assert told.room == room, "whichever is more"
    assert told.seats_held == elsewhere, "what is kept costs nothing"


def test_the_store_s_next_number_ends_what_is_kept(world: World) -> None:
    world.feed(events.OccupancyReported("a", 2, world.now_s, kept=True))
    assert world.view("a").room == 0
    world.arrive(request("r1"))
    assert not world.claims

    done = world.feed(events.OccupancyReported("a", 0, world.now_s))

    assert world.view("a").seats_kept == 0
    assert len(of_type(done, effects.Claim)) == 1


def test_what_is_kept_is_not_believed_for_ever(world: World) -> None:
    world.feed(events.OccupancyReported("a", 2, world.now_s, kept=True))

    world.pass_time(10.1)

    assert world.view("a").room == 2


def test_a_refusal_may_tell_what_is_kept(world: World) -> None:
    world.arrive(request("r1"))
    claim = world.claims.pop(next(iter(world.claims)))

    done = world.feed(events.ClaimRefused(claim.request_id, claim.nonce, 2, unsure=True, kept=True))

    assert not of_type(done, effects.Claim), "not at once again"
    assert (world.view("a").room, world.view("a").seats_elsewhere) == (0, 0)


def test_no_seat_is_kept_for_a_turn_of_another_proxy_which_could_not_take_it() -> None:
    made = fleet(limit=2, policy=Policy(order="fcfs"))
    one, two = made.proxies["one"], made.proxies["two"]
    for request_id in ("r1", "r2"):
        ask(one, request_id)
    ask(two, "theirs")
    ask(one, "ours")
    one.feed(events.OccupancyReported("a", 1, one.now_s, kept=True))
    one.end("r1")
    assert claims(one) == [], "our share is one seat"

    one.end("r2")

    assert claims(one) == ["ours"]


def test_that_the_store_does_not_tell_what_others_use_is_no_reason_to_ask_them() -> None:
    made = fleet(limit=4)
    one, two = made.proxies["one"], made.proxies["two"]
    ask(two, "r1")
    before = len(made.store.log)

    for _ in range(10):
        one.feed(events.OccupancyReported("a", 2, one.now_s, kept=True))

    assert len(made.store.log) == before
