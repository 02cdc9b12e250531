"""The client side: where connections are accepted, and how they end."""

import asyncio
from pathlib import Path

import httpx
import pytest

from proxy.app import App
from proxy.clients import ClientSide
from tests.proxy.box import MODEL, box, emulated
from tests.wait import until

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def side(app: App) -> ClientSide:
    assert app._clients is not None
    return app._clients


async def test_sockets_can_be_left_and_taken_again(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        clients, sockets = side(running.app), running.app._sockets
        await clients.accept_from([])
        reader, writer = await asyncio.open_connection(*running.address)  # waits in the kernel
        writer.write(ASK)
        await clients.accept_from(sockets)
        await clients.accept_from(sockets)
        assert (await reader.readline()).endswith(b"200 OK\r\n")
        writer.close()


async def test_retired_ends_with_the_last_connection(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(ASK)
        assert b"200" in await reader.readuntil(b"Ollama is running")
        retired = asyncio.ensure_future(side(running.app).retired())
        await until(lambda: running.app.frontend.draining, "it accepts no more")
        assert not retired.done()
        writer.write(ASK)  # an idle connection is good for one more request
        head = await reader.readuntil(b"Ollama is running")
        assert b"Connection: close" in head
        assert await reader.read() == b""
        writer.close()
        await retired
        await side(running.app).accept_from(running.app._sockets)
        assert not side(running.app)._listeners, "never again"


async def test_a_stop_answers_what_is_on_its_way(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        connections = [await asyncio.open_connection(*running.address) for _ in range(3)]
        await until(lambda: len(running.app.frontend.clients) == 3, "they are accepted")
        running.app.stop()
        await until(lambda: running.app.frontend.draining, "it drains")
        for _, writer in connections:
            writer.write(ASK)
        answers = [await reader.read() for reader, _ in connections]
        for _, writer in connections:
            writer.close()

    assert all(b"200 OK" in answer for answer in answers)


@pytest.mark.parametrize("drain_s", [0.05, 5.0])
async def test_a_stop_closes_idle_connections(tmp_path: Path, drain_s: float) -> None:
    async with box(tmp_path, [emulated()], limits={"drain_s": drain_s}) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        await until(lambda: len(running.app.frontend.clients) == 1, "it is accepted")
        running.app.stop()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(httpx.ConnectError):
            await running.client.post("/api/generate", json={"model": MODEL})
