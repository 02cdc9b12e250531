import pickle

import pytest

from scheduler.policy import Policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.runs import run, settings_of
from scheduler.simulation.statistics import Figures, figures
from scheduler.simulation.step_times import PRESETS
from scheduler.simulation.workloads import sessions


def few(router: str | Policy, workload: str = "rag", rate: float = 3.0, **more: object) -> Figures:
    """Two minutes on four cards."""
    records = run(router, workload, rate, duration_s=120.0, **more)  # type: ignore[arg-type]
    return figures(records, 4, 16)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_serves(name: str) -> None:
    found = few(name)

    assert found.requests > 250
    assert 0.01 < found.ttft_mean_s < 5
    assert settings_of(name)


def test_routers_that_know_prefixes_hit_more() -> None:
    blind, tree, mirror = few("leastconn"), few("lmetric"), few(Policy())

    assert blind.hit_rate + 0.1 < tree.hit_rate
    assert blind.hit_rate + 0.1 < mirror.hit_rate
    assert mirror.ttft_mean_s < blind.ttft_mean_s / 2
    assert mirror.predicted_right > 0.95


def test_more_slots_than_are_to_run() -> None:
    records = run(Policy(), "chat", 1.0, 16, 1, duration_s=60.0, running_limit=2, report_every_s=1.0)
    moments = sorted({record.started_ms for record in records})

    for card in range(4):
        mine = [record for record in records if record.backend == card]
        assert max(sum(r.started_ms <= at < r.ended_ms for r in mine) for at in moments) <= 2
        assert len({record.slot for record in mine}) > 2, "the other slots keep what they hold"


def test_slots_and_cards_are_what_was_asked_for() -> None:
    engine = EngineSettings(times=PRESETS["h200"], slots=99, host_tokens=65_536, copies_idle=True)

    records = run("central", sessions("unique", 4.0, 1, 30.0), 0.0, 2, engine=engine, cards=3)

    assert {(record.backend, record.slot) for record in records} == {
        (card, slot) for card in range(3) for slot in (0, 1)
    }


def test_arguments_and_results_go_to_other_processes_and_back() -> None:
    arguments = (Policy(), "hot", 1.0, 4, 1, EngineSettings())
    again = pickle.loads(pickle.dumps(arguments))

    records = run(*again, duration_s=20.0)

    assert pickle.loads(pickle.dumps(records)) == records == run(*arguments, duration_s=20.0)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(KeyError):
        run("best", "chat", 1.0)
    with pytest.raises(KeyError):
        run("rr", "chats", 1.0)
