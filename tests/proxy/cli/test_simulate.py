"""`slotgate simulate`: what it prints, and what it says to those who ask for what there is not."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.simulate import comparison_text, draw
from proxy.simulations import Row, Run
from proxy.traces import Trace
from scheduler.policy import Policy
from scheduler.simulation.statistics import Figures, Interval
from tests.proxy.cli.conftest import Slotgate

TINY = ("--duration=15", "--seeds=1", "--jobs=1")
FIELDS = (
    "policy", "workload", "rate", "slots", "seeds", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s",
    "e2e_mean_s", "hit_rate", "busy_mean", "imbalance", "tokens_per_s",
)  # fmt: skip


def row(policy: str, mean: float, half_width: float | None = None) -> Row:
    intervals = {name: Interval(mean, half_width) for name in Figures.__struct_fields__}
    return Row(policy, "chat", 1.2, 16, 1 if half_width is None else 5, intervals)


def test_json_has_exactly_the_promised_fields(slotgate: Slotgate) -> None:
    result = slotgate("simulate", "--policy=balanced, lmetric,sgl-abs2", "--json", "--rate=0.5", "--slots=8", *TINY)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [each["policy"] for each in rows] == ["balanced", "lmetric", "sgl-abs2"]
    measured = set(FIELDS[5:])
    for each in rows:
        assert list(each)[: len(FIELDS)] == list(FIELDS)
        assert set(each) == set(FIELDS) | {f"{name}_ci95" for name in measured}
        assert (each["workload"], each["rate"], each["slots"], each["seeds"]) == ("chat", 0.5, 8, 1)
        assert each["ttft_mean_s"] > 0
        assert each["ttft_mean_s_ci95"] is None


def test_seeds_give_intervals(slotgate: Slotgate) -> None:
    result = slotgate("simulate", "--policy=rr", "--duration=15", "--seeds=2", "--json", "--workload=unique")
    [each] = json.loads(result.stdout)
    assert each["seeds"] == 2
    assert each["ttft_mean_s_ci95"] > 0


def test_engines_as_shipped_have_four_slots(slotgate: Slotgate) -> None:
    result = slotgate("simulate", "--policy=sticky", "--engine=as-shipped", "--set=hold_s=0.25", *TINY)
    assert result.exit_code == 0, result.stderr
    assert (
        "4 x emulated NVIDIA GeForce RTX 4090, 4 slots, batch 2048, host cache of 65536 tokens, idle slots copied"
        in result.stdout
    )
    assert ", hold_s 0.25," in result.stdout


def test_the_whole_text() -> None:
    first = Run(workload="chat", rate=1.2)
    rows = [row("balanced", 0.1, 0.02), row("rr", 12.34, 1.5)]
    head, table, bars, settings = comparison_text(rows, {"balanced": Policy(), "rr": "rr"}, first).split("\n\n")
    assert head.splitlines() == [
        "chat: 1.20 sessions/s for 900 s; 5 seeds, 95 % confidence intervals",
        "4 x emulated NVIDIA GeForce RTX 4090, 16 slots, batch 512, host cache off",
    ]
    lines = table.splitlines()
    assert lines[0].split("  ")[0] == "POLICY"
    assert lines[1].split("  ")[:1] == ["balanced"]
    assert lines[1].count("0.100 ±0.020") == 9
    assert lines[2].count("12.3 ±1.50") == 9
    assert bars.splitlines() == [
        "mean time to first token, s",
        "balanced  # 0.100",
        f"rr        {'#' * 40} 12.3",
    ]
    assert settings.splitlines()[0] == "settings in force"
    assert settings.splitlines()[1].startswith("balanced  slotgate's scheduler; active_ms ")
    assert settings.splitlines()[2] == "rr        baseline; one after the other, whatever runs"


def test_a_trace(slotgate: Slotgate, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0,{100 + second},10\n" for second in range(50)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    given = ("simulate", "--policy=rr", f"--trace={path}", "--rate=5", "--seeds=3", "--jobs=1")
    result = slotgate(*given, "--format=azure")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"{path}: 50 sessions, 50 requests\n"
    assert result.stdout.startswith("azure: 5.00 sessions/s for 10 s, from trace.csv; 1 seed\n")
    wrong = slotgate(*given, "--format=mooncake")
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith(f"error: {path}, line 1: ")


def test_refused_requests_are_told(slotgate: Slotgate) -> None:
    given = ("--slots=1", "--cards=1", "--rate=5", "--set=max_waiting=1", "--seeds=1", "--duration=20", "--jobs=1")
    result = slotgate("simulate", "--policy=balanced", *given)
    assert result.exit_code == 0, result.stderr
    assert "note: balanced refused " in result.stderr


def test_too_few_requests(slotgate: Slotgate) -> None:
    result = slotgate("simulate", "--rate=0.001", "--duration=1", "--jobs=1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a longer --duration" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy=balance",), "there is no 'balance'; did you mean balanced?"),
        (("--policy=,",), "names no policy"),
        (("--workload=char",), "did you mean chat?"),
        (("--engine=raw",), "known: tuned, as-shipped"),
        (("--card=5090",), "did you mean 4090?"),
        (("--set=hold=1",), "did you mean hold_s?"),
        (("--set=hold_s",), "write KEY=VALUE"),
        (("--policy=rr", "--set=hold_s=1"), "baselines have no keys"),
        (("--trace=x",), "known: mooncake, azure, lmcache"),
        (("--plot=x.pdf",), "must end in .png or .svg"),
        (("--rate=0",), "--rate"),
        (("--rate=inf",), "--rate"),
        (("--duration=inf",), "--duration"),
    ],
)
def test_wrong_usage(slotgate: Slotgate, arguments: tuple[str, ...], message: str) -> None:
    result = slotgate("simulate", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_without_matplotlib_it_says_what_to_install(slotgate: Slotgate, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, package: str | None = None) -> Any:
        return None if name == "matplotlib" else real(name, package)

    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", find)
    result = slotgate("simulate", "--plot=x.svg", *TINY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'slotgate[plot]'" in result.stderr


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="draws with the extra `plot`")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"picture.{suffix}"
    draw([row("balanced", 0.1), row("rr", 1.2)], Run(workload="chat", rate=1.2), file)
    assert file.stat().st_size > 1000
    assert "matplotlib.pyplot" not in sys.modules


def test_the_name_of_a_trace_is_in_the_title() -> None:
    first = Run(workload="azure", rate=2.0, duration_s=60.0, trace=Trace(Path("/somewhere/conv.csv"), "azure"))
    text = comparison_text([row("rr", 1.0)], {"rr": "rr"}, first)
    assert text.startswith("azure: 2.00 sessions/s for 60 s, from conv.csv; 1 seed\n")
