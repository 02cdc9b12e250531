"""An upgrade behind a systemd socket: the socket outlives slotgate, so whoever connects meanwhile only waits."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from proxy.listener import BACKLOG
from tests.proxy.box import emulated
from tests.wait import until
from tests.workers_rig import MODEL, Stream, workers_rig

BODY = {"model": MODEL, "prompt": "Once", "stream": False, "options": {"num_predict": 2}}
QUEUED = 120
"""Connections that come while no slotgate runs: more than asyncio's own idea of a backlog."""


@contextlib.contextmanager
def held(tmp_path: Path, kind: str) -> Iterator[socket.socket]:
    """What systemd holds."""
    family, place = (socket.AF_INET, ("127.0.0.1", 0)) if kind == "tcp" else (socket.AF_UNIX, str(tmp_path / "s"))
    with socket.socket(family) as opened:
        opened.bind(place)
        opened.listen(BACKLOG)
        yield opened


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_restart_loses_no_connection(tmp_path: Path, kind: str, workers: int) -> None:
    engine = emulated(slots=64, speed=1.0)
    with held(tmp_path, kind) as opened:
        name = opened.getsockname()
        transport = httpx.AsyncHTTPTransport(
            uds=name if kind == "unix" else None, limits=httpx.Limits(max_connections=None)
        )
        base = "http://localhost" if kind == "unix" else f"http://127.0.0.1:{name[1]}"
        async with (
            httpx.AsyncClient(transport=transport, base_url=base, timeout=60) as client,
            asyncio.TaskGroup() as group,
        ):
            stream = Stream()
            async with workers_rig(tmp_path, [engine], workers=workers, activated=opened) as first:
                assert (await client.post("/api/generate", json=BODY)).status_code == 200
                if kind == "tcp":
                    running = group.create_task(stream.run("127.0.0.1", name[1], 60))
                    await stream.begun.wait()
                first.process.terminate()
                await until(lambda: '"event":"stopping"' in first.log.read_text(), "it drains")
                racing = [group.create_task(client.post("/api/generate", json=BODY)) for _ in range(QUEUED)]
                await first.process.wait()
                if kind == "tcp":
                    await running
                waiting = [group.create_task(client.post("/api/generate", json=BODY)) for _ in range(QUEUED)]
            async with workers_rig(tmp_path, [engine], workers=workers, activated=opened):
                assert not all(task.done() for task in waiting)
                answers = await asyncio.gather(*racing, *waiting)

        assert Path(name).is_socket() if kind == "unix" else True, "the path is systemd's"

    assert first.process.returncode == 0
    assert {answer.status_code for answer in answers} == {200}
    assert len(answers) == 2 * QUEUED
    assert kind == "unix" or stream.complete, stream.problem
