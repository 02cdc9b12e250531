"""Beginning loads: what stands in the way is told."""

import pytest

from scheduler import events
from scheduler.domain import Outcome, Residency
from scheduler.health import Signal
from scheduler.load_start import FIRST_LOOK_S
from scheduler.policy import Policy
from scheduler.residencies import loads
from tests.scheduler.cards import POLICY, THIRD, ask, busy, cards, loading, ollama, under_way
from tests.scheduler.world import MODEL, OTHER_MODEL, World


def test_one_load_at_a_time_at_each_backend() -> None:
    world = cards(a="")
    ask(world, "r1")
    assert loading(ask(world, "r2", OTHER_MODEL) + world.pass_time(5.0)) == []
    assert world.scheduler.why_not_loaded(OTHER_MODEL) == {"a": "another model is being loaded there"}
    assert [load.model for load in world.scheduler.loads_under_way()] == [MODEL]


def test_nothing_is_loaded_where_something_failed_just_now() -> None:
    world = cards(a=THIRD, policy=Policy(cool_down_s=5.0))
    busy(world, "x", THIRD)
    world.end("x", Outcome.TRUNCATED)
    assert loading(ask(world, "r") + world.pass_time(4.0)) == []
    assert world.scheduler.why_not_loaded(MODEL) == {"a": "it failed just now"}
    assert loading(world.pass_time(2.0)) == [("a", MODEL, (THIRD,))]


def test_what_is_about_to_be_unloaded_is_not_loaded_anew_before() -> None:
    world = cards(a=MODEL)
    busy(world, "x", MODEL)
    world.feed(events.UnloadWanted(MODEL))
    assert loading(ask(world, "r") + world.pass_time(5.0)) == []
    assert world.scheduler.why_not_loaded(MODEL) == {"a": "qwen3 is about to be unloaded"}
    world.end("x")
    assert loading(world.pass_time(2.0)) == [("a", MODEL, ())]


def test_what_the_engine_said_of_a_failure_is_told() -> None:
    world = cards(a="", b=OTHER_MODEL)
    world.feed(events.PinsChanged((events.Pin(OTHER_MODEL, "b"),)))
    ask(world, "r")
    world.loads.end(under_way(world).nonce, loaded=False, detail="no such file")
    world.look("a")
    world.pass_time(0.5)
    assert world.scheduler.why_not_loaded(MODEL) == {"a": "no such file", "b": "llama3 is pinned"}
    world.client_leaves("r")
    ask(world, "o", THIRD)
    assert world.scheduler.why_not_loaded(MODEL) == {}


def test_loads_elsewhere_wait_for_a_look_too() -> None:
    world = World(POLICY)
    world.join(ollama("a"), Signal.STARTED, Signal.ANSWERED)
    world.join(ollama("b"))
    assert loading(ask(world, "r") + world.pass_time(FIRST_LOOK_S - 1.0)) == []
    assert len(loading(world.pass_time(2.0))) == 1


@pytest.mark.parametrize("number", [1, 3])
def test_the_scene_counts_copies(number: int) -> None:
    world = World(POLICY)
    for name in "abc"[:number]:
        world.loads.put(name, Residency(MODEL, 4096))
        world.join(ollama(name))
    busy(world, "r")
    scene = world.scheduler._planner._start.scene((), world.now_s)
    [(wish, work_ms)] = scene.demand
    assert (wish.model, scene.copies[wish]) == (MODEL, number)
    assert work_ms > 1.0
    assert all(loads(view.backend) for view in scene.views)


def test_what_an_operator_had_loaded_stays_for_a_while() -> None:
    world = cards(a="")
    world.feed(events.LoadWanted(MODEL))
    world.answer_claims()
    assert loading(ask(world, "o", OTHER_MODEL)) == []

    assert loading(world.pass_time(POLICY.idle_residence_s + 0.6)) == [("a", OTHER_MODEL, (MODEL,))]
