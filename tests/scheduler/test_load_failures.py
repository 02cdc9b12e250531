"""Loads that go wrong, and backends that get none."""

import itertools

import pytest

from scheduler import effects, events
from scheduler.domain import Outcome, Rejection, Residency
from scheduler.health import Signal
from tests.scheduler.cards import POLICY, THIRD, ask, busy, cards, loading, ollama, rejected, under_way
from tests.scheduler.world import MODEL, OTHER_MODEL, World, claimed, of_type


def test_a_load_that_failed_is_tried_elsewhere_and_then_its_requests_are_refused() -> None:
    world = cards(a="", b="")
    ask(world, "r1")
    first = under_way(world)
    done = world.loads.end(first.nonce, loaded=False, detail="CUDA error: out of memory")
    assert [look.backend_id for look in of_type(done, effects.Look)] == [first.backend_id]
    second = under_way(world)
    assert {first.backend_id, second.backend_id} == {"a", "b"}

    world.loads.end(second.nonce, loaded=False, detail="llama runner process has terminated")

    refused = rejected(world, "r1")
    assert refused is not None
    assert (refused.rejection, refused.detail) == (Rejection.LOAD_FAILED, "llama runner process has terminated")
    ask(world, "r2")
    assert world.rejection("r2") is Rejection.LOAD_FAILED, "it is not tried again just now"
    for backend_id in "ab":
        world.look(backend_id)
    world.pass_time(POLICY.load_retry_s)
    assert loading(ask(world, "r3"))


def test_pauses_after_failed_loads_grow() -> None:
    world = cards(a="")
    pauses = []
    for number in range(4):
        while not loading(ask(world, f"r{number}.{world.now_s}")):
            world.look("a")
            world.pass_time(0.5)
        began_s = world.now_s
        world.loads.end(under_way(world).nonce, loaded=False)
        while not world.loads.under_way:
            world.look("a")
            world.pass_time(0.5)
            ask(world, f"x{world.now_s}")
        pauses.append(world.now_s - began_s)
        world.loads.end(under_way(world).nonce, loaded=False)
        world.look("a")

    assert all(later >= pause - 0.1 for pause, later in itertools.pairwise(pauses))
    assert pauses[0] == pytest.approx(POLICY.load_retry_s, abs=1.0)
    assert pauses[-1] <= 16 * POLICY.load_retry_s + 2.0


def test_a_load_that_is_another_proxy_s_is_no_failure() -> None:
    world = cards(a="")
    ask(world, "r")
    world.loads.end(under_way(world).nonce, loaded=False, refused=True)

    assert world.waiting() == ["r"]
    assert loading(world.pass_time(0.4)) == []
    assert loading(world.pass_time(2.0)) == [("a", MODEL, ())]


@pytest.mark.parametrize("how", ["exited", "restarted", "left"])
def test_the_loads_of_an_engine_that_is_gone_are_void(how: str) -> None:
    world = cards(a="", b="")
    ask(world, "r")
    load = under_way(world)
    if how == "exited":
        world.exit(load.backend_id)
    elif how == "restarted":
        world.join(ollama(load.backend_id, epoch=2))
    else:
        world.leave(load.backend_id)

    assert load.nonce not in world.loads.under_way
    ended = events.LoadEnded(load.backend_id, MODEL, load.nonce, loaded=True)
    world.feed(ended)
    assert all(view.residencies == () for view in world.scheduler.snapshot(world.now_s).backends)
    world.pass_time(1.0)
    world.answer_claims()
    assert "r" in world.running


@pytest.mark.parametrize("how", ["drained", "down", "cooling"])
def test_what_takes_no_requests_gets_no_loads(how: str) -> None:
    world = cards(a="", b=OTHER_MODEL)
    if how == "drained":
        world.feed(events.DrainRequested("a"))
    elif how == "down":
        world.exit("a")
    else:
        world.loads.put("a", Residency(THIRD, 4096))
        world.look("a")
        busy(world, "x", THIRD)
        world.end("x", Outcome.TRUNCATED)
    assert loading(ask(world, "r") + world.pass_time(0.2)) == [("b", MODEL, (OTHER_MODEL,))]


def test_before_the_first_look_nothing_is_loaded_blindly() -> None:
    world = World(POLICY)
    world.join(ollama("a"), Signal.STARTED, Signal.ANSWERED)
    world.join(ollama("b"))
    world.loads.put("a", Residency(MODEL, 4096))
    assert loading(ask(world, "r") + world.pass_time(1.0)) == []

    assert claimed(world.look("a")) == [("r", "a")]


def test_nor_is_a_look_that_never_comes_waited_for_for_ever() -> None:
    world = World(POLICY)
    world.join(ollama("a"), Signal.STARTED, Signal.ANSWERED)
    assert loading(ask(world, "r") + world.pass_time(4.0)) == []
    assert loading(world.pass_time(2.0)) == [("a", MODEL, ())]


def test_who_waited_too_long_hears_why_its_model_was_not_loaded() -> None:
    world = cards(a=OTHER_MODEL)
    world.feed(events.PinsChanged((events.Pin(OTHER_MODEL, "a"),)))
    ask(world, "r", wait_s=5.0)
    world.pass_time(6.0)

    refused = rejected(world, "r")
    assert refused is not None
    assert refused.rejection is Rejection.WAITED_TOO_LONG
    assert "a: llama3 is pinned" in refused.detail


def test_a_request_whose_model_went_while_its_seat_was_claimed_waits_again() -> None:
    world = cards(a=MODEL)
    ask(world, "r")
    world.loads.put("a")
    world.look("a")

    [nonce] = world.claims
    done = world.answer_claim(nonce)

    assert of_type(done, effects.Dispatch) == []
    assert [release.nonce for release in of_type(done, effects.Release)] == [nonce]
    assert loading(done + world.pass_time(0.5)) == [("a", MODEL, ())]
