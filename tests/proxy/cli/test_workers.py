"""`slotgate workers`: the list, and a restart as it is followed."""

import json

import msgspec
import pytest

from proxy.admin_api import WorkersAnswer, WorkerStatus
from proxy.cli.workers import workers_text
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate


def status(number: int, state: str = "serving", requests: int = 0) -> WorkerStatus:
    return WorkerStatus(number, 100 + number, state, 75.0, warm=True, connections=4, running=2, requests=requests)


def test_the_list(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.raw = msgspec.json.encode(WorkersAnswer([status(1), WorkerStatus(2, 0, "down", 0.0, warm=False)]))
    result = slotgate("workers")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["WORKER", "PID", "STATE", "UP", "RUNNING", "WAITING", "CLIENTS", "SERVED", "RESTARTS"],
        ["1", "101", "serving", "1m", "15s", "2", "0", "4", "0", "0"],
        ["2", "-", "down", "0.0s", "0", "0", "0", "0", "0"],
    ]
    assert stand_in.asked == ["GET /workers"]
    assert json.loads(slotgate("workers", "--json").stdout)["workers"][0]["pid"] == 101


def test_one_process(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.raw = msgspec.json.encode(WorkersAnswer([]))
    assert slotgate("workers").stdout == "one process does everything (workers = 1)\n"


def test_what_is_special_is_said() -> None:
    cold = WorkerStatus(1, 9, "serving", 1.0, warm=False)
    text = workers_text(WorkersAnswer([cold, status(2)], restarting=True, replaced=1, problem="it broke"))
    assert "serving (cold)" in text
    assert "they are being restarted: 1 replaced so far" in text
    assert "the last restart ended early: it broke" in text


def test_a_restart_that_is_done(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.raw = msgspec.json.encode(WorkersAnswer([status(1), status(2), status(1, "retiring", 3)], replaced=2))
    result = slotgate("workers", "restart")
    assert (result.exit_code, result.stdout) == (0, "2 workers replaced; 1 old still finishing, requests: 3\n")
    assert result.stderr == "2 of 2 replaced; 1 old still finishing, requests: 3\n"
    assert stand_in.asked == ["POST /workers/restart"]
    assert json.loads(slotgate("workers", "restart", "--json").stdout)["replaced"] == 2


def test_progress_is_told(slotgate: Slotgate, stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        WorkersAnswer([status(1), status(1, "starting"), status(2)], restarting=True),
        WorkersAnswer([status(1), status(1, "retiring", 1), status(2)], restarting=True, replaced=1),
        WorkersAnswer([status(1), status(2), status(2, "retiring", 1)], replaced=2),
        WorkersAnswer([status(1), status(2)], replaced=2),
    ]
    stand_in.raw = msgspec.json.encode(steps.pop(0))

    def next_step(_seconds: float) -> None:
        stand_in.raw = msgspec.json.encode(steps.pop(0))

    monkeypatch.setattr("proxy.cli.workers.time.sleep", next_step)
    result = slotgate("workers", "restart", "--wait")
    assert result.stderr.splitlines() == [
        "0 of 2 replaced; worker 1 starts as pid 101",
        "1 of 2 replaced; 1 old still finishing, requests: 1",
        "2 of 2 replaced; 1 old still finishing, requests: 1",
        "2 of 2 replaced",
    ]
    assert result.stdout == "2 workers replaced\n"


def test_a_restart_that_ends_early(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.raw = msgspec.json.encode(WorkersAnswer([status(1), status(2)], replaced=1, problem="worker 2 ended"))
    result = slotgate("workers", "restart")
    assert result.exit_code == 1
    assert "error: worker 2 ended\n1 of 2 were replaced; the others serve as before\n" in result.stderr


def test_misplaced_options(slotgate: Slotgate) -> None:
    assert slotgate("workers", "--json", "restart").exit_code == 2
    assert slotgate("workers", "nonsense").exit_code == 2
