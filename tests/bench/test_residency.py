"""The residency benchmark's own parts, in the small: who asks what, what counts as a load and as a needless wait."""

import json
from argparse import Namespace
from math import inf
from pathlib import Path

import pytest

from proxy.emulated import EmulatedEngine
from tests.bench import residency
from tests.bench.processes import ROOT
from tests.bench.residency_clients import CUT, ENDS, LOADED_AFTER, SAYS, Clients, Got, served
from tests.bench.residency_figures import Served, Stay, loads, needless, reloads, waited_for_load, waits
from tests.bench.residency_fleet import AS_ASKED, NGINX, SLOTGATE, Setting, engine_command, slotgate_config, stays_of
from tests.bench.residency_traffic import LONGEST, MIX, ODD, PLAIN, SHORTEST, Kind, asks, body, sine, steady, steps

MODEL, OTHER = "alpha:latest", "beta:latest"
HERE = Stay(0, MODEL, 4096, 10.0)
"""Becomes ready at 10 s at backend 0, and stays."""


def one(number: int, arrived_s: float, started_s: float, ended_s: float = inf, backend: int = 0) -> Served:
    return Served(number, MODEL, 4096, False, arrived_s, backend, started_s, started_s, ended_s)


# Traffic


def test_the_same_seed_gives_the_same_clients_to_every_side() -> None:
    first, again, other = (asks(seed, 300.0, 2.0, ("a", "b"), steady(1, 1), MIX) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [each.number for each in first] == list(range(len(first)))
    assert sorted(first, key=lambda each: each.at_s) == first
    assert 450 < len(first) < 750
    assert all(0 < each.at_s < 300.0 and SHORTEST <= each.tokens <= LONGEST for each in first)


def test_the_mix_has_every_context_on_the_native_api_and_both_others() -> None:
    assert {kind.num_ctx for kind in MIX if kind.path == "/api/chat"} == {None, 2048, 4096, 8192}
    assert {kind.num_ctx for kind in MIX if kind.path == "/api/generate"} == {None, 2048, 4096, 8192}
    assert {kind.path for kind in MIX if kind.path.startswith("/v1/")} == {"/v1/chat/completions", "/v1/messages"}
    assert {each.kind for each in asks(1, 300.0, 2.0, ("a",), steady(1), MIX)} == set(MIX)
    assert set(MIX) < set(ODD)


def test_demand_shifts_as_it_is_told() -> None:
    popularity = steps((9, 1), (1, 9), (9, 1))
    assert [popularity(at) for at in (0.0, 0.3, 0.4, 0.6, 0.7, 1.0)] == [(9, 1), (9, 1), (1, 9), (1, 9), (9, 1), (9, 1)]
    wave = sine(0.1, 0.9)
    assert [pytest.approx(wave(at)[0]) for at in (0.0, 0.25, 0.5, 1.0)] == [0.9, 0.5, 0.1, 0.9]
    made = asks(1, 900.0, 2.0, ("a", "b"), popularity, PLAIN)
    middle = [each.model for each in made if 300 <= each.at_s < 600]
    assert middle.count("b") > 5 * middle.count("a")


@pytest.mark.parametrize("kind", [*ODD])
def test_bodies_say_what_their_kind_of_client_says(kind: Kind) -> None:
    ask = asks(1, 30.0, 2.0, ("a",), steady(1), (kind,))[0]
    said = body(ask)
    assert said == body(ask)
    assert said["stream"] is True
    if kind.path.startswith("/v1/"):
        assert said["max_tokens"] == ask.tokens
        assert "options" not in said
    else:
        assert said["options"]["num_predict"] == ask.tokens
        assert said["options"].get("num_ctx") == kind.num_ctx
        assert dict(kind.more).items() <= said["options"].items()
    assert ("prompt" in said) == (kind.path == "/api/generate")


# Figures


def test_loads_are_counted_when_they_end() -> None:
    stays = [HERE, Stay(1, MODEL, 4096, 20.0, 30.0), Stay(1, OTHER, 4096, 35.0)]
    assert loads(stays) == 3
    assert loads(stays, 20.0) == 2
    assert loads(stays, 10.0, 20.0) == 1


def test_what_is_loaded_onto_an_empty_card_is_no_reload() -> None:
    stays = [HERE, Stay(1, MODEL, 4096, 20.0, 30.0), Stay(1, OTHER, 4096, 35.0), Stay(1, MODEL, 4096, 50.0)]
    assert reloads(stays) == 2
    assert reloads(stays, 40.0) == 1
    assert reloads(stays, to_s=30.0) == 0


def test_who_waited_for_a_load_came_before_it_ended_and_began_after() -> None:
    assert waited_for_load(one(1, 8.0, 10.0), [HERE], 0.1)
    assert not waited_for_load(one(1, 11.0, 12.0), [HERE], 0.1)  # waited for a slot
    assert not waited_for_load(one(1, 8.0, 9.0), [HERE], 0.1)  # ran on what was there before
    assert not waited_for_load(one(1, 8.0, 10.0, backend=1), [HERE], 0.1)
    assert not waited_for_load(one(1, 8.0, 10.0)._replace(least_context=8192), [HERE], 0.1)
    larger = HERE._replace(context=8192)
    assert waited_for_load(one(1, 8.0, 10.0), [larger], 0.1)
    assert not waited_for_load(one(1, 8.0, 10.0)._replace(exactly=True), [larger], 0.1)


def test_a_wait_is_needless_where_a_loaded_model_had_a_free_slot() -> None:
    elsewhere = Stay(1, MODEL, 4096, 0.0)
    late = one(1, 8.0, 10.0)
    busy = one(2, 1.0, 1.0, 20.0, backend=1)
    assert needless([late], [HERE, elsewhere], 1, 0.1) == [late]
    assert needless([late, busy], [HERE, elsewhere], 1, 0.1) == []
    assert needless([late, busy], [HERE, elsewhere], 2, 0.1) == [late]
    assert needless([late, busy], [HERE, elsewhere._replace(model=OTHER)], 2, 0.1) == []
    assert needless([late, busy], [HERE, elsewhere._replace(to_s=8.05)], 2, 0.1) == []
    assert needless([late], [HERE], 1, 0.1) == []


def test_a_slot_must_have_been_free_at_a_stretch() -> None:
    elsewhere = Stay(1, MODEL, 4096, 0.0)
    late = one(1, 8.0, 10.0)
    row = [one(2, 1.0, 1.0, 9.0, backend=1), one(3, 2.0, 9.05, 9.5, backend=1), one(4, 2.0, 9.55, 30.0, backend=1)]
    assert needless([late, *row], [HERE, elsewhere], 1, 0.1) == []
    assert needless([late, *row], [HERE, elsewhere], 1, 0.04) == [late]
    gone = [*row[:2], row[2]._replace(started_s=9.7)]
    assert needless([late, *gone], [HERE, elsewhere], 1, 0.1) == [late]


def test_what_was_cut_counts_with_the_time_until_then() -> None:
    answered, cut = one(1, 0.0, 1.0), one(2, 0.0, inf)
    found = waits([answered, cut], 5.0, 2.0)
    assert (found.mean_s, found.unanswered) == (6.0, 1)
    assert found.p99_s == pytest.approx(10.0, rel=0.02)


# What is read from answers, engines and the command line


@pytest.mark.parametrize(
    "piece",
    [
        b'{"message":{"role":"assistant","content":" Ba"},"done":false}',
        b'{"model":"m","response":"Ba","done":false}',
        b'data: {"choices":[{"delta":{"content":"Ba"}}]}',
        b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Ba"}}',
    ],
)
def test_the_first_token_is_known_in_every_api(piece: bytes) -> None:
    assert SAYS.search(piece)


def test_heads_and_heartbeats_are_no_token() -> None:
    for piece in (
        b'{"message":{"role":"assistant","content":""},"done":false}',
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'data: {"type":"content_block_start","content_block":{"type":"text","text":""}}',
        b'data: {"type":"message_start","message":{"content":[]}}',
        b": heartbeat\n\n",
    ):
        assert not SAYS.search(piece)
    assert ENDS.search(b'"done":true')
    found = LOADED_AFTER.search(b'"total_duration":5,"load_duration":1500000000,')
    assert found is not None
    assert int(found[1]) == 1_500_000_000


def test_a_client_that_says_no_context_gets_the_engines_own() -> None:
    made = asks(1, 60.0, 2.0, ("alpha",), steady(1), MIX)
    for ask in made:
        seen = served(Got(ask, 1.0), 8192, 2, 3.0)
        assert seen.least_context == (ask.kind.num_ctx or 8192)
        assert seen.exactly == ask.kind.path.startswith("/v1/")
        assert (seen.model, seen.backend, seen.started_s, seen.number) == (MODEL, 2, 3.0, ask.number)


async def test_clients_of_all_apis_are_answered_by_a_real_engine_whose_loads_are_seen() -> None:
    clients = asks(1, 40.0, 1.0, ("alpha", "beta"), steady(1, 1), ODD)
    models = ("alpha", "beta")
    async with EmulatedEngine(
        "ollama", models=models, max_loaded=1, load_s=1.0, speed=100.0, answer_tokens=(600, 600), fault_route=True
    ) as engine:
        everybody = Clients(int(engine.url.rpartition(":")[2]), 100.0)
        start_s, end_s = await everybody.run(clients, 1e5)
        stays = list(stays_of(0, engine.state()))
    assert [one.problem for one in everybody.got if one.problem] == []
    assert {one.ask.kind for one in everybody.got} == {ask.kind for ask in clients}
    assert all(one.arrived_s < one.first_s <= one.ended_s for one in everybody.got)
    assert any(one.load_s >= 0.01 for one in everybody.got)
    assert loads(stays, start_s, end_s) == engine.loads.loads > 2
    assert {stay.model for stay in stays} == {MODEL, OTHER}
    assert all(stay.from_s < stay.to_s for stay in stays)


async def test_who_is_not_answered_in_time_is_cut() -> None:
    clients = asks(1, 10.0, 1.0, ("alpha",), steady(1), PLAIN)
    async with EmulatedEngine("ollama", models=("alpha",), load_s=60.0, speed=1.0) as engine:
        everybody = Clients(int(engine.url.rpartition(":")[2]), 100.0)
        await everybody.run(clients, 1.0)
    assert {one.problem for one in everybody.got} == {CUT}
    assert all(one.first_s == one.ended_s == inf for one in everybody.got)


def test_engines_tell_what_was_loaded_when() -> None:
    events = [
        {"at_s": 1.0, "event": "loaded", "model": MODEL, "context": 4096},
        {"at_s": 5.0, "event": "unloaded", "model": MODEL, "context": 4096},
        {"at_s": 6.0, "event": "loaded", "model": OTHER, "context": 8192},
    ]
    assert list(stays_of(3, {"events": events})) == [Stay(3, MODEL, 4096, 1.0, 5.0), Stay(3, OTHER, 8192, 6.0)]


def test_times_of_loads_go_as_fast_as_the_engines(tmp_path: Path) -> None:
    setting = Setting((MODEL, OTHER), 4096, 10.0)
    text = slotgate_config(tmp_path, AS_ASKED, setting, 1, [2, 3, 4, 5])
    assert "load_ms = 500.0\n" in text
    assert text.count("[[backends]]") == 4
    assert "[residency]" in text
    assert "[residency]" not in slotgate_config(tmp_path, SLOTGATE, setting, 1, [2])
    command = engine_command(setting, 7)
    assert {"--speed=10.0", f"--model={OTHER}", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_HOST=127.0.0.1:7"} <= set(command)
    assert not NGINX.is_slotgate


def test_the_last_line_has_what_is_aimed_at() -> None:
    told = {
        "mix_reloads_slotgate": 0,
        "mix_reloads_nginx": 200,
        "mix8192_reloads_slotgate": 1,
        "mix8192_reloads_nginx": 300,
        "steps_loads_slotgate": 10,
        "steps_loads_nginx": 100,
        "steps_needless_slotgate": 0,
        "sine_loads_slotgate": 30,
        "sine_loads_nginx": 100,
        "sine_needless_slotgate": 2,
    }
    found = residency.summary(told)
    assert found == {
        "reloads_after_warmup": 1,
        "reloads_unnormalised": 200,
        "loads_vs_nginx_least_conn": 0.3,
        "needless_waits": 2,
    }
    assert json.loads(json.dumps(residency.summary({})))["reloads_after_warmup"] is None


def test_a_run_is_summed_up() -> None:
    case = next(each for each in residency.CASES if each.name == "steps")
    stays = [HERE, Stay(HERE.backend, OTHER, 4096, 100.0), Stay(2, OTHER, 4096, 400.0)]
    requests = [one(1, 8.0, 10.0, 12.0), one(2, 20.0, inf)._replace(problem="cut", first_s=inf)]
    requests.append(one(3, 30.0, 31.0)._replace(problem="503"))
    lived = residency.Lived(stays, requests, 0.0, 300.0, 310.0, [])
    found = residency.figures(case, lived, Namespace(speed=2.0, duration=600.0))
    assert (found["loads"], found["reloads"], found["unanswered"], found["failed"]) == (2, 1, 1, 1)
    assert (found["waited"], found["needless"]) == (1, 0)


def test_the_makefile_has_it() -> None:
    assert "\nbench-residency: " in (ROOT / "Makefile").read_text()
