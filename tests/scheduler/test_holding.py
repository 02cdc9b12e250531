"""Waiting for a much better backend while another one has room: when, how long, and that nobody loses by it."""

from typing import Any

import pytest

from scheduler import effects, events
from scheduler.domain import Failure, Rejection
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler.fleet import fleet, say
from tests.scheduler.prompts import Message
from tests.scheduler.world import TICK_S, World, claimed, of_type, talk

LONG: list[Message] = [(1, 30_000)]
"""Seconds to compute on an unknown card."""
MORE: list[Message] = [*LONG, (8, 2), (2, 100)]
"""What goes on from there, in a fraction of that."""


def busy(policy: Policy, *, limit: int = 1) -> World:
    """Backend `a` has the long prompt, and a short answer to it is under way; `b` is idle."""
    world = fleet("a", "b", limit=limit, policy=policy)
    assert say(world, "first", *LONG, max_output_tokens=2).backend_id == "a"
    world.start_answer("first")
    return world


def arrives(world: World, request_id: str = "r", messages: list[Message] = MORE, **more: Any) -> list[str]:
    """Where it goes at once."""
    done = world.arrive(talk(request_id, *messages, arrived_s=world.now_s, **more), messages)
    return [backend_id for _, backend_id in claimed(done)]


@pytest.mark.parametrize(
    ("policy", "messages", "goes"),
    [
        pytest.param({}, MORE, [], id="a-full-backend-has-nearly-all-of-it: wait"),
        pytest.param({"hold_s": 0.0}, MORE, ["b"], id="not-if-nobody-may"),
        pytest.param({"hold_ratio": 0.0}, MORE, ["b"], id="not-if-nothing-is-good-enough"),
        pytest.param({}, [(5, 30_000)], ["b"], id="not-where-nothing-can-be-reused"),
        pytest.param({}, [(1, 100)], ["b"], id="not-for-what-is-computed-in-no-time"),
        pytest.param({}, [(1, 64), (5, 30_000)], ["b"], id="not-for-a-small-part"),
        pytest.param({"prefill_weight": 0.0}, MORE, ["b"], id="not-if-computing-costs-nothing"),
    ],
)
def test_who_holds(policy: dict[str, Any], messages: list[Message], goes: list[str]) -> None:
    world = busy(Policy(**policy))

    assert arrives(world, "r", messages) == goes


def test_a_request_without_a_prompt_never_holds() -> None:
    world = busy(Policy())

    assert claimed(world.arrive(talk("x", (9, 1)))) == [("x", "b")]


def test_it_gets_the_seat_that_it_held_for() -> None:
    world = busy(Policy(hold_s=5.0))
    assert arrives(world) == []

    done = world.end("first", answer=(8, 2))

    assert claimed(done) == [("r", "a")]
    world.answer_claims()
    assert world.running["r"].decision.ranking[0].reused_tokens == pytest.approx(30_000, abs=64)


def test_others_take_the_seat_that_it_leaves() -> None:
    world = busy(Policy())
    arrives(world)

    assert arrives(world, "other", [(5, 300)]) == ["b"]


def test_it_holds_for_a_time_and_then_takes_what_there_is() -> None:
    world = busy(Policy(hold_s=2.0))
    arrives(world)

    assert claimed(world.pass_time(1.9)) == []
    assert claimed(world.pass_time(0.2)) == [("r", "b")]


def test_it_holds_once() -> None:
    world = busy(Policy(hold_s=2.0), limit=1)
    arrives(world)
    arrives(world, "other", [(5, 300)])
    world.answer_claims()
    world.pass_time(2.1)
    assert world.waiting() == ["r"], "now there is no room anywhere"

    done = world.end("other")

    assert claimed(done) == [("r", "b")], "though the conversation's backend is as good as before"


@pytest.mark.parametrize("wait_s", [0.0, 1.5])
def test_who_has_no_time_to_hold_does_not(wait_s: float) -> None:
    world = busy(Policy(hold_s=2.0))

    assert arrives(world, wait_s=wait_s) == ["b"]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"max_waiting": 0}, id="the-line-is-full"),
        pytest.param({"tenant_max_waiting": 1}, id="its-tenant-has-as-many-waiting-as-it-may"),
        pytest.param({"max_expected_wait_s": 0.01}, id="it-would-wait-too-long"),
    ],
)
def test_who_must_not_wait_takes_the_seat_that_there_is_instead_of_being_refused(policy: dict[str, Any]) -> None:
    world = busy(Policy())
    for number in range(3):  # so that there is a pace
        say(world, f"done{number}", (50 + number, 100))
        world.end(f"done{number}")
    if "tenant_max_waiting" in policy:
        assert arrives(world, "before", MORE) == []
    world.policy = Policy(**policy)
    world.feed(events.PolicyChanged(world.policy))

    assert arrives(world) == ["b"]
    assert world.rejection("r") is None


def test_a_policy_without_holding_ends_all_holds() -> None:
    world = busy(Policy(hold_s=100.0))
    arrives(world)

    world.policy = Policy(hold_s=0.0)
    done = world.feed(events.PolicyChanged(world.policy))

    assert claimed(done) == [("r", "b")]


def test_a_hold_ends_with_the_backend_that_it_is_for() -> None:
    world = busy(Policy(hold_s=100.0))
    arrives(world)

    done = world.feed(events.BackendSignalled("a", Signal.EXITED))

    assert claimed(done) == [("r", "b")]


def test_it_holds_for_a_busy_slot_beside_an_idle_one_too() -> None:
    world = busy(Policy(hold_s=100.0), limit=2)
    assert arrives(world) == []

    world.end("first", answer=(8, 2))
    world.answer_claims()

    best = world.running["r"].decision.ranking[0]
    assert (best.backend_id, best.fresh_tokens) == ("a", 100)


def test_a_holding_request_whose_client_leaves_leaves_nothing_behind() -> None:
    world = busy(Policy(hold_s=100.0))
    arrives(world)

    world.client_leaves("r")
    world.end("first")

    assert not len(world.scheduler._deadlines)


def test_a_failed_attempt_does_not_hold_for_the_backend_that_failed_it() -> None:
    world = busy(Policy(hold_s=5.0))
    arrives(world)
    world.end("first", answer=(8, 2))
    world.answer_claims()

    done = world.fail("r", Failure.CONNECT)

    assert claimed(done) == [("r", "b")]


def test_the_end_of_a_hold_is_asked_for() -> None:
    world = busy(Policy(hold_s=2.0))
    world.arrive(talk("r", *MORE, arrived_s=world.now_s), MORE)

    wakes = [wake.at_s for wake in of_type(world.history[-1][2], effects.WakeAt)]

    assert wakes == [pytest.approx(world.now_s + 2.0, abs=2 * TICK_S)]


def test_while_it_holds_its_deadline_is_far() -> None:
    world = busy(Policy(hold_s=2.0))
    arrives(world, wait_s=3.0)
    arrives(world, "other", [(5, 300)])
    world.answer_claims()

    world.pass_time(3.1)

    assert world.rejection("r") is Rejection.WAITED_TOO_LONG, "it held, then there was no room any more"
