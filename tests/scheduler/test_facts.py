"""Facts through the scheduler's front door: what each does to health, room and pauses."""

import msgspec
import pytest

from scheduler import effects, events
from scheduler.domain import Engine, Failure, Gpu, Health, Measured, Rejection, Report, Residency
from scheduler.health import Signal
from scheduler.memory import GpuMemory
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, OTHER_MODEL, TICK_S, World, backend, claimed, of_type, request, talk


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


# Memory of cards


GIB = 2**30


def small_card(free_gib: float) -> World:
    """One Ollama that must load the model, on a card with so much memory free."""
    made = World()
    card = Gpu("GPU-1", 0, "NVIDIA GeForce RTX 4090", 24 * GIB)
    ollama = backend("a", engine=Engine.OLLAMA, slot_source="leases", models=[MODEL, OTHER_MODEL])
    made.join(msgspec.structs.replace(ollama, gpu=card, model_bytes={MODEL: 10 * GIB}))
    free(made, free_gib)
    return made


def free(world: World, free_gib: float | None, asked_at_s: float | None = None) -> tuple[effects.Effect, ...]:
    """A sample comes back; None: the driver tells nothing."""
    at_s = world.now_s if asked_at_s is None else asked_at_s
    memory = None if free_gib is None else GpuMemory(24 * GIB, int(free_gib * GIB), None, at_s)
    return world.feed(events.GpuReported("a", memory, at_s))


def loading(done: tuple[effects.Effect, ...]) -> list[tuple[str, str]]:
    return [(load.backend_id, load.model) for load in of_type(done, effects.Load)]


def test_a_load_waits_for_memory_and_begins_when_a_sample_shows_it() -> None:
    world = small_card(2.0)
    world.arrive(request("r"))
    (ticket,) = world.scheduler.waiting()
    assert ticket.decision is not None
    assert ticket.decision.rejections == {"a": Rejection.NO_MEMORY}

    assert loading(free(world, 20.0) + world.pass_time(1.0)) == [("a", MODEL)]
    assert claimed(world.loads.end(next(iter(world.loads.under_way)))) == [("r", "a")]


@pytest.mark.parametrize("how", ["driver-silent", "loaded"])
def test_memory_stands_in_nobodys_way_where_it_is_not_known_or_not_needed(how: str) -> None:
    world = small_card(2.0)
    world.arrive(request("r"))

    if how == "driver-silent":
        assert loading(free(world, None) + world.pass_time(1.0)) == [("a", MODEL)]
    else:
        world.loads.put("a", Residency(MODEL))
        assert claimed(world.look("a")) == [("r", "a")]


def test_an_older_sample_changes_nothing() -> None:
    world = small_card(2.0)
    world.arrive(request("r"))

    free(world, 20.0, world.now_s - 50.0)

    assert world.waiting() == ["r"]


def test_a_sample_of_an_unknown_backend_is_ignored() -> None:
    world = small_card(2.0)

    assert world.feed(events.GpuReported("nobody", None, world.now_s)) == ()
    assert "nobody" not in world.scheduler.outlook.loads._samples


# Who names slots, for the record


def test_who_names_slots_is_told_when_it_changes(world: World) -> None:
    said = [
        of_type(world.look("a"), effects.SlotChoice),
        of_type(world.look("a"), effects.SlotChoice),
        of_type(world.look("a", foreign=1), effects.SlotChoice),
        of_type(world.look("a"), effects.SlotChoice),
        of_type(world.feed(events.OccupancyReported("a", 1, world.now_s)), effects.SlotChoice),
        of_type(world.feed(events.OccupancyReported("a", 0, world.now_s)), effects.SlotChoice),
    ]

    assert said == [
        [effects.SlotChoice("a", True, "its report")],
        [],
        [effects.SlotChoice("a", False, "it reports use by others")],
        [effects.SlotChoice("a", True, "its report")],
        [effects.SlotChoice("a", False, "other proxies use it")],
        [effects.SlotChoice("a", True, "no other proxy uses it any more")],
    ]


def test_requests_in_the_engine_s_own_queue_mean_that_somebody_goes_around_us(world: World) -> None:
    world.feed(events.BackendReported(Report("a", 1, world.now_s, busy_slots=0, deferred=1)))

    assert not world.view("a").names_slots


def test_a_doubt_about_slots_is_told_once_and_ends_with_a_restart(world: World) -> None:
    world.look("a")
    for number in (1, 2):
        world.run(talk(f"r{number}", (number, 100)))

    (told,) = of_type(world.end("r1", measured=Measured(slot=9)), effects.SlotChoice)
    assert "slot 9 answered" in told.because
    assert of_type(world.end("r2", measured=Measured(slot=9)), effects.SlotChoice) == []

    world.join(backend("a", limit=2, epoch=2))
    world.look("a")
    assert world.view("a").names_slots


# Running limits that follow what was learned


def test_a_running_limit_that_is_found_by_itself_follows_the_time_per_token() -> None:
    world = World(Policy(token_target_ms=50.0))
    world.join(msgspec.structs.replace(backend("a", limit=8), auto_limit=True))
    before = world.view("a").backend.running_limit
    for number in range(60):
        world.run(request(f"r{number}"))
        world.end(f"r{number}", measured=Measured(prompt_tokens=10, output_tokens=101, output_ms=4900.0))

    assert 1 <= world.view("a").backend.running_limit < before == 8
    world.join(backend("b", limit=1))
    world.policy = Policy(token_target_ms=5000.0)
    world.feed(events.PolicyChanged(world.policy))
    assert [world.view(name).backend.running_limit for name in "ab"] == [8, 1], "at once"
    world.join(backend("a", limit=8, epoch=2))
    assert world.view("a").backend.running_limit == 8, "not where the limit is given"


def test_an_engine_that_stops_to_tell_of_its_slots_frees_what_was_abandoned_soon() -> None:
    world = World(Policy(abandoned_grace_s=5.0, abandoned_limit_s=100.0))
    seen = backend("a", slot_source="children")
    world.join(seen)
    world.arrive(request("r1"))
    world.answer_claims()
    world.client_leaves("r1")
    assert world.view("a").taken == 1
    world.feed(events.BackendChanged(msgspec.structs.replace(seen, slot_source="leases")))

    world.pass_time(4.0)
    assert world.view("a").taken == 1
    world.pass_time(1.5)
    assert world.view("a").taken == 0
