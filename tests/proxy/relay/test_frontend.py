import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web

from proxy.relay import Client
from tests.proxy.relay.rig import Rig
from tests.wait import until


async def test_an_exception_before_the_answer_is_a_500(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        raise ValueError("secret")

    rig.answer = answer
    got = await rig.ask()
    assert got.status == 500
    assert b"secret" not in got.raw
    assert "secret" in caplog.text


@pytest.mark.parametrize("error", [ValueError("bug"), TimeoutError()])
async def test_an_exception_within_the_answer_writes_no_second_head(rig: Rig, error: Exception) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.start(200, [])
        client.write(b"half")
        raise error

    rig.answer = answer
    got = await rig.ask()
    assert not got.complete
    assert b"500" not in got.raw
    assert b"504" not in got.raw


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA\x00: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 50_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 300 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
async def test_malformed_requests_are_refused_without_flooding_the_log(
    rig: Rig, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await rig.connect()
    client.send(request_bytes)
    got = await client.answer()
    assert got.status == 400
    assert await client.ended()
    assert rig.engine.calls == []
    assert caplog.text == ""


async def test_an_offer_of_h2c_with_a_body_is_answered_as_http_1(rig: Rig) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.reply(200, [], await request.read())
        return client.response()

    rig.answer = answer
    client = await rig.connect()
    for body in (b"first", b"second"):
        client.post(body=body, extra=b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n")
        assert (await client.answer()).body == body


async def test_counters_and_states_of_a_connection(rig: Rig) -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        seen["waiting"] = client.connection.waiting
        seen["body_wanted"] = client.connection.body_wanted
        seen["request"] = client.connection.request is request
        await request.read()
        seen["body_wanted_after"] = client.connection.body_wanted
        client.reply(200, [], b"x")
        return client.response()

    rig.answer = answer
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1")
    await until(lambda: seen, "the request to arrive")
    client.send(b"2")
    got = await client.answer()
    assert seen == {"waiting": False, "body_wanted": True, "request": True, "body_wanted_after": False}
    connection = rig.frontend.clients[0]
    await until(lambda: connection.waiting, "the connection to be idle")
    assert connection.requests == 1
    assert connection.sent_bytes == len(got.raw)
    assert not connection.partial_head
    client.send(b"GET / HT")
    await until(lambda: connection.partial_head, "the partial head")
    client.close()
    await until(lambda: connection.wire is None, "the close to be seen")
    assert connection.frontend is None


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_stop_never_makes_a_running_answer_look_finished(rig: Rig, version: str) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.start(200, [])
        client.write(b"half")
        await asyncio.Event().wait()
        return client.response()

    rig.answer = answer
    client = await rig.connect()
    client.post(version=version)
    await client.reader.readuntil(b"half")
    await rig.frontend.shutdown(0.01)
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_stop_leaves_finished_answers_whole(rig: Rig, version: str) -> None:
    body = b"x" * 10_000_000
    written = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.start(200, [])
        client.write(body, last=True)
        written.set()
        return client.response()

    rig.answer = answer
    client = await rig.connect(receive_buffer_bytes=8192)
    client.post(version=version)
    async with asyncio.timeout(10):
        await written.wait()
    await rig.frontend.shutdown(0.01)
    received = await client.reader.read()
    assert received.count(b"x") == len(body)
