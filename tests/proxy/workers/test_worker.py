"""One worker as the main process sees it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.workers import worker as module
from proxy.workers.orders import Accept, Orders, Retire
from proxy.workers.worker import Worker
from tests.proxy.workers.pretender import Pretender, pretender
from tests.wait import until

__all__ = ["pretender"]


def orders(tmp_path: Path) -> Callable[[Path], Orders]:
    return lambda path: Orders(1, {"workers": 2}, str(tmp_path / "state"), str(path), [], 0)


def worker(tmp_path: Path) -> Worker:
    return Worker(1, lambda pid: tmp_path / f"worker-1.{pid}.sock")


async def test_a_life(tmp_path: Path, pretender: Pretender) -> None:
    one = worker(tmp_path)
    await one.start(orders(tmp_path), [])
    await until(lambda: one.is_ready and one.alive.served == 7, "it is ready")
    assert one.warm
    [heard] = pretender.notes("orders")
    assert heard["pid"] == one.pid
    assert heard["admin_socket"] == str(one.admin_socket)
    one.tell(Accept([1]))
    await until(lambda: pretender.notes("accept"), "it hears")
    one.admin_socket.touch()  # as one leaves it that is killed
    one.tell(Retire(1.0))
    assert await one.ended == 0
    assert not one.is_ready
    assert not one.admin_socket.exists()
    one.tell(Accept([2]))  # nobody hears it
    one.signal(signal.SIGTERM)
    await one.close()


async def test_death_is_noticed(tmp_path: Path, pretender: Pretender) -> None:
    one = worker(tmp_path)
    await one.start(orders(tmp_path), [])
    await until(lambda: one.is_ready, "it is ready")
    os.kill(one.pid, signal.SIGKILL)
    assert await one.ended == -signal.SIGKILL
    await one.close()


async def test_one_that_hangs_is_killed(tmp_path: Path, pretender: Pretender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    one = worker(tmp_path)
    await one.start(orders(tmp_path), [])
    assert await one.ended == -signal.SIGKILL
    await one.close()


async def test_close_leaves_no_process(tmp_path: Path, pretender: Pretender) -> None:
    pretender.manner(1, "deaf")
    one = worker(tmp_path)
    await one.start(orders(tmp_path), [])
    await until(lambda: one.is_ready, "it is ready")
    await one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(one.pid, 0)
