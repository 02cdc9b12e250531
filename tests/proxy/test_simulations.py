"""Routers by name, runs in a pool, rows with intervals."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from proxy.policy_keys import PolicyError
from proxy.simulations import (
    CARDS,
    ENGINES,
    Run,
    compare,
    engine_of,
    in_pool,
    measured,
    router_names,
    router_of,
    settings_in_force,
)
from proxy.traces import Trace
from scheduler.policy import Policy
from scheduler.presets import PRESETS, preset_policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.statistics import over_seeds

SHORT = Run(workload="chat", rate=1.0, duration_s=15.0)


def test_every_router_has_a_name_of_its_own() -> None:
    routers = [router_of(name) for name in router_names()]
    assert len(routers) == len(set(router_names())) == len(PRESETS) + len(BASELINES)
    assert {router for router in routers if isinstance(router, str)} == set(BASELINES)


def test_presets_go_before_baselines_and_take_changes() -> None:
    assert router_of("lmetric") == preset_policy("lmetric")
    assert router_of("baseline:lmetric") == "lmetric"
    assert router_of("least-connections") == router_of("leastconn") == "leastconn"
    changed = router_of("balanced", {"hold_s": "0", "choose_slot": "false", "max_waiting": "7"})
    assert changed == msgspec.structs.replace(Policy(), hold_s=0.0, choose_slot=False, max_waiting=7)
    assert router_of("rr", {"hold_s": "0"}) == "rr"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holds": "1"}, "holds: unknown key"),
        ({"hold_s": "-1"}, "hold_s: -1 is not a number from 0"),
        ({"max_waiting": "many"}, "max_waiting: many is not a whole number"),
    ],
)
def test_changes_that_are_none(changes: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        router_of("balanced", changes)


@pytest.mark.parametrize("name", ["", "balance", "baseline:", "baseline:balanced"])
def test_unknown_routers(name: str) -> None:
    with pytest.raises(KeyError):
        router_of(name)


def test_settings_name_what_routing_weighs_with_and_what_was_set() -> None:
    words = settings_in_force(router_of("sticky", {"retry_ratio": "0.5", "hold_s": "4"}), 16)
    assert {"hold_s 4", "retry_ratio 0.5", "stall_weight 0", "choose_slot true"} <= set(
        words.partition("; ")[2].split(", ")
    )
    assert "retry_floor_per_s" not in words
    assert settings_in_force("sgl_abs2", 16).startswith("baseline; cache threshold 0.3, balance abs 2")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_runs_on_every_card(engine: str, card: str) -> None:
    settings = engine_of(engine, card)
    assert settings.gpu_name == CARDS[card]
    figures = measured(SHORT.on(settings, None, 2))
    assert figures.requests > 0
    assert bool(settings.host_tokens) == (engine == "as-shipped")
    assert SHORT.on(settings, 3, 2).slots == 3


def test_rows_are_means_over_seeds_of_the_same_clients() -> None:
    ended: list[int] = []
    rows = compare({"ours": Policy(), "turns": "rr"}, SHORT, 2, 1, lambda: ended.append(1))
    assert len(ended) == 4
    ours = [measured(msgspec.structs.replace(SHORT, seed=seed)) for seed in (1, 2)]
    assert rows[0].figures == over_seeds(ours)
    assert [row.policy for row in rows] == ["ours", "turns"]
    assert rows[0].figures["requests"] == rows[1].figures["requests"]
    told = rows[1].as_json()
    assert [told[name] for name in ("policy", "workload", "rate", "slots", "seeds")] == ["turns", "chat", 1.0, 16, 2]
    assert told["tokens_per_s"] == rows[1].figures["output_tokens_per_s"].mean
    assert told["tokens_per_s_ci95"] == rows[1].figures["output_tokens_per_s"].half_width


def test_a_trace_takes_the_place_of_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0,{100 + second},10\n" for second in range(50)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    figures = measured(Run(workload="azure", rate=1.0, trace=Trace(path, "azure")))
    assert (figures.requests, figures.hit_rate) == (45, 0.0)


def test_too_short_a_run() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        measured(msgspec.structs.replace(SHORT, rate=0.001))


def test_a_pool_keeps_the_order_and_runs_elsewhere() -> None:
    ended: list[int] = []
    assert in_pool([partial(pow, 2, power) for power in range(6)], 2, lambda: ended.append(1)) == [1, 2, 4, 8, 16, 32]
    assert len(ended) == 6
    assert os.getpid() not in in_pool([os.getpid, os.getpid], 2)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_call_raises_comes_out_of_the_pool(jobs: int) -> None:
    calls: list[Callable[[], int]] = [partial(int, "1"), partial(int, "x"), partial(int, "3")]
    with pytest.raises(ValueError, match="invalid literal"):
        in_pool(calls, jobs)
