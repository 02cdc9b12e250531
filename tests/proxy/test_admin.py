"""The admin API of a running proxy, asked as the CLI does."""

import asyncio
import stat
from pathlib import Path

import pytest

from proxy.admin_client import AdminClient, AdminError
from tests.proxy.box import MODEL, box, emulated


async def test_status_ps_models_and_recent(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(), emulated(models=["other"])]) as running:
        await running.generate()
        socket = tmp_path / "state" / "admin.sock"
        with AdminClient(socket) as admin:
            status = await asyncio.to_thread(admin.status)
            ps = await asyncio.to_thread(admin.ps)
            models = await asyncio.to_thread(admin.models)
            recent = await asyncio.to_thread(admin.recent)

        assert stat.S_IMODE(socket.stat().st_mode) == 0o660

    assert [(backend.name, backend.health, backend.slots) for backend in status.backends] == [
        ("gpu0", "ready", 2),
        ("gpu1", "ready", 2),
    ]
    assert status.store.up
    assert {(model.name, model.backend) for model in ps.models} == {("smol", "gpu0"), ("other", "gpu1")}
    assert [(model.name, model.backends) for model in models.models] == [("other", ["gpu1"]), ("smol", ["gpu0"])]
    assert [request.model for request in recent] == [MODEL]


async def test_draining(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(), emulated()]) as running:
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            drained = await asyncio.to_thread(admin.drain, "gpu0")
            answers = [await running.generate() for _ in range(4)]
            undrained = await asyncio.to_thread(admin.undrain, "gpu0")
            with pytest.raises(AdminError, match="gpu7"):
                await asyncio.to_thread(admin.drain, "gpu7")

    assert (drained.draining, undrained.draining) == (True, False)
    assert {answer.headers["X-Slotgate-Backend"] for answer in answers} == {"gpu1"}


async def test_waiting_and_running_requests_are_shown(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(slots=1, speed=0.1)]) as running:
        body = {"model": MODEL, "prompt": "x"}
        async with running.client.stream("POST", "/api/generate", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            waiting = asyncio.ensure_future(running.generate())
            while running.app.requests < 2:
                await asyncio.sleep(0)
            with AdminClient(tmp_path / "state" / "admin.sock") as admin:
                ps = await asyncio.to_thread(admin.ps)
            waiting.cancel()

    assert [(request.state, request.backend) for request in ps.requests] == [("running", "gpu0"), ("waiting", None)]
    assert [model.slots_busy for model in ps.models] == [1]
