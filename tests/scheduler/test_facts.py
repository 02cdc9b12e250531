"""Facts through the scheduler's front door: what each does to health, room and pauses."""

import pytest

from scheduler import effects, events
from scheduler.domain import Failure, Health, Report
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler.world import TICK_S, World, backend, of_type, request


@pytest.fixture
def world() -> World:
    made = World(Policy(cool_down_s=1.0, refused_pause_s=0.1, elsewhere_fresh_s=10.0))
    made.join(backend("a", limit=2))
    return made


def test_health_changes_are_told_once_with_their_reason(world: World) -> None:
    done = world.feed(events.BackendSignalled("a", Signal.MISSED))

    assert of_type(done, effects.HealthChanged) == [effects.HealthChanged("a", Health.READY, Health.SUSPECT, "missed")]
    assert world.feed(events.BackendSignalled("a", Signal.MISSED)) == ()
    assert world.scheduler.health("a") is Health.SUSPECT
    assert world.scheduler.health("nobody") is Health.DOWN


def test_an_exit_frees_all_seats_and_places_claims_elsewhere(world: World) -> None:
    dispatch = world.run(request("r1"))
    world.arrive(request("r2"))
    world.join(backend("b"))

    done = world.exit("a")

    assert of_type(done, effects.Release) == [effects.Release("a", dispatch.nonce)]
    assert [claim.backend_id for claim in of_type(done, effects.Claim)] == ["b"]
    assert world.view("a").seats_leased == 0


def test_a_new_epoch_voids_the_old_one(world: World) -> None:
    dispatch = world.run(request("r1"))
    world.fail(world.run(request("r2")).request_id, Failure.RESET)
    assert world.view("a").room == 0

    world.join(backend("a", limit=2, epoch=2), Signal.ANSWERED)

    assert world.view("a").room == 1, "only the repeated claim"
    assert dispatch.nonce in world.released
    assert world.view("a").cooling_until_s < world.now_s
    world.end("r1")
    world.answer_claims()
    assert list(world.running) == ["r2"]


def test_an_old_epoch_changes_nothing(world: World) -> None:
    world.join(backend("a", limit=2, epoch=5))

    world.feed(events.BackendChanged(backend("a", limit=4, epoch=4)))

    assert world.view("a").backend == backend("a", limit=2, epoch=5)


def test_a_failed_attempt_at_an_engine_that_is_gone_is_not_held_against_the_new_one(world: World) -> None:
    world.run(request("r1"))
    world.join(backend("a", limit=2, epoch=2), Signal.ANSWERED)

    world.fail("r1", Failure.RESET)

    assert world.scheduler.health("a") is Health.READY


@pytest.mark.parametrize(
    ("failure", "health", "firm"),
    [
        (Failure.CONNECT, Health.SUSPECT, False),
        (Failure.ENGINE_ERROR, Health.SUSPECT, False),
        (Failure.LOADING, Health.READY, True),
        (Failure.OVERLOADED, Health.READY, True),
    ],
    ids=str,
)
def test_failures_cool_a_backend_down(world: World, failure: Failure, health: Health, firm: bool) -> None:
    world.run(request("r1"))

    world.fail("r1", failure)

    view = world.view("a")
    assert (view.health, view.cooling_firm) == (health, firm)
    assert view.cooling_until_s == pytest.approx(world.now_s + 1.0)


def test_an_answer_ends_suspicion_and_pause(world: World) -> None:
    world.run(request("r1"))
    world.run(request("r2"))
    world.fail("r1", Failure.CONNECT)
    assert world.waiting() == ["r1"]

    done = world.start_answer("r2")

    assert world.scheduler.health("a") is Health.READY
    assert [claim.request_id for claim in of_type(done, effects.Claim)] == ["r1"]


def test_reports_of_another_epoch_or_older_than_the_last_are_dropped(world: World) -> None:
    def busy(count: int, asked_at_s: float, epoch: int = 1) -> int:
        world.feed(events.BackendReported(Report("a", epoch, asked_at_s, busy_slots=count)))
        return world.view("a").foreign_busy

    assert busy(2, 50.0) == 2
    assert busy(0, 49.0) == 2
    assert busy(1, 60.0, epoch=2) == 2
    assert busy(1, 50.0) == 1, "as old as the last one is not older"
    world.feed(events.BackendReported(Report("nobody", 1, 99.0, busy_slots=1)))


def test_foreign_use_takes_room_and_gives_it_back(world: World) -> None:
    world.look("a", foreign=2)
    world.arrive(request("r1"))
    assert world.waiting() == ["r1"]

    done = world.look("a", foreign=1)

    assert [claim.request_id for claim in of_type(done, effects.Claim)] == ["r1"]


def test_a_look_frees_abandoned_seats_only_when_it_began_later(world: World) -> None:
    dispatch = world.run(request("r1"))
    asked_at_s = world.now_s
    world.client_leaves("r1")
    world.notice(dispatch.nonce)

    assert of_type(world.look("a", asked_at_s), effects.Release) == []
    done = world.look("a")

    assert of_type(done, effects.Release) == [effects.Release("a", dispatch.nonce)]
    assert of_type(done, effects.Look) == []


def test_looks_go_on_until_the_abandoned_seat_is_idle(world: World) -> None:
    world.run(request("r1"))
    (first,) = of_type(world.client_leaves("r1"), effects.Look)
    assert first.at_s == pytest.approx(world.now_s + world.policy.look_after_s)

    (again,) = of_type(world.look("a"), effects.Look)

    assert again.at_s == pytest.approx(world.now_s + world.policy.look_after_s)


def test_other_proxies_seats_take_room_until_nobody_confirms_them(world: World) -> None:
    world.feed(events.OccupancyReported("a", 2, world.now_s))
    world.arrive(request("r1"))
    assert world.waiting() == ["r1"]

    world.feed(events.OccupancyReported("a", 2, world.now_s))
    world.pass_time(9.0)
    assert world.waiting() == ["r1"]
    done = world.pass_time(1.1)

    assert [claim.request_id for claim in of_type(done, effects.Claim)] == ["r1"]


def test_occupancy_asked_for_before_a_refusal_is_dropped(world: World) -> None:
    asked_at_s = world.now_s
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)
    world.refuse(claim.nonce, seats_elsewhere=2)

    world.feed(events.OccupancyReported("a", 0, asked_at_s))
    assert world.waiting() == ["r1"]
    world.feed(events.OccupancyReported("a", 1, world.now_s))
    assert world.waiting() == []


def test_a_refusal_without_a_reason_pauses_the_backend_and_does_not_spin(world: World) -> None:
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)

    refused = world.refuse(claim.nonce, seats_elsewhere=0)
    assert of_type(refused, effects.Claim) == []
    assert world.waiting() == ["r1"]

    again = world.pass_time(0.1 + 2 * TICK_S)
    assert [claim.request_id for claim in of_type(again, effects.Claim)] == ["r1"]


def test_a_refusal_because_of_drain_drains_the_backend(world: World) -> None:
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)

    world.refuse(claim.nonce, draining=True)

    assert world.scheduler.health("a") is Health.DRAINING
    world.feed(events.OccupancyReported("a", 0, world.now_s, draining=False))
    assert world.scheduler.health("a") is Health.READY
    assert world.waiting() == []


def test_the_newer_wish_counts(world: World) -> None:
    asked_at_s = world.now_s
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)
    world.feed(events.DrainRequested("a"))
    world.feed(events.OccupancyReported("a", 0, asked_at_s, draining=False))
    assert world.scheduler.health("a") is Health.DRAINING

    world.feed(events.UndrainRequested("a"))
    world.refuse(claim.nonce, draining=True)
    assert world.scheduler.health("a") is Health.READY, "the claim is older than the undrain"


def test_a_backend_that_leaves_is_forgotten(world: World) -> None:
    dispatch = world.run(request("r1"))

    done = world.leave("a")

    assert of_type(done, effects.Release) == [effects.Release("a", dispatch.nonce)]
    assert world.scheduler.snapshot(world.now_s).backends == ()
    for event in (
        events.BackendLeft("a"),
        events.BackendSignalled("a", Signal.MISSED),
        events.DrainRequested("a"),
        events.OccupancyReported("a", 1, world.now_s),
    ):
        assert world.feed(event) == ()
    world.end("r1")
