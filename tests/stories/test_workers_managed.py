"""Workers in front of engines that slotgate runs: one supervisor for all, which no worker's end or restart disturbs."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from proxy.admin_client import AdminClient
from tests.real_engine import MODEL_NAME
from tests.slotgate_process import SlotgateProcess, real_config, slotgate
from tests.wait import until_sync

pytestmark = pytest.mark.real
BODY = {"model": MODEL_NAME, "prompt": "Once upon a time", "stream": False, "options": {"num_predict": 4}}


def engines(running: SlotgateProcess) -> dict[str, int | None]:
    return {backend.name: backend.pid for backend in running.backends()}


def serving(running: SlotgateProcess) -> dict[int, int]:
    return {worker.number: worker.pid for worker in running.admin.workers().workers if worker.state == "serving"}


def seen_by_workers(running: SlotgateProcess) -> list[int]:
    """How many backends are ready in the eyes of each worker."""
    found = []
    for number, pid in serving(running).items():
        with AdminClient(running.state_dir / f"worker-{number}.{pid}.sock") as admin:
            found.append(sum(backend.health == "ready" for backend in admin.status().backends))
    return found


def ask(running: SlotgateProcess) -> str:
    answer = httpx.post(f"{running.url}/api/generate", json=BODY, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Slotgate-Backend"]


def test_engines_outlive_workers(tmp_path: Path) -> None:
    config = f"workers = 2\n{real_config(tmp_path / 'state', backends=2)}"
    with slotgate(tmp_path, config) as running:
        running.wait_ready(2)
        until_sync(lambda: seen_by_workers(running) == [2, 2], "each worker sees both engines", 30)
        before, workers = engines(running), serving(running)
        assert {ask(running) for _ in range(8)} <= set(before)
        os.kill(workers[1], signal.SIGKILL)
        until_sync(lambda: serving(running).keys() == workers.keys() and serving(running) != workers, "it is back", 60)
        running.admin.restart_workers()
        until_sync(lambda: not running.admin.workers().restarting, "all are replaced", 90)
        assert [worker.warm for worker in running.admin.workers().workers if worker.state == "serving"] == [True, True]
        assert [ask(running) for _ in range(8)]
        assert engines(running) == before
        assert [backend.restarts for backend in running.backends()] == [0, 0]


def test_a_new_engine_is_found_by_the_workers(tmp_path: Path) -> None:
    config = f"workers = 2\n{real_config(tmp_path / 'state', backends=1)}"
    with slotgate(tmp_path, config) as running:
        running.wait_ready(1)
        until_sync(lambda: seen_by_workers(running) == [1, 1], "each worker sees the engine", 30)
        [(name, before)] = engines(running).items()
        assert before is not None
        os.kill(before, signal.SIGKILL)
        until_sync(lambda: engines(running)[name] not in {None, before}, "it is started again", 60)
        running.wait_ready(1)
        assert [ask(running) for _ in range(6)] == [name] * 6
