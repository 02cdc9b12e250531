"""The routing benchmark's own parts, in the small: it runs to its end, and counts what it says it counts."""

import json
import sys
from pathlib import Path

import pytest

from proxy.simulations import ENGINES
from scheduler.domain import Prompt
from scheduler.policy import Policy
from tests.bench import decisions, routing
from tests.bench.routing_figures import ASIDE, FIGURES, QUICK, Scale, Value, ratio
from tests.bench.saturation import closed_loop, goodput, greedy_neighbour, hungry


def test_it_runs_to_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["routing", "--quick", "--jobs=2"])
    assert routing.main() == 0
    lines = capsys.readouterr().out.splitlines()
    told = json.loads(lines[-1])
    assert list(told) == [figure.key for figure in (*FIGURES, *ASIDE)]
    assert all(value > 0 for value in told.values())
    for figure in FIGURES:
        [line] = [line for line in lines if line.startswith(f"{figure.key} ")]
        assert f" {figure.aim:g} " in line
        assert " yes " in f"{line} " or " no " in f"{line} "


def test_keys_and_aims() -> None:
    keys = [figure.key for figure in FIGURES]
    assert len(keys) == len(set(keys))
    assert all(figure.aim is not None for figure in FIGURES)
    assert {"chat_p99_vs_lmetric", "rag25_mean_vs_lmetric", "unique_mean_vs_best", "shipped_p99_vs_round_robin"} <= {
        *keys
    }


def test_the_aim_is_met_from_the_right_side() -> None:
    at_most = next(figure for figure in FIGURES if figure.key == "jain")
    at_least = next(figure for figure in FIGURES if figure.key == "greedy_victim_p95")
    assert routing.met(at_most, Value(0.96)) == "yes"
    assert routing.met(at_most, Value(0.94)) == "no"
    assert routing.met(at_least, Value(1.4)) == "yes"
    assert routing.met(at_least, Value(1.6)) == "no"


def test_equal_sides_have_the_ratio_one_for_certain() -> None:
    assert ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 0.0)
    assert ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == (2.0, 0.0)
    value, half_width = ratio([1.0, 3.0], [2.0, 2.0])
    assert value == 1.0
    assert half_width is not None
    assert half_width > 1
    assert ratio([1.0], [2.0]) == (0.5, None)


def test_a_bench_with_refusals_is_none() -> None:
    class Refused:
        rejected = 3

    with pytest.raises(SystemExit, match="3 requests were refused"):
        routing.refuse_refusals({"run": Refused(), "other": 1.0})


def test_clients_ask_on_without_a_pause_and_are_answered_enough() -> None:
    clients = hungry(1, (3, 5), 1500)
    assert [client.tenant for client in clients] == ["tenant-0"] * 3 + ["tenant-1"] * 5
    for client in clients:
        assert all(turn.think_ms == 0 for turn in client.turns)
        assert sum(turn.output_tokens for turn in client.turns) >= 1500
    again = hungry(1, (3, 5), 1500)
    assert [[turn.prompt for turn in client.turns] for client in again] == [
        [turn.prompt for turn in client.turns] for client in clients
    ]


def test_a_closed_loop_fills_the_cards() -> None:
    four = closed_loop("leastconn", 1, (64,), 1500)
    one = closed_loop("leastconn", 1, (16,), 1500, cards=1)
    assert four.imbalance == pytest.approx(1.0, abs=0.02)
    assert one.imbalance == 1.0
    assert four.tokens_per_s / one.tokens_per_s == pytest.approx(4.0, rel=0.15)
    assert four.jain == 1.0


def test_first_come_first_served_gives_tenants_by_their_clients() -> None:
    """Jain's index of 1, 2, 3 and 4 is 100 / (4 x 30)."""
    assert closed_loop("central", 1, (20, 40, 60, 80), 3000).jain == pytest.approx(0.83, abs=0.03)


def test_alone_is_without_the_neighbour() -> None:
    beside, alone = greedy_neighbour("leastconn", 1, 0.25, 120.0)
    assert beside > 2 * alone


def test_goodput_lies_between_what_is_kept_and_what_is_not() -> None:
    found = [goodput("rr", ENGINES["tuned"], 2, 1, 60.0, first, precision=1.1) for first in (0.1, 3.0)]
    assert found[0] == pytest.approx(found[1], rel=0.25)
    with pytest.raises(ValueError, match="no bound"):
        goodput("rr", ENGINES["tuned"], 2, 1, 60.0, 0.05, bound_s=0.0)


def test_decisions_are_timed_with_a_full_line() -> None:
    times = decisions.measure(2, 10, 20, Policy())
    assert all(value > 0 for value in times)
    assert times.decide_p50 <= times.decide_p99 <= times.decide_max


def test_prompts_of_a_session_grow() -> None:
    earlier, later = decisions.prompt(7, 1), decisions.prompt(7, 2)
    assert isinstance(later, Prompt)
    assert later.blocks[: len(earlier.blocks)] == earlier.blocks
    assert later.ends[: len(earlier.ends)] == earlier.ends
    assert decisions.prompt(8, 1).blocks[:25] != earlier.blocks[:25]
    assert decisions.prompt(7 + decisions.SYSTEMS, 1).blocks[:25] == earlier.blocks[:25]


def test_the_makefile_has_it() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "\nbench-routing: " in makefile
    assert QUICK.seeds < Scale().seeds
