import asyncio
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from proxy.relay import Client, Framing
from tests.proxy.relay.rig import RawClient, Rig
from tests.wait import until


def answering(rig: Rig, write: Any) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        write(client)
        return client.response()

    rig.answer = answer


async def test_a_whole_answer_keeps_the_connection(rig: Rig) -> None:
    answering(rig, lambda client: client.reply(200, [("Content-Type", "text/plain")], b"Ollama is running"))
    client = await rig.connect()
    for _ in range(3):
        client.post()
        got = await client.answer()
        assert got.body == b"Ollama is running"
        assert got.headers.pop("date").endswith(" GMT")
        assert got.headers == {"content-type": "text/plain", "content-length": "17"}


async def test_a_stream_in_pieces(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [])
        assert client.framing is Framing.CHUNKED
        assert client.bytes_sent == 0
        client.write(b"one")
        client.write(b"")
        client.write(b"two")
        client.write(b"", last=True)
        assert client.finished

    answering(rig, write)
    client = await rig.connect()
    for _ in range(2):
        client.post()
        assert (await client.answer()).body == b"onetwo"


@pytest.mark.parametrize("close", [b"Connection: close\r\n", b""], ids=["asked by the client", "draining"])
async def test_a_connection_that_will_close_says_so(rig: Rig, close: bytes) -> None:
    rig.frontend.draining = not close
    answering(rig, lambda client: client.reply(200, [], b"x"))
    client = await rig.connect()
    client.post(extra=close)
    assert (await client.answer()).headers["connection"] == "close"
    assert await client.ended()


async def test_a_head_request_gets_the_length_and_no_body(rig: Rig) -> None:
    answering(rig, lambda client: client.reply(200, [], b"hello"))
    client = await rig.connect()
    for _ in range(2):
        client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.reader.readuntil(b"\r\n\r\n")).endswith(b"Content-Length: 5\r\n\r\n")


async def test_an_answer_without_a_body_has_no_framing(rig: Rig) -> None:
    answering(rig, lambda client: (client.start(204, []), client.write(b"", last=True)))
    client = await rig.connect()
    for _ in range(2):
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 204 No Content\r\n\r\n"


async def test_an_unfinished_answer_never_looks_finished(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [])
        client.write(b"half")

    answering(rig, write)
    got = await rig.ask()
    assert not got.complete


async def test_an_abort_resets_the_connection(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.heartbeat(b"\n", 200, [])
        client.abort()

    answering(rig, write)
    got = await rig.ask()
    assert not got.complete
    await until(lambda: not rig.frontend.clients, "the connection to go")


async def test_a_cut_answer_carries_the_error_and_never_looks_finished(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [])
        client.write(b"x" * 500_000)
        client.cut(b'{"error":"died"}')

    answering(rig, write)
    got = await rig.ask()
    assert not got.complete
    assert got.body == b"x" * 500_000 + b'{"error":"died"}'


async def test_a_cut_answer_of_known_length_stays_short(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [("Content-Length", "10")])
        client.write(b"half")
        client.cut(b"error!")

    answering(rig, write)
    got = await rig.ask()
    assert not got.complete
    assert got.body == b"half"


async def test_a_cut_answer_to_http_1_0_is_reset(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [])
        client.cut(b"error")

    answering(rig, write)
    client = await rig.connect()
    client.post(version="1.0")
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


async def test_an_answer_without_a_head_is_cut_without_a_word(rig: Rig) -> None:
    answering(rig, lambda client: client.cut(b'{"error":"died"}'))
    client = await rig.connect()
    client.post()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


async def test_a_head_that_cannot_be_rendered_settles_nothing(rig: Rig) -> None:
    def write(client: Client) -> None:
        with pytest.raises(ValueError):
            client.start(200, [("X", "a\r\nb")])
        assert not client.head_sent
        client.reply(500, [], b"sorry")

    answering(rig, write)
    got = await rig.ask()
    assert (got.status, got.body) == (500, b"sorry")


@pytest.mark.parametrize("aborted", [True, False])
async def test_an_unfinished_answer_to_http_1_0_is_reset(rig: Rig, aborted: bool) -> None:
    read = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.start(200, [])
        client.write(b"half")
        await read.wait()
        if aborted:
            client.abort()
        return client.response()

    rig.answer = answer
    client = await rig.connect()
    client.post(version="1.0")
    await client.reader.readuntil(b"half")
    read.set()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


async def test_a_finished_answer_is_not_cut(rig: Rig) -> None:
    answering(rig, lambda client: (client.reply(200, [], b"x"), client.cut(b"error")))
    client = await rig.connect()
    for _ in range(2):
        client.post()
        assert (await client.answer()).body == b"x"


async def test_misuse_is_an_error_and_no_broken_answer(rig: Rig) -> None:
    errors: list[Exception] = []

    def write(client: Client) -> None:
        client.reply(200, [], b"x")
        for wrong in (partial(client.start, 200, []), partial(client.write, b"more")):
            try:
                wrong()
            except RuntimeError as error:
                errors.append(error)

    answering(rig, write)
    client = await rig.connect()
    client.post()
    assert (await client.answer()).body == b"x"
    assert len(errors) == 2


async def test_writing_to_a_client_that_left_does_nothing(rig: Rig) -> None:
    ready, left, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        ready.set()
        try:
            await left.wait()
        finally:
            assert client.connection.transport is None
            client.start(200, [])
            client.write(b"x", last=True)
            done.set()
        return client.response()

    rig.answer = answer
    client: RawClient = await rig.connect()
    client.post()
    await ready.wait()
    client.close()
    async with asyncio.timeout(10):
        await done.wait()


async def test_a_request_of_another_server_is_refused() -> None:
    failed: list[Exception] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            Client(request)
        except TypeError as error:
            failed.append(error)
        return web.Response()

    plain = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*plain.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await reader.read()
    writer.close()
    plain.close()
    assert "Frontend" in str(failed[0])


async def test_an_answer_that_ended_with_the_engines_own_error_ends_properly(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [])
        client.write(b'{"error":"x"}\n')
        client.end()
        client.end()

    answering(rig, write)
    client = await rig.connect()
    for _ in range(2):
        client.post()
        assert (await client.answer()).body == b'{"error":"x"}\n'


async def test_an_answer_of_a_length_that_misses_bytes_does_not_end_properly(rig: Rig) -> None:
    def write(client: Client) -> None:
        client.start(200, [("Content-Length", "100")])
        client.write(b"x")
        client.end()

    answering(rig, write)
    got = await rig.ask()
    assert not got.complete
    assert got.body == b"x"


async def test_no_content_has_no_length(rig: Rig) -> None:
    answering(rig, lambda client: client.reply(204, [("Date", "then")], b""))
    client = await rig.connect()
    client.post()
    assert (await client.answer()).headers == {"date": "then"}
