import asyncio

import pytest
from aiohttp import web

from proxy.relay import BodyTooLarge, Client, check_request, read_body
from tests.proxy.relay.rig import Rig
from tests.wait import until


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://evil/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\nContent-Length: 0\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"A%d: %b\r\n" % (n, b"x" * 8000) for n in range(5)) + b"\r\n",
            431,
        ),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    ],
)
async def test_what_a_proxy_must_not_take_is_refused(rig: Rig, request_bytes: bytes, status: int) -> None:
    client = await rig.connect()
    client.send(request_bytes)
    got = await client.answer()
    assert got.status == status
    assert got.body
    assert await client.ended()
    assert rig.engine.calls == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET /api/tags?x=1 HTTP/1.1\r\nHost: a\r\nContent-Encoding: identity\r\nConnection: close\r\n\r\n",
        # Whether a compressed body can be read is a question of dialects.
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_right_is_taken(rig: Rig, request_bytes: bytes) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        assert check_request(request) is None
        client.reply(200, [], await read_body(request, 100))
        return client.response()

    rig.answer = answer
    client = await rig.connect()
    client.send(request_bytes)
    assert (await client.answer()).status == 200


def echo(rig: Rig, limit_bytes: int) -> list[Exception]:
    errors: list[Exception] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        try:
            body = await read_body(request, limit_bytes)
        except (BodyTooLarge, ConnectionError) as error:
            errors.append(error)
            client.keep_alive = False
            client.reply(413, [], str(error).encode())
        else:
            client.reply(200, [], body)
        return client.response()

    rig.answer = answer
    return errors


async def test_bodies_in_one_read_in_many_and_in_chunks(rig: Rig) -> None:
    echo(rig, 2**21)
    client = await rig.connect()
    big = bytes(range(256)) * 4096
    for body in (b"{}", big, b""):
        client.post(body=body)
        assert (await client.answer()).body == body
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await asyncio.sleep(0)
    client.send(b"2\r\nde\r\n0\r\n\r\n")
    assert (await client.answer()).body == b"abcde"


async def test_a_client_that_expects_100_continue_gets_it(rig: Rig) -> None:
    echo(rig, 100)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"hello")
    got = await client.answer()
    assert got.status == 200
    assert got.body == b"hello"


async def test_a_body_that_is_announced_too_large_is_not_asked_for(rig: Rig) -> None:
    errors = echo(rig, 100)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n")
    got = await client.answer()
    assert got.status == 413
    assert got.headers["connection"] == "close"
    assert isinstance(errors[0], BodyTooLarge)


@pytest.mark.parametrize("pieces", [1, 30])
async def test_a_chunked_body_is_cut_off_where_it_gets_too_large(rig: Rig, pieces: int) -> None:
    errors = echo(rig, 100)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(pieces):
        client.send(b"%x\r\n%b\r\n" % (300 // pieces, b"x" * (300 // pieces)))
        await client.writer.drain()
    client.send(b"0\r\n\r\n")
    assert (await client.answer()).status == 413
    assert isinstance(errors[0], BodyTooLarge)


async def test_a_body_with_broken_framing_is_a_connection_error(rig: Rig) -> None:
    errors = echo(rig, 100)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await until(lambda: rig.frontend.clients and rig.frontend.clients[0].request, "the request to be taken up")
    client.send(b"zz\r\n")
    await client.answer()
    assert [type(error) for error in errors] == [ConnectionError]
