"""What happens to a request whose attempt fails or whose client leaves, one promise per test."""

import pytest

from scheduler import effects, events
from scheduler.domain import Failure, Rejection
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler.world import OTHER_MODEL, backend, claimed, of_type, request, world_of

LOST = [Failure.RESET, Failure.TIMEOUT, Failure.TRUNCATED]
DONE_WITH = [Failure.CONNECT, Failure.LOADING, Failure.OVERLOADED, Failure.ENGINE_ERROR]


@pytest.mark.parametrize("failure", [*LOST, *DONE_WITH], ids=str)
def test_before_the_first_byte_a_failed_request_is_tried_elsewhere(failure: Failure) -> None:
    world = world_of("a", "b")
    world.run(request("r1"))

    done = world.fail("r1", failure)

    assert claimed(done) == [("r1", "b")]
    (dispatch,) = of_type(world.answer_claim("r1.2"), effects.Dispatch)
    assert dispatch.attempt == 2


@pytest.mark.parametrize("failure", list(Failure), ids=str)
def test_after_the_first_byte_never(failure: Failure) -> None:
    world = world_of("a", "b")
    world.run(request("r1"))
    world.start_answer("r1")

    done = world.fail("r1", failure)

    assert of_type(done, effects.Claim) == []
    assert of_type(done, effects.Reject) == []
    assert world.waiting() == []


@pytest.mark.parametrize(("failures", "free"), [(LOST, 0), (DONE_WITH, 1)], ids=["lost", "done-with"])
def test_after_a_failure_the_seat_is_free_only_if_the_engine_is_surely_done(failures: list[Failure], free: int) -> None:
    for failure in failures:
        world = world_of("a", "b")
        world.run(request("r1"))

        world.fail("r1", failure)

        assert world.view("a").room == free, failure


def test_attempts_are_limited() -> None:
    world = world_of("a", "b", "c", "d", policy=Policy(max_attempts=3))
    world.run(request("r1"))
    for _ in range(2):
        world.fail("r1", Failure.RESET)
        world.answer_claims()
    (reject,) = of_type(world.fail("r1", Failure.RESET), effects.Reject)

    assert reject.rejection is Rejection.RETRIES_SPENT
    assert reject.detail == "3 attempts failed; last, c: reset"


def test_pauses_that_the_engine_asks_for_are_no_attempts() -> None:
    world = world_of("a", policy=Policy(max_attempts=1, cool_down_s=1.0))
    world.run(request("r1"))
    for _ in range(5):
        world.fail("r1", Failure.LOADING)
        assert world.waiting() == ["r1"]
        world.pass_time(1.1)
        world.answer_claims()

    assert list(world.running) == ["r1"]


def test_the_retry_budget_is_shared() -> None:
    world = world_of("a", "b", limit=8, policy=Policy(retry_ratio=0.0, retry_floor_per_s=0.2, retry_window_s=10.0))
    for number in range(4):
        world.run(request(f"r{number}"))
    for number in range(4):
        world.fail(f"r{number}", Failure.RESET)

    assert sorted(world.open) == ["r0", "r1"]
    assert world.rejection("r2") is Rejection.RETRIES_SPENT


def test_a_single_backend_is_tried_again_after_its_pause() -> None:
    world = world_of("a", policy=Policy(cool_down_s=1.0))
    world.run(request("r1"))
    world.fail("r1", Failure.CONNECT)
    assert world.waiting() == ["r1"]

    done = world.pass_time(1.1)

    assert claimed(done) == [("r1", "a")]


def test_a_backend_that_fails_fast_soon_gets_almost_nothing() -> None:
    world = world_of("a", "b", "c", "d", limit=4)
    at_a = 0
    for number in range(1000):
        dispatch = world.run(request(f"r{number}", arrived_s=world.now_s))
        if dispatch.backend_id == "a":
            at_a += number >= 250
            world.fail(f"r{number}", Failure.ENGINE_ERROR)
            world.answer_claims()
        world.start_answer(f"r{number}")
        world.end(f"r{number}")
        world.feed(events.BackendSignalled("a", Signal.ANSWERED))
        world.now_s += 0.02
    assert at_a < 0.02 * 750


@pytest.mark.parametrize("stage", ["waiting", "claiming", "running", "answering"])
def test_a_client_may_leave_at_any_time(stage: str) -> None:
    world = world_of("a")
    if stage == "waiting":
        world.run(request("r0"))
    world.arrive(request("r1"))
    if stage in ("running", "answering"):
        world.answer_claims()
    if stage == "answering":
        world.start_answer("r1")

    done = world.client_leaves("r1")

    assert of_type(done, effects.Cancel) == ([effects.Cancel("r1", "a")] if stage in ("running", "answering") else [])
    assert of_type(done, effects.Release) == []
    assert world.waiting() == []
    assert world.view("a").room == 0, "the seat counts until the store or the engine has spoken"


def test_a_claim_granted_after_the_client_left_is_given_back_to_the_next() -> None:
    world = world_of("a")
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)
    world.client_leaves("r1")
    world.arrive(request("r2"))
    assert world.waiting() == ["r2"]

    done = world.answer_claim(claim.nonce)

    assert done[0] == effects.Release("a", claim.nonce)
    assert claimed(done) == [("r2", "a")]


def test_abandoned_seats_are_freed_by_time_where_nobody_can_look() -> None:
    world = world_of("a", slot_source="leases", policy=Policy(abandoned_grace_s=5.0))
    world.run(request("r1"))
    world.client_leaves("r1")
    world.arrive(request("r2"))
    world.pass_time(4.5)
    assert world.waiting() == ["r2"]

    done = world.pass_time(1.0)

    assert of_type(done, effects.Release) == [effects.Release("a", "r1.1")]
    assert claimed(done) == [("r2", "a")]


def test_those_that_wait_again_are_bounded_too() -> None:
    world = world_of("a", policy=Policy(max_waiting=0))
    for number in (1, 2):
        world.run(request(f"r{number}"))
        world.fail(f"r{number}", Failure.CONNECT)

    assert world.waiting() == ["r1"]
    assert world.rejection("r2") is Rejection.QUEUE_FULL


def test_an_answer_ends_the_pause_though_a_probe_has_ended_suspicion_before() -> None:
    world = world_of("a", limit=2)
    for number in (1, 2):
        world.run(request(f"r{number}"))
    world.fail("r1", Failure.CONNECT)
    world.feed(events.BackendSignalled("a", Signal.ANSWERED))
    assert world.waiting() == ["r1"]

    assert claimed(world.start_answer("r2")) == [("r1", "a")]


def test_a_backend_that_goes_down_is_asked_nothing_more() -> None:
    world = world_of("a", "b", limit=2)
    where = {name: world.run(request(name)).backend_id for name in ("r1", "r2", "r3")}
    there = [name for name, backend_id in where.items() if backend_id == "a"]
    world.start_answer(there[0])

    done: list[effects.Effect] = []
    for _ in range(3):
        done += world.feed(events.BackendSignalled("a", Signal.MISSED))

    called_back = [effect.request_id for effect in of_type(tuple(done), effects.Cancel)]
    assert called_back == there[1:], "those that got a byte go on"
    for name in called_back:
        world.fail(name, Failure.TIMEOUT)
        world.answer_claims()
        assert world.running[name].backend_id == "b"


def test_nothing_is_called_back_where_nothing_else_could_run_it() -> None:
    world = world_of("a")
    world.run(request("r1"))

    done = [world.feed(events.BackendSignalled("a", Signal.MISSED)) for _ in range(3)]

    assert [effect for each in done for effect in of_type(each, effects.Cancel)] == []


def test_of_claims_whose_engine_died_the_highest_priority_goes_first() -> None:
    world = world_of("a", limit=3)
    for request_id, priority in (("low", "low"), ("normal", "normal"), ("high", "high")):
        world.arrive(request(request_id, priority=priority))
    world.join(backend("b", limit=2))
    world.arrive(request("later", priority="high"))

    done = world.exit("a")

    assert claimed(done) == [("high", "b")]
    assert world.waiting() == ["low", "normal"]


def test_a_claim_without_a_backend_whose_time_is_over_is_refused_at_once() -> None:
    world = world_of("a", limit=1)
    world.join(backend("b", limit=1, models=[OTHER_MODEL]))
    world.arrive(request("r", wait_s=0.0))

    world.exit("a")

    assert world.rejection("r") is Rejection.DOWN


def test_a_claim_for_a_model_that_nobody_has_any_more_is_refused_for_good() -> None:
    world = world_of("a", limit=1)
    world.join(backend("b", limit=1, models=[OTHER_MODEL]))
    world.arrive(request("r"))

    world.leave("a")

    assert world.rejection("r") is Rejection.UNKNOWN_MODEL
