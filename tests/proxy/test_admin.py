"""The admin API of a running proxy, asked as the CLI does."""

import asyncio
import os
import stat
from pathlib import Path

import httpx
import pytest

from proxy.admin_client import AdminClient, AdminError
from proxy.app import App
from proxy.config import Config, resolve
from proxy.config_sources import LoadedConfig
from proxy.listener import ListenError
from tests.proxy.backends.fake_ollama import write_fake_ollama
from tests.proxy.box import MODEL, box, emulated
from tests.wait import until


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


def ollama(tmp_path: Path) -> dict[str, object]:
    """A managed backend that comes up at once."""
    return {
        "engine": "ollama",
        "binary": write_fake_ollama(tmp_path),
        "first_port": 35000 + os.getpid() % 10000,
        "gpus": "none",
        "slots": 3,
        "env": {"CHILD_FILE": str(tmp_path / "child")},
    }


def broken() -> dict[str, object]:
    """A managed backend that never comes up."""
    restart = {"backoff_s": 0.01, "budget": 1}
    return {"binary": "/bin/false", "gpus": "none", "name": "gpu0", "model": "/models/smol.gguf", "restart": restart}


async def test_what_an_engine_took_is_shown_beside_what_was_wanted(tmp_path: Path) -> None:
    async with box(tmp_path, [], backends=[ollama(tmp_path)]) as running:
        [backend] = (await running.status()).backends
    assert backend.state == "ready"
    assert backend.version == "0.33.0"
    assert backend.slot_context_tokens == 4096
    assert "OLLAMA_NUM_PARALLEL=3" in backend.wanted
    assert backend.wanted[-1] == "serve"
    assert (backend.taken["slots"], backend.taken["models"]) == (3, ["smol:latest"])
    assert backend.log_path == str(tmp_path / "state" / "logs" / "ollama.log")
    assert backend.looked_s_ago is not None


async def test_restarting(tmp_path: Path) -> None:
    async with box(tmp_path, [], backends=[ollama(tmp_path)]) as running:
        [before] = (await running.status()).backends
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            answer = await asyncio.to_thread(admin.restart, "ollama")

            async def again() -> bool:
                [now] = (await running.status()).backends
                return now.health == "ready" and now.pid not in {None, before.pid}

            await until(again, "another process serves")
            with pytest.raises(AdminError, match="no backend 'ollma'\ndid you mean ollama"):
                await asyncio.to_thread(admin.restart, "ollma")

    assert (answer.name, answer.was, answer.running) == ("ollama", "ready", 0)


async def test_an_external_engine_is_not_slotgates_to_restart(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]):
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            with pytest.raises(AdminError, match=r"gpu0 is external: .* restart it where it runs"):
                await asyncio.to_thread(admin.restart, "gpu0")
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "state" / "admin.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://slotgate") as client:
            assert (await client.post("/backends/gpu0/restart")).status_code == 409
            assert (await client.post("/backends/gpu7/restart")).status_code == 404


async def test_an_engine_that_does_not_come_up_is_shown_drained_and_started_again(tmp_path: Path) -> None:
    async with box(tmp_path, [], ready=False, backends=[broken()]) as running:

        async def given_up() -> bool:
            [backend] = (await running.status()).backends
            return backend.state == "failed"

        await until(given_up, "its restart budget is spent")
        [backend] = (await running.status()).backends
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            drained = await asyncio.to_thread(admin.drain, "gpu0")
            restarted = await asyncio.to_thread(admin.restart, "gpu0")
            await until(given_up, "it was started, and failed again")
        [after] = (await running.status()).backends

    assert (backend.health, backend.last_error) == ("down", "exited with status 1")
    assert "--no-kv-unified" in backend.wanted
    assert drained.draining
    assert restarted.was == "failed"
    assert after.draining
    assert after.epoch > backend.epoch


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


async def test_status_works_while_draining(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(speed=0.05)]) as running:
        asked = asyncio.ensure_future(running.generate())
        await until(lambda: running.app.requests == 1, "a request runs")
        running.app.stop()
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            status = await asyncio.to_thread(admin.status)
        running.app.stop()
        await asked

    assert status.listen.startswith("127.0.0.1:")


async def test_the_socket_of_a_running_proxy_is_not_taken(tmp_path: Path) -> None:
    async with emulated() as engine:
        backends = [{"url": engine.url}]
        async with box(tmp_path, [], backends=backends, store={"url": "redis://127.0.0.1:1/0"}) as running:
            second = Config.model_validate(
                {"listen": "127.0.0.1:0", "state_dir": tmp_path / "state", "store": {"url": "redis://127.0.0.1:1/0"}}
            )
            with pytest.raises(ListenError, match="another process listens there"):
                await App(second, resolve(second, {}), None, lambda: LoadedConfig(second, {})).serve()
            with AdminClient(tmp_path / "state" / "admin.sock") as admin:
                assert (await asyncio.to_thread(admin.status)).listen == running.app.listen
