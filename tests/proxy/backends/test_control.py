"""Small questions to engines, over real sockets."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from proxy.backends.control import Control, ProbeError
from proxy.endpoint import Endpoint, Gate, parse_endpoint
from proxy.gate_client import GateClient
from tests.proxy.backends.answers import Answers
from tests.proxy.gated import gated
from tests.wait import until


class Health(msgspec.Struct):
    status: str


async def test_over_tcp_with_prefix_and_key() -> None:
    async with Answers.llama_server() as engine:
        engine.set("/llm/health", 200, {"status": "ok"})
        control = Control(parse_endpoint(f"{engine.url}/llm", "sekrit"), 5)
        answer = await control.get("/health")
        await control.close()
    assert answer.json(Health) == Health("ok")
    assert answer.headers["server"] == "llama.cpp"
    assert engine.asked[0][0] == "/llm/health"
    assert engine.authorizations == ["Bearer sekrit"]


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    engine = Answers.llama_server()
    await engine.start(tmp_path / "a.sock")
    control = Control(parse_endpoint(f"unix:{tmp_path / 'a.sock'}"), 5)
    assert (await control.get("/health")).status == 200
    await control.close()
    await engine.stop()


async def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path / 'none.sock'}"):
        control = Control(parse_endpoint(url), 5)
        with pytest.raises(ProbeError, match=f"cannot connect to {url}") as caught:
            await control.get("/health")
        assert caught.value.refused
        await control.close()


async def test_no_answer_in_time() -> None:
    async with Answers.llama_server() as engine:
        engine.delay_s["/health"] = 30
        control = Control(parse_endpoint(engine.url), 0.05)
        with pytest.raises(ProbeError, match=r"GET /health: no answer within 0\.05 s"):
            await control.get("/health")
        await control.close()


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    connections, closed = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, closed
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        if connections == 1:
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        closed += 1

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    control = Control(parse_endpoint(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"), 5)
    assert (await control.get("/a")).status == 200
    assert (await control.get("/b")).status == 200
    assert connections == 2
    await control.close()
    await until(lambda: closed == 2, "both connections are closed")
    listener.close()


async def test_a_connection_that_always_breaks() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        closed.append(writer)

    closed: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    control = Control(parse_endpoint(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"), 5)
    with pytest.raises(ProbeError, match="the connection broke"):
        await control.get("/a")
    await until(lambda: len(closed) == 2, "both connections are closed")
    await control.close()
    listener.close()


async def test_an_answer_of_another_shape() -> None:
    async with Answers.llama_server() as engine:
        engine.replies["/health"] = (200, {}, b"<html>")
        control = Control(parse_endpoint(engine.url), 5)
        with pytest.raises(ProbeError, match="the answer to /health is not what the engine should say"):
            (await control.get("/health")).json(Health)
        await control.close()


async def test_an_engine_behind_a_gate_is_asked_in_the_same_way() -> None:
    async with Answers.llama_server() as engine, gated(parse_endpoint(engine.url)) as box:
        control = Control(box.endpoint(), 5, box.client())
        assert (await control.get("/health")).json(Health) == Health("ok")
        engine.replies["/api/show"] = (404, {"X-Y": "z"}, b"no")
        answer = await control.post("/api/show", {"model": "m"})
        assert (answer.status, answer.headers["x-y"], answer.body) == (404, "z", b"no")
        engine.replies["/health"] = (503, {}, b"Loading model")
        with pytest.raises(ProbeError, match="Loading model") as caught:
            await control.get("/health")
        assert caught.value.loading
        await control.close()
        stranger = Control(box.endpoint(), 5, GateClient("not-the-secret-of-this-box"))
        with pytest.raises(ProbeError, match="refused the secret") as caught:
            await stranger.get("/health")
        assert caught.value.refused
        await stranger.close()


async def test_a_gate_that_does_not_answer_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        closed.set()

    closed = asyncio.Event()
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    gate = Gate("127.0.0.1", listener.sockets[0].getsockname()[1], "gpu0")
    control = Control(Endpoint(host="a", gate=gate), 0.05, GateClient("0123456789abcdef"))
    with pytest.raises(ProbeError, match=r"GET /health: no answer within 0\.05 s"):
        await control.get("/health")
    await until(closed.is_set, "the connection is closed")
    await control.close()
    listener.close()
