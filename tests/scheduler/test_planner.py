"""Loads for what waits."""

import pytest

from scheduler import effects, events, planner
from scheduler.domain import Operation, Outcome, Rejection, Residency, SlotState
from scheduler.health import Signal
from scheduler.load_start import FIRST_LOOK_S
from scheduler.planner import OTHERS_FIRST_S
from scheduler.runner import Runner
from tests.scheduler.cards import POLICY, THIRD, ask, busy, cards, loading, ollama, rejected, under_way
from tests.scheduler.world import MODEL, OTHER_MODEL, World, backend, claimed, of_type, request


def test_a_model_that_is_nowhere_is_loaded_where_nothing_has_to_go() -> None:
    world = cards(a=OTHER_MODEL, b="")

    assert loading(ask(world, "r")) == [("b", MODEL, ())]
    assert world.waiting() == ["r"]
    assert world.view("b").loading == MODEL

    assert claimed(world.loads.end(under_way(world).nonce)) == [("r", "b")]
    assert world.view("b").loading == ""


def test_one_load_serves_all_that_wait_for_it() -> None:
    world = cards(a="", b="")

    done = ask(world, "r1") + ask(world, "r2") + ask(world, "r3", runner=Runner(2048)) + world.pass_time(0.5)

    [load] = of_type(done, effects.Load)
    assert load.runner == Runner(), "v1 and native clients share it"
    assert len(claimed(world.loads.end(load.nonce))) == 2, "as many as there is room for"


def test_a_larger_context_is_loaded_as_it_was_asked_for_and_told() -> None:
    world = cards(a="")
    [load] = of_type(ask(world, "r", runner=Runner(8192), keep_alive_s=600.0), effects.Load)
    assert (load.runner, load.keep_alive_s, load.embeds) == (Runner(8192), 600.0, False)

    world.answer_claims()

    assert world.running["r"].runner == Runner(8192)
    busy(world, "small", runner=Runner(2048))
    assert world.running["small"].runner == Runner(8192), "it runs on the larger one as it is"


def test_a_model_that_shall_go_at_once_is_loaded_long_enough_for_its_request() -> None:
    [load] = of_type(ask(cards(a=""), "r", keep_alive_s=0.0), effects.Load)
    assert load.keep_alive_s is None


def test_a_model_that_only_embeds_is_loaded_by_an_embedding() -> None:
    world = World(POLICY)
    world.join(ollama("a", embeds_only=frozenset({MODEL})))
    [load] = of_type(ask(world, "r", operation=Operation.EMBED), effects.Load)
    assert load.embeds


@pytest.mark.parametrize("operation", [Operation.LOAD, Operation.CHAT])
def test_a_client_that_only_wants_it_loaded_is_answered_once_it_is(operation: Operation) -> None:
    world = cards(a="")
    assert loading(ask(world, "r", operation=operation, seats=0)) == [("a", MODEL, ())]
    assert "r" not in world.running

    world.answer_claims()

    assert "r" in world.running


def test_who_wants_it_unloaded_and_who_wants_a_cloud_model_wait_for_nothing() -> None:
    world = World(POLICY)
    world.join(ollama("a"))
    world.join(ollama("b", cloud=True))

    done = ask(world, "r1", operation=Operation.UNLOAD, seats=0)
    done += ask(world, "r2", "big:cloud", seats=0, cloud=True)

    assert world.running.keys() == {"r1", "r2"}
    assert world.running["r2"].backend_id == "b"
    assert loading(done) == []


def test_without_a_backend_for_it_a_cloud_model_is_not_known() -> None:
    world = cards(a="")
    ask(world, "r", "big:cloud", seats=0, cloud=True)
    refused = rejected(world, "r")
    assert refused is not None
    assert refused.rejection is Rejection.UNKNOWN_MODEL
    assert "cloud" in refused.detail


# What goes for it


def test_what_is_not_asked_for_goes_at_once() -> None:
    world = cards(a=OTHER_MODEL)
    assert loading(ask(world, "r")) == [("a", MODEL, (OTHER_MODEL,))]
    assert world.view("a").closing == {OTHER_MODEL}


def test_the_backend_is_chosen_where_least_demand_loses_its_place() -> None:
    world = cards(a=OTHER_MODEL, b=THIRD, c=OTHER_MODEL)
    for number in range(4):
        busy(world, f"o{number}", OTHER_MODEL)
        world.end(f"o{number}")
    busy(world, "t", THIRD)
    world.end("t")
    world.pass_time(3.0)

    [(place, model, unload)] = loading(ask(world, "r"))

    assert (model, unload) == (MODEL, (OTHER_MODEL,)), "there are two of it, and one of the third"
    assert place in ("a", "c")


def test_what_is_in_use_never_goes() -> None:
    """It gets nothing new, finishes what it has, and then goes; claims on their way count."""
    world = cards(a=OTHER_MODEL)
    busy(world, "o1", OTHER_MODEL)
    ask(world, "o2", OTHER_MODEL)

    done = ask(world, "r") + world.pass_time(2.5)
    assert loading(done) == []
    assert world.view("a").closing == {OTHER_MODEL}, "it waited as long as a load takes"
    ask(world, "o3", OTHER_MODEL)
    assert world.waiting() == ["r", "o3"]

    assert loading(world.end("o1")) == []
    [nonce] = world.claims
    world.answer_claim(nonce)
    assert "o2" in world.running, "what was claimed before still runs"
    assert loading(world.end("o2")) == [("a", MODEL, (OTHER_MODEL,))]


def test_what_was_only_decided_is_given_up_when_nobody_wants_it_any_more() -> None:
    world = cards(a=OTHER_MODEL)
    busy(world, "o1", OTHER_MODEL)
    ask(world, "r")
    world.pass_time(2.5)
    assert world.scheduler.loads_under_way()

    world.client_leaves("r")
    world.pass_time(0.5)

    assert not world.scheduler.loads_under_way()
    busy(world, "o2", OTHER_MODEL)


def test_models_take_turns_on_one_card_and_stay_for_a_while() -> None:
    world = cards(a="")
    busy_until, served = world.now_s + 120.0, {MODEL: 0, OTHER_MODEL: 0}
    for number in range(600):
        if world.now_s >= busy_until:
            break
        for model in served:
            ask(world, f"{model}{number}", model)
        while world.claims:
            world.answer_claim(next(iter(world.claims)))
        for nonce in list(world.loads.under_way):
            world.loads.end(nonce)
        world.pass_time(0.4)
        for name in list(world.running):
            served[name.rstrip("0123456789")] += 1
            world.end(name)

    assert min(served.values()) > 30, served
    assert 4 <= world.loads.count <= 13, "each stays ten seconds"


def test_busy_slots_of_somebody_else_keep_a_model() -> None:
    world = cards(a="")
    world.loads.put("a", Residency(OTHER_MODEL, 4096, slots=(SlotState(0, True),)))
    world.look("a")
    assert loading(ask(world, "r")) == []

    world.loads.put("a", Residency(OTHER_MODEL, 4096, slots=(SlotState(0, False),)))

    assert loading(world.look("a") + world.pass_time(0.5)) == [("a", MODEL, (OTHER_MODEL,))]


def test_other_options_for_the_same_weights_replace_what_is_there() -> None:
    world = World(POLICY)
    world.loads.put("a", Residency("copy:latest", 4096, weights="w"))
    world.join(ollama("a", models=[MODEL, "copy:latest"], weights={MODEL: "w", "copy:latest": "w"}))
    busy(world, "r1")
    assert loading(()) == [], "another name for it"
    done = ask(world, "r2", runner=Runner(8192))
    assert loading(done) == [], "in use"
    done = world.end("r1") + world.pass_time(3.0)

    assert loading(done) == [("a", MODEL, ())], "the engine itself ends the runner of the same weights"
    assert world.view("a").closing == {"copy:latest"}
    world.answer_claims()
    assert [one.model for one in world.view("a").residencies] == [MODEL]


# Further copies


def test_a_further_copy_is_loaded_on_an_empty_card_as_soon_as_something_waits() -> None:
    world = cards(a=MODEL, b="")
    for number in range(2):
        busy(world, f"r{number}")
    assert loading(ask(world, "late")) == [("b", MODEL, ())]
    assert claimed(world.loads.end(under_way(world).nonce)) == [("late", "b")]


def test_a_further_copy_takes_no_place_of_the_only_one_of_another_model() -> None:
    world = cards(a=MODEL, b=OTHER_MODEL)
    busy(world, "o", OTHER_MODEL)
    world.end("o")
    for number in range(3):
        ask(world, f"r{number}")
    while world.claims:
        world.answer_claim(next(iter(world.claims)))

    assert loading(world.pass_time(7.0)) == []
    assert world.scheduler.why_not_loaded(MODEL) == {"b": "llama3 is asked for, and loaded nowhere else"}
    assert loading(world.pass_time(90.0)) == [("b", MODEL, (OTHER_MODEL,))], "until its line is long, or nobody asks"


def test_a_further_copy_takes_the_place_of_a_copy_of_what_is_asked_for_less() -> None:
    world = cards(a=MODEL, b=OTHER_MODEL, c=OTHER_MODEL)
    busy(world, "o", OTHER_MODEL)
    world.end("o")
    for number in range(8):
        ask(world, f"r{number}")

    [(place, model, unload)] = loading(world.pass_time(30.0))

    assert (place in "bc", model, unload) == (True, MODEL, (OTHER_MODEL,))


def test_slots_of_its_own_bound_what_runs_on_a_model() -> None:
    world = cards(a="", limit=4)
    world.loads.put("a", Residency(MODEL, 4096, slots=(SlotState(0, False), SlotState(1, False))))
    world.look("a")
    for number in range(4):
        ask(world, f"r{number}")
    world.answer_claims()

    assert len(world.running) == 2
    assert world.waiting() == ["r2", "r3"]
    world.end("r0")
    world.answer_claims()
    assert len(world.running) == 2


def test_a_request_for_more_seats_than_a_model_has_slots_runs_alone() -> None:
    world = cards(a="", limit=4)
    world.loads.put("a", Residency(MODEL, 4096, slots=(SlotState(0, False),)))
    world.look("a")
    busy(world, "one")
    ask(world, "three", seats=3)
    assert world.waiting() == ["three"]

    world.end("one")
    world.answer_claims()

    assert world.running.keys() == {"three"}


def test_a_llama_server_that_has_the_model_is_a_copy_of_it() -> None:
    world = cards(a="")
    world.join(backend("z", limit=1))
    busy(world, "r1")
    assert world.running["r1"].backend_id == "z"
    assert loading(ask(world, "r2")) == [("a", MODEL, ())], "it waits, and a card is empty"


def test_how_long_loads_take_is_learned() -> None:
    world = cards(a="", b="")
    ask(world, "r")
    load = under_way(world)
    world.loads.end(load.nonce)
    assert world.scheduler.outlook.load_times.ms("b", MODEL, 9.0) == 1000.0


def test_who_ends_before_its_model_is_there_leaves_it_loaded() -> None:
    world = cards(a="")
    ask(world, "r")
    world.client_leaves("r")
    world.loads.end(under_way(world).nonce)
    busy(world, "next")
    world.end("next", Outcome.DONE)


def test_a_fleet_without_such_engines_is_never_woken_for_loads() -> None:
    world = World(POLICY)
    world.join(backend("a", limit=1))
    ask(world, "r1")
    ask(world, "r2")
    before = len(world.history)
    world.pass_time(100.0)
    assert len(world.history) - before <= 3


def test_other_proxies_load_for_their_own_requests_first() -> None:
    from scheduler.news import Hello, TicketWaits
    from scheduler.telling import asked_of

    world = cards(a="")
    wanted = request("theirs", model=MODEL, arrived_s=world.now_s)
    world.feed(events.NewsHeard("two", Hello()))
    done = world.feed(events.NewsHeard("two", TicketWaits(asked_of(wanted, world.now_s))))
    done += world.pass_time(OTHERS_FIRST_S - 0.2)
    assert loading(done) == []

    assert loading(world.pass_time(1.0)) == [("a", MODEL, ())], "they hang, perhaps"


def test_it_does_not_look_again_at_each_event() -> None:
    """With hundreds of requests before a full fleet each event would cost milliseconds."""
    world = cards(a=MODEL, limit=1)
    start = world.scheduler._planner._start
    looks = 0
    scene = start.scene

    def counted(*args: object) -> object:
        nonlocal looks
        looks += 1
        return scene(*args)  # type: ignore[arg-type]

    start.scene = counted  # type: ignore[assignment,method-assign]
    for number in range(200):
        ask(world, f"r{number}")
    assert looks <= 10


def test_what_waits_for_something_new_is_looked_at_at_once_and_the_rest_in_a_moment() -> None:
    world = cards(a="", b="")
    ask(world, "r1")
    ask(world, "r2")
    looked_s = world.scheduler._planner._last_s
    assert looked_s < world.now_s, "somebody waits for that already"
    assert loading(ask(world, "o", OTHER_MODEL)) == [("b", OTHER_MODEL, ())]


def test_with_many_backends_all_that_waits_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PAIRS_AT_ONCE", 3)
    world = World(POLICY)
    for name in "abc":
        world.join(ollama(name), Signal.STARTED, Signal.ANSWERED)
    for number, model in enumerate((MODEL, OTHER_MODEL, THIRD)):
        assert loading(ask(world, f"r{number}", model)) == [], "nothing is known of them yet"

    done = world.pass_time(FIRST_LOOK_S + planner.TICK_S)

    assert {model for _, model, _ in loading(done)} == {MODEL, OTHER_MODEL, THIRD}
