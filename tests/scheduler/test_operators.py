"""Pins, and single loads and unloads that operators want."""

import pytest

from scheduler import effects, events
from scheduler.domain import Residency
from scheduler.events import LoadWanted, Pin, PinsChanged, UnloadWanted
from scheduler.operators import WANTED_S
from scheduler.runner import Runner
from tests.scheduler.cards import POLICY, THIRD, ask, busy, cards, loading, ollama, under_way
from tests.scheduler.world import MODEL, OTHER_MODEL, World, of_type


def pin(world: World, *pins: Pin) -> tuple[effects.Effect, ...]:
    return world.feed(PinsChanged(pins))


def test_a_pinned_model_is_loaded_for_ever_and_stays() -> None:
    world = cards(a="", b=OTHER_MODEL)
    done = pin(world, Pin(MODEL, "b"))
    [load] = of_type(done, effects.Load)
    assert (load.backend_id, load.keep_alive_s, load.unload) == ("b", -1.0, (OTHER_MODEL,))
    world.answer_claims()
    assert world.scheduler.pins == (Pin(MODEL, "b"),)

    world.pass_time(300.0)
    ask(world, "o", OTHER_MODEL)
    world.answer_claims()

    assert world.running["o"].backend_id == "a"
    assert [one.model for one in world.view("b").residencies] == [MODEL]


def test_a_pin_to_no_backend_keeps_one_copy_wherever() -> None:
    world = cards(a=MODEL, b=MODEL)
    assert loading(pin(world, Pin(MODEL))) == []
    [(place, _, _)] = loading(ask(world, "o", OTHER_MODEL))
    world.answer_claims()

    ask(world, "t", THIRD)
    world.end("o")
    world.pass_time(30.0)

    kept = {"a": "b", "b": "a"}[place]
    assert [one.model for one in world.view(kept).residencies] == [MODEL]


def test_a_pinned_model_takes_no_place_of_one_in_use_or_pinned() -> None:
    world = cards(a=OTHER_MODEL)
    busy(world, "o", OTHER_MODEL)
    assert loading(pin(world, Pin(MODEL)) + world.pass_time(60.0)) == []
    assert world.view("a").closing == set()
    assert world.scheduler.why_not_loaded(MODEL) == {"a": "llama3 is in use"}

    assert loading(world.end("o") + world.pass_time(0.1)) == [("a", MODEL, (OTHER_MODEL,))]
    world.answer_claims()
    pin(world, Pin(MODEL), Pin(OTHER_MODEL))
    world.pass_time(10.0)
    assert world.scheduler.why_not_loaded(OTHER_MODEL) == {"a": "qwen3 is pinned"}


def test_a_pinned_model_that_would_expire_is_told_to_stay_once() -> None:
    world = cards(a="")
    world.loads.put("a", Residency(MODEL, 4096, expires_at_unix_s=1.0))
    world.look("a")
    [load] = of_type(pin(world, Pin(MODEL, "a")), effects.Load)
    assert (load.runner, load.keep_alive_s, load.unload) == (Runner(4096), -1.0, ())
    world.loads.end(load.nonce)
    busy(world, "r")
    world.look("a")
    assert loading(world.pass_time(60.0)) == []


def test_a_pinned_model_is_told_to_stay_once_its_backend_can_be_told() -> None:
    world = World(POLICY)
    world.join(ollama("a", max_loaded=2))
    world.loads.put("a", Residency(MODEL, 4096, expires_at_unix_s=1.0))
    ask(world, "o", OTHER_MODEL)
    other = under_way(world)
    world.look("a")
    assert loading(pin(world, Pin(MODEL, "a"))) == [], "one load at a time"

    done = world.loads.end(other.nonce) + world.pass_time(1.0)

    assert loading(done) == [("a", MODEL, ())]


def test_a_pin_that_is_lifted_keeps_nothing() -> None:
    world = cards(a="")
    pin(world, Pin(MODEL, "a"))
    world.answer_claims()
    pin(world)
    assert loading(ask(world, "o", OTHER_MODEL) + world.pass_time(1.0)) == [("a", OTHER_MODEL, (MODEL,))]


@pytest.mark.parametrize("backend_id", [None, "b"])
def test_a_load_that_is_wanted_goes_where_it_suits_or_was_said(backend_id: str | None) -> None:
    world = cards(a="", b=OTHER_MODEL)
    done = world.feed(LoadWanted(MODEL, backend_id, Runner(), 60.0))
    [load] = of_type(done, effects.Load)
    assert (load.backend_id, load.keep_alive_s) == (backend_id or "a", 60.0)
    assert loading(world.loads.end(load.nonce) + world.pass_time(30.0)) == [], "it is done once"


def test_what_is_there_already_is_not_loaded_but_may_be_told_to_stay() -> None:
    world = cards(a=MODEL)
    assert loading(world.feed(LoadWanted(MODEL))) == []
    [load] = of_type(world.feed(LoadWanted(MODEL, None, Runner(), -1.0)), effects.Load)
    assert (load.keep_alive_s, load.unload) == (-1.0, ())
    world.loads.end(load.nonce)
    assert loading(world.pass_time(10.0)) == []


def test_a_load_that_is_wanted_waits_for_what_is_in_use() -> None:
    world = cards(a=OTHER_MODEL)
    busy(world, "o", OTHER_MODEL)
    assert loading(world.feed(LoadWanted(MODEL))) == []
    assert world.view("a").closing == {OTHER_MODEL}
    assert loading(world.end("o")) == [("a", MODEL, (OTHER_MODEL,))]


def test_a_load_that_is_wanted_and_fails_is_tried_elsewhere_and_then_forgotten() -> None:
    world = cards(a="", b="")
    world.feed(LoadWanted(MODEL))
    first = under_way(world)
    world.loads.end(first.nonce, loaded=False)
    second = under_way(world)
    assert second.backend_id != first.backend_id
    world.loads.end(second.nonce, loaded=False)
    for backend_id in "ab":
        world.look(backend_id)
    assert loading(world.pass_time(60.0)) == []


def test_two_wishes_for_one_place_are_both_done_and_then_it_is_quiet() -> None:
    world = cards(a="")
    world.feed(LoadWanted(MODEL, "a", Runner(), 60.0))
    world.feed(LoadWanted(OTHER_MODEL, "a", Runner(), 60.0))
    world.answer_claims()
    world.pass_time(60.0)
    world.answer_claims()
    assert world.loads.count == 2


def test_what_cannot_be_loaded_is_forgotten_after_a_while() -> None:
    world = cards(a=OTHER_MODEL)
    pin(world, Pin(OTHER_MODEL, "a"))
    world.feed(LoadWanted(MODEL, "a"))
    world.pass_time(WANTED_S + 1.0)
    pin(world)
    assert loading(world.pass_time(5.0)) == []


def test_unloading_waits_until_nothing_runs_on_it_and_lets_nothing_new_on() -> None:
    world = cards(a=MODEL)
    busy(world, "r1")
    done = world.feed(UnloadWanted(MODEL))
    assert of_type(done, effects.Unload) == []
    assert world.view("a").closing == {MODEL}

    done = world.end("r1")

    assert of_type(done, effects.Unload) == [effects.Unload("a", MODEL)]
    assert world.view("a").residencies == ()
    report = world.report("a")
    world.loads.put("a", Residency(MODEL, 4096))
    world.look("a")
    assert world.view("a").residencies == (), "it takes a moment, and looks may still show it"
    assert report.residencies == ()


def test_unloading_is_by_weights_and_where_it_was_said() -> None:
    world = World(POLICY)
    for name in "ab":
        world.loads.put(name, Residency("copy:latest", 4096, weights="w"))
        world.join(ollama(name, models=[MODEL, "copy:latest"], weights={MODEL: "w", "copy:latest": "w"}))
    assert of_type(world.feed(UnloadWanted(MODEL, "b")), effects.Unload) == [effects.Unload("b", "copy:latest")]
    assert of_type(world.feed(UnloadWanted(OTHER_MODEL)), effects.Unload) == []


def test_an_unload_unpins_nothing() -> None:
    world = cards(a=MODEL)
    pin(world, Pin(MODEL, "a"))
    done = world.feed(UnloadWanted(MODEL)) + world.pass_time(1.0)
    assert of_type(done, effects.Unload) == [effects.Unload("a", MODEL)]
    assert loading(done) == [("a", MODEL, ())]


def test_an_engine_that_is_gone_has_nothing_to_unload() -> None:
    world = cards(a=MODEL)
    busy(world, "r1")
    world.feed(UnloadWanted(MODEL))
    world.exit("a")
    world.loads.put("a", Residency(MODEL, 4096))
    world.join(ollama("a", epoch=2))
    assert world.view("a").closing == set()


def test_pins_mean_nothing_where_no_engine_loads() -> None:
    world = World(POLICY)
    assert pin(world, Pin(MODEL)) == ()
    assert world.feed(events.TimePassed()) == ()
