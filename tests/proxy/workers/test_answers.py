"""What is asked about workers where there are none; how answers are put together. The rest: stories/test_workers."""

import asyncio
from pathlib import Path

import pytest

from proxy.admin_api import BackendStatus
from proxy.admin_client import AdminClient, AdminError
from proxy.workers.answers import WorkersAdmin, _complete_backend
from tests.proxy.box import box, emulated


async def test_one_process_has_no_workers(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            answer = await asyncio.to_thread(admin.workers)
            status = await asyncio.to_thread(admin.status)
            with pytest.raises(AdminError, match=r"no workers to restart.*workers = 2"):
                await asyncio.to_thread(admin.restart_workers)
        assert running.app.alive().served == 0

    assert (answer.workers, answer.restarting, status.workers) == ([], False, [])
    assert WorkersAdmin(None).middlewares == []


def backend(running: int, elsewhere: int) -> BackendStatus:
    return BackendStatus("gpu0", "llama-server", False, "http://a", "ready", running=running, elsewhere=elsewhere)


def test_seats_of_own_workers_are_not_elsewhere() -> None:
    own = backend(0, 7)
    _complete_backend(own, [backend(2, 5), backend(3, 4)])
    assert (own.running, own.elsewhere) == (5, 2)
    own = backend(0, 0)  # the store has not told yet
    _complete_backend(own, [backend(2, 0)])
    assert (own.running, own.elsewhere) == (2, 0)
