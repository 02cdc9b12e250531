"""Answers that arrive, as the engine gave them."""

import asyncio
import os
from typing import Any

import pytest

from proxy.endpoint import Endpoint
from proxy.relay import Client, ConnectionPool, Exchanged, Outgoing, read_body
from proxy.relay.exchange import render_request
from tests.proxy.relay.rig import CHUNKED_OK, Call, Rig, chunk, sized
from tests.wait import until

LINES = [b'{"response":"%d","done":false}\n' % number for number in range(5)]
LAST = b"0\r\n\r\n"


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
async def test_a_stream_passes_byte_for_byte_with_the_engines_own_framing(rig: Rig, unix: bool) -> None:
    if unix:
        await rig.engine.stop()
        await rig.engine.start(unix=True)
        rig.pool = ConnectionPool(rig.engine.endpoint)

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK)
        for line in LINES:
            call.write(chunk(line))
            await call.writer.drain()
        call.write(LAST)

    rig.engine.script = script
    got = await rig.ask()
    assert got.complete
    assert got.status == 200
    assert got.body == b"".join(LINES)
    assert got.raw.partition(b"\r\n\r\n")[2] == b"".join(chunk(line) for line in LINES) + LAST
    assert got.headers["x-slotgate-backend"] == "gpu0"
    assert rig.results == [Exchanged(200)]
    assert rig.first_bytes == 1


async def test_chunks_arrive_as_they_are_made_and_not_at_the_end(rig: Rig) -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await more.wait()
        call.write(chunk(LINES[1]), LAST)

    rig.engine.script = script
    client = await rig.connect()
    client.post()
    assert LINES[0] in await client.reader.readuntil(LINES[0])
    more.set()
    assert LINES[1] in await client.reader.readuntil(LAST)


async def test_an_answer_with_a_length_keeps_it_and_goes_out_in_one_write(rig: Rig, monkeypatch: Any) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b'{"embeddings":[]}', extra=b"Content-Type: application/json\r\nServer: llama.cpp\r\n"))

    rig.engine.script = script
    client = await rig.connect()
    await until(lambda: len(rig.frontend.clients) == 1, "the connection")
    writes: list[bytes] = []
    connection = rig.frontend.clients[0]
    plain = connection.transport

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            plain.write(data)

    connection.transport = Counting()
    client.post()
    got = await client.answer()
    assert got.body == b'{"embeddings":[]}'
    assert got.headers["content-length"] == "17"
    assert "server" not in got.headers
    assert "transfer-encoding" not in got.headers
    assert len(writes) == 1


async def test_connections_of_clients_and_engines_are_kept(rig: Rig) -> None:
    async def script(call: Call) -> None:
        if b"/chunked" in call.head:
            call.write(CHUNKED_OK, chunk(b"one"), LAST)
        else:
            call.write(sized(b"two"))

    rig.engine.script = script
    client = await rig.connect()
    for number in range(50):
        client.post("/chunked" if number % 2 else "/sized")
        got = await client.answer()
        assert got.complete
        assert got.body == (b"one" if number % 2 else b"two")
    assert rig.engine.connections == 1
    assert rig.pool.opened == 1


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(call.body), LAST) if call.body < b"2" else call.write(sized(call.body))

    rig.engine.script = script
    client = await rig.connect()
    for number in range(4):
        client.post(body=b"%d" % number)
    assert [(await client.answer()).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]


async def test_an_http_1_0_client_gets_no_chunks_and_a_closed_connection(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"one"), chunk(b"two"), LAST)

    rig.engine.script = script
    client = await rig.connect()
    client.post(version="1.0")
    raw = await client.reader.read()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"Connection: close" in head
    assert b"chunked" not in head.lower()


async def test_an_engine_that_ends_its_answer_by_closing_is_framed_anew(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
        await call.writer.drain()
        call.writer.close()

    rig.engine.script = script
    got = await rig.ask()
    assert got.complete
    assert got.body == b"until the end"
    assert got.headers["transfer-encoding"] == "chunked"


async def test_headers_of_one_hop_stay_there(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(
            b"HTTP/1.1 200 OK\r\nConnection: x-secret, keep-alive\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\n"
            b"Access-Control-Allow-Origin: *\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nok"
        )

    rig.engine.script = script
    got = await rig.ask(extra=b"Connection: x-mine\r\nX-Mine: 1\r\nX-Forwarded: 2\r\nAuthorization: Bearer k\r\n")
    assert set(got.headers) == {"x-kept", "content-length", "x-slotgate-backend"}
    head = rig.engine.calls[0].head.lower()
    assert b"x-forwarded: 2" in head
    assert b"x-mine" not in head
    assert b"authorization" not in head
    assert head.count(b"host:") == 1
    assert rig.engine.endpoint.host.encode() in head


async def test_head_requests_have_no_body_and_keep_the_length(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n")

    rig.engine.script = script
    client = await rig.connect()
    for _ in range(2):
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        raw = await client.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 17" in raw
    assert rig.engine.connections == 1


async def test_two_megabytes_go_up_and_come_back(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(call.body))

    rig.engine.script = script
    body = os.urandom(2 * 1024 * 1024)
    got = await rig.ask(body=body)
    assert got.body == body


async def test_an_answer_after_heartbeats_continues_their_stream(rig: Rig) -> None:
    states: list[tuple[bool, bool]] = []

    async def script(call: Call) -> None:
        if call.body == b"sized":
            call.write(sized(b'{"done":true}\n'))
        else:
            call.write(CHUNKED_OK, chunk(b'{"done":true}\n'), LAST)

    async def answer(request: Any) -> Any:
        client = Client(request)
        body = await read_body(request, 100)
        client.heartbeat(b'{"done":false}\n', 200, [("Content-Type", "application/x-ndjson")])
        states.append((client.head_sent, client.committed))
        await rig.attempt(client, Outgoing("POST", "/", [], body))
        states.append((client.head_sent, client.committed))
        return client.response()

    rig.engine.script = script
    rig.answer = answer
    for kind in (b"sized", b"chunked"):
        got = await rig.ask(body=kind)
        assert got.complete
        assert got.body == b'{"done":false}\n{"done":true}\n'
        assert got.raw.count(b"HTTP/1.1") == 1
    assert states == [(True, False), (True, True)] * 2


async def test_a_refusal_after_heartbeats_is_left_to_the_caller(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b"no such model", "404 Not Found"))

    async def answer(request: Any) -> Any:
        client = Client(request)
        client.heartbeat(b"\n", 200, [])
        await rig.attempt(client, Outgoing("POST", "/", [], b""))
        assert not client.committed
        client.write(rig.results[0].error_body, last=True)
        return client.response()

    rig.engine.script = script
    rig.answer = answer
    got = await rig.ask()
    assert got.status == 200
    assert got.body == b"\nno such model"
    assert rig.results[0].status == 404


async def test_a_slow_reader_bounds_what_is_buffered(rig: Rig) -> None:
    piece = chunk(b"x" * 65_000)
    pieces = 50 * 1024 * 1024 // len(piece)
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        call.write(CHUNKED_OK)
        for _ in range(pieces):
            call.write(piece)
            await call.writer.drain()
            sent += 1
        call.write(LAST)

    rig.engine.script = script
    client = await rig.connect(receive_buffer_bytes=64 * 1024)
    client.post()
    await client.reader.readexactly(100_000)
    connection = next(iter(rig.pool._active))
    await until(lambda: connection.paused, "the engine to be held back")
    assert sent < pieces
    to_client = rig.frontend.clients[0]
    received = connection._answer.engine_bytes
    assert received - (to_client.sent_bytes - to_client.wire.get_write_buffer_size()) < 4 * 1024 * 1024
    assert to_client.wire.get_write_buffer_size() < 2 * 1024 * 1024
    body = 100_000
    while b"\r\n0\r\n\r\n" not in (data := await client.reader.read(2**20)):
        assert data
        body += len(data)
    assert body > 49 * 1024 * 1024
    await until(lambda: rig.results, "the end of the exchange")


def test_the_request_carries_the_endpoints_prefix_and_key() -> None:
    endpoint = Endpoint(host="box:1", prefix="/llm", headers=(("Authorization", "Bearer k"),))
    head = render_request(endpoint, Outgoing("POST", "/v1/x?a=b", [("Accept", "*/*"), ("X-Api-Key", "c")], b"{}"))
    assert head == (
        b"POST /llm/v1/x?a=b HTTP/1.1\r\nHost: box:1\r\nAccept: */*\r\nAuthorization: Bearer k\r\n"
        b"Content-Length: 2\r\n\r\n"
    )


@pytest.mark.parametrize("path", ["x", "/a b", "/a\r\nX: 1", "/\n"])
def test_a_path_cannot_smuggle(path: str) -> None:
    with pytest.raises(ValueError, match=r"request line|line break"):
        render_request(Endpoint(host="a"), Outgoing("GET", path, []))
