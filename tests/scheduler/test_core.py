"""A request's way through the scheduler, one promise per test. Random interleavings are in `test_invariants`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler import effects, events
from scheduler.decide import decide
from scheduler.domain import Decision, Failure, Health, Operation, Outcome, Rejection, Request, Snapshot
from scheduler.health import Signal
from scheduler.leases import LeaseState
from scheduler.policy import Policy
from tests.scheduler.world import OTHER_MODEL, World, backend, claimed, of_type, request, talk, world_of


def test_from_arrival_to_end() -> None:
    world = world_of("a")

    (claim,) = world.arrive(request("r1"))
    assert claim == effects.Claim("r1", "a", "r1.1", 1, 1, 1)
    (dispatch,) = world.answer_claim("r1.1")
    assert isinstance(dispatch, effects.Dispatch)
    assert (dispatch.backend_id, dispatch.attempt, dispatch.decision.request_id) == ("a", 1, "r1")
    (lease,) = world.scheduler.running()
    assert (lease.request_id, lease.state, lease.committed, lease.model) == (
        "r1",
        LeaseState.HELD,
        False,
        "qwen3:latest",
    )
    assert world.start_answer("r1") == ()
    assert world.scheduler.running()[0].committed
    assert world.end("r1") == (effects.Release("a", "r1.1"),)
    assert world.scheduler.running() == ()


def test_requests_spread_over_idle_backends_and_return_to_the_least_recently_used() -> None:
    world = world_of("c", "a", "b", limit=4)
    assert [world.run(request(f"r{number}")).backend_id for number in range(6)] == ["a", "b", "c", "a", "b", "c"]
    for number in (1, 4):
        world.end(f"r{number}")
    assert [world.run(request(f"s{number}")).backend_id for number in range(3)] == ["b", "b", "a"]


def test_a_request_that_needs_no_slot_is_dispatched_at_once() -> None:
    world = world_of("a")
    world.run(request("r1"))

    (dispatch,) = world.arrive(request("r2", seats=0, operation=Operation.TOKENIZE))

    assert isinstance(dispatch, effects.Dispatch)
    assert (dispatch.nonce, dispatch.backend_id) == ("", "a")
    assert world.client_leaves("r2") == (effects.Cancel("r2", "a"),)


def test_a_freed_seat_goes_to_the_oldest_ticket_in_the_same_call() -> None:
    world = world_of("a")
    world.run(request("r1"))
    for number in (2, 3):
        world.arrive(request(f"r{number}"))
    assert world.waiting() == ["r2", "r3"]

    done = world.end("r1")

    assert claimed(done) == [("r2", "a")]
    assert world.waiting() == ["r3"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param(request(model="x:latest"), Rejection.UNKNOWN_MODEL, id="unknown-model"),
        pytest.param(request(seats=2), Rejection.TOO_MANY_SLOTS, id="too-many-slots"),
        pytest.param(request(engines=frozenset()), Rejection.UNSUPPORTED, id="unsupported"),
    ],
)
def test_what_will_never_work_is_refused_at_once(asked: Request, reason: Rejection) -> None:
    world = world_of("a")

    (reject,) = world.arrive(asked)

    assert isinstance(reject, effects.Reject)
    assert (reject.rejection, reject.retry_after_s) == (reason, None)
    assert reject.decision is not None


def test_without_any_backend_nothing_waits() -> None:
    world = World()
    world.arrive(request("r1"))

    assert world.rejection("r1") is Rejection.DOWN


def test_the_line_is_bounded() -> None:
    world = world_of("a", policy=Policy(max_waiting=2))
    world.run(request("r1"))
    for number in (2, 3, 4):
        world.arrive(request(f"r{number}"))

    assert world.waiting() == ["r2", "r3"]
    assert world.rejection("r4") is Rejection.QUEUE_FULL


def test_a_request_that_had_its_turn_may_wait_again_though_the_line_is_full() -> None:
    world = world_of("a", policy=Policy(max_waiting=0))
    world.run(request("r1"))

    world.fail("r1", Failure.CONNECT)

    assert world.waiting() == ["r1"]


def test_a_request_that_must_not_wait_does_not() -> None:
    world = world_of("a")
    world.run(request("r1"))
    world.arrive(request("r2", wait_s=0.0))

    assert world.rejection("r2") is Rejection.WAITED_TOO_LONG


def test_the_deadline_ends_waiting() -> None:
    world = world_of("a")
    world.run(request("r1", arrived_s=world.now_s))
    world.arrive(request("r2", arrived_s=world.now_s, wait_s=5.0))
    world.pass_time(4.0)
    assert world.waiting() == ["r2"]

    (reject,) = of_type(world.pass_time(1.1), effects.Reject)

    assert (reject.rejection, reject.detail) == (Rejection.WAITED_TOO_LONG, "no slot fell free within 5 s")
    assert reject.retry_after_s is not None


def test_retry_after_follows_the_pace_of_completions() -> None:
    world = world_of("a", policy=Policy(max_waiting=5, completions_window_s=20.0))
    for number in range(20):
        world.run(request(f"done{number}"))
        world.end(f"done{number}")
    world.now_s += 9.9
    world.run(request("r1"))
    for number in range(5):
        world.arrive(request(f"w{number}"))

    (reject,) = of_type(world.arrive(request("r2")), effects.Reject)

    assert reject.retry_after_s == pytest.approx(3.0, rel=0.01), "five that wait and this one, at 20 in 10 s"


def test_a_late_timer_does_not_refuse_what_could_have_run() -> None:
    world = world_of("a", policy=Policy(cool_down_s=1.0))
    world.run(request("r1"))
    world.fail("r1", Failure.OVERLOADED)
    world.arrive(request("r2", arrived_s=world.now_s, wait_s=5.0))
    world.client_leaves("r1")
    assert world.waiting() == ["r2"]
    world.now_s += 60.0

    done = world.feed(events.TimePassed())

    assert claimed(done) == [("r2", "a")], "the pause ended before the deadline"


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (Signal.EXITED, Rejection.DOWN),
        (Signal.STARTED, Rejection.STARTING),
        (Signal.DRAIN, Rejection.DRAINING),
    ],
)
def test_while_no_backend_is_alive_requests_wait_for_a_while(signal: Signal, reason: Rejection) -> None:
    world = world_of("a", policy=Policy(down_wait_s=30.0))
    world.feed(events.BackendSignalled("a", signal))
    world.arrive(request("r1"))
    world.pass_time(20.0)
    world.arrive(request("r2", arrived_s=world.now_s))
    world.pass_time(10.1)
    assert world.rejection("r1") is reason
    assert world.waiting() == ["r2"]

    world.feed(events.BackendSignalled("a", Signal.UNDRAIN))
    world.feed(events.BackendSignalled("a", Signal.ANSWERED))

    assert [claim.request_id for claim in world.claims.values()] == ["r2"]


def test_what_waits_for_a_model_that_vanishes_is_refused() -> None:
    world = world_of("a")
    world.join(backend("b", models=[OTHER_MODEL]))
    world.run(request("r1", model=OTHER_MODEL))
    world.arrive(request("r2", model=OTHER_MODEL))

    world.feed(events.BackendChanged(backend("b", limit=2, models=["new:latest"])))
    world.arrive(request("r3", model=OTHER_MODEL))

    assert world.waiting() == []
    assert world.rejection("r3") is Rejection.UNKNOWN_MODEL


def test_a_backend_drained_while_a_claim_is_under_way_gets_nothing() -> None:
    world = world_of("a", "b")
    (claim,) = of_type(world.arrive(request("r1")), effects.Claim)
    world.feed(events.DrainRequested(claim.backend_id))

    done = world.answer_claim(claim.nonce)

    assert of_type(done, effects.Dispatch) == []
    assert of_type(done, effects.Release) == [effects.Release("a", claim.nonce)]
    assert claimed(done) == [("r1", "b")]


@pytest.mark.parametrize("stage", ["waiting", "claiming"])
def test_an_end_that_is_told_too_early_still_ends_the_request(stage: str) -> None:
    world = world_of("a")
    if stage == "waiting":
        world.run(request("r0"))
    world.arrive(request("r1"))
    del world.open["r1"]

    world.feed(events.RequestEnded("r1", Outcome.REJECTED))
    world.answer_claims()

    assert "r1" not in world.running
    assert all(lease.request_id != "r1" for lease in world.scheduler.running())


def test_events_about_the_unknown_are_ignored() -> None:
    world = world_of("a")
    for event in (
        events.ClaimGranted("?", "?"),
        events.ClaimRefused("?", "?", 0),
        events.AnswerStarted("?"),
        events.AttemptFailed("?", Failure.RESET),
        events.RequestEnded("?", Outcome.DONE),
        events.ClientLeft("?"),
        events.TimePassed(),
    ):
        assert world.feed(event) == ()


def test_when_stopping_nothing_new_is_taken_but_what_waits_is_served() -> None:
    world = world_of("a")
    world.run(request("r1"))
    world.arrive(request("r2"))
    world.feed(events.StoppingAnnounced())
    world.arrive(request("r3"))
    assert world.rejection("r3") is Rejection.SHUTTING_DOWN

    assert claimed(world.end("r1")) == [("r2", "a")]


def test_a_policy_is_in_force_at_once() -> None:
    world = world_of("a", "b", limit=8)
    world.policy = Policy(version=2, active_ms=0.0, retry_window_s=5.0, completions_window_s=5.0)
    world.feed(events.PolicyChanged(world.policy))

    (candidate, _) = world.run(request("r1")).decision.ranking

    assert world.running["r1"].decision.policy_version == 2
    assert candidate.cost_ms == 0.0


def test_a_request_for_several_seats_does_not_starve() -> None:
    world = world_of("a", limit=2, policy=Policy(overtake_s=5.0))
    for number in range(2):
        world.run(request(f"single{number}"))
    world.arrive(request("large", seats=2, arrived_s=world.now_s))
    for number in range(2, 100):
        world.arrive(request(f"single{number}", arrived_s=world.now_s))
        world.end(next(iter(world.running)))
        world.answer_claims()
        if "large" in world.running:
            break
        world.pass_time(0.5)

    assert "large" in world.running
    assert number > 8, "single ones may overtake it for a while"
    world.end("large")
    world.answer_claims()
    assert len(world.running) == 2, "nothing is kept any more"


def test_a_wake_up_is_asked_for_only_when_it_is_earlier_than_the_last() -> None:
    world = world_of("a")
    world.run(request("r1"))

    assert of_type(world.arrive(request("r2", arrived_s=100.0, wait_s=50.0)), effects.WakeAt) == [effects.WakeAt(150.0)]
    assert of_type(world.arrive(request("r3", arrived_s=100.0, wait_s=60.0)), effects.WakeAt) == []
    assert of_type(world.arrive(request("r4", arrived_s=100.0, wait_s=40.0)), effects.WakeAt) == [effects.WakeAt(140.0)]
    world.now_s = 145.0
    assert of_type(world.feed(events.TimePassed()), effects.WakeAt) == [effects.WakeAt(150.0)]


def test_a_freed_seat_costs_one_decision_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Policy(max_waiting=1000))
    for number in range(64):
        world.join(backend(f"b{number:02}", limit=1))
    scheduler = world.scheduler
    for number in range(64):
        world.run(request(f"r{number}"))
    for number in range(1000):
        scheduler.handle(events.RequestArrived(request(f"w{number}")), world.now_s)
    decisions = 0

    def counted(snapshot: Snapshot, asked: Request, *more: Any) -> Decision:
        nonlocal decisions
        decisions += 1
        return decide(snapshot, asked, *more)

    monkeypatch.setattr("scheduler.matching.decide", counted)
    for number in range(10):
        done = scheduler.handle(events.RequestEnded(f"r{number}", Outcome.DONE), world.now_s)
        assert [claim.request_id for claim in of_type(done, effects.Claim)] == [f"w{number}"]

    assert decisions == 10
    scheduler.handle(events.BackendSignalled("b50", Signal.MISSED), world.now_s)
    assert decisions == 10, "no backend has room, so nobody is asked"
    assert scheduler.health("b50") is Health.SUSPECT


SCRIPT = """
from scheduler.domain import Failure
from tests.scheduler.world import World, backend, request, OTHER_MODEL
world = World()
for name in "delta alpha charlie bravo".split():
    world.join(backend(name, limit=2, models=("qwen3:latest", OTHER_MODEL)))
for number in range(30):
    world.arrive(request(f"r{number}", seats=number % 2 + 1, model=OTHER_MODEL if number % 3 else None))
    if number % 4 == 0:
        world.answer_claims()
for request_id in list(world.running):
    world.fail(request_id, Failure.RESET)
world.exit("alpha")
world.pass_time(50.0)
world.leave("bravo")
world.answer_claims()
world.pass_time(400.0)
print([done for _, _, done in world.history])
"""


def test_the_hash_seed_of_the_interpreter_changes_nothing() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert "Dispatch" in printed[0]
    assert printed[0] == printed[1]


def test_a_timer_that_goes_off_early_is_set_again() -> None:
    world = world_of("a", limit=1)
    world.run(request("r1"))
    world.arrive(request("r2"))
    due_s = world.wake_at_s
    assert due_s < float("inf")

    early = world.scheduler.handle(events.TimePassed(), due_s - 0.0005)

    assert of_type(early, effects.WakeAt) == [effects.WakeAt(due_s)]


def test_the_outlook_of_a_request_that_waits() -> None:
    world = world_of("a", policy=Policy(completions_window_s=20.0))
    for number in range(20):
        world.run(request(f"done{number}"))
        world.end(f"done{number}")
    world.now_s += 9.9
    world.run(request("r1"))
    for number in (2, 3):
        world.arrive(request(f"r{number}"))
    world.arrive(request("r4", priority="high"))

    for request_id in ("r1", "nobody"):
        assert world.scheduler.outlook_of(request_id, world.now_s) is None, "it runs, or is not known"
    for request_id, place, wait_s in (("r2", 2, 1.0), ("r3", 3, 1.5), ("r4", 1, 0.5)):
        found = world.scheduler.outlook_of(request_id, world.now_s) or (0, None)
        assert found[0] == place
        assert found[1] == pytest.approx(wait_s, rel=0.01)


def test_a_prompt_that_must_not_be_computed_beside_others_goes_when_their_answers_begin() -> None:
    world = world_of("a", limit=4, policy=Policy(max_prefills=1, hold_s=0.0))
    world.run(talk("r1", (1, 1000)))
    world.arrive(talk("r2", (2, 1000)))
    assert world.waiting() == ["r2"]

    assert claimed(world.start_answer("r1")) == [("r2", "a")]
