"""However the engine's bytes are split, the client gets the same body. In memory: no kernel joins reads."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httptools
import pytest
import uvloop
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.endpoint import Endpoint
from proxy.relay import AttemptError, Client, ConnectionPool, Frontend, Outgoing, exchange
from proxy.relay.connection import EngineConnection
from tests.proxy.relay.rig import CHUNKED_OK, EndMark, Upper, chunk


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and tells somebody."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        super().__init__()
        self._written = written
        self.closed = False

    def write(self, data: Any) -> None:
        self._written(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Split(ConnectionPool):
    """A pool whose engine answers with given pieces, each of them one read."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__(Endpoint(host="engine"))
        self.pieces = pieces

    async def open(self) -> EngineConnection:
        connection = EngineConnection(self)

        def answer(_: bytes) -> None:
            asyncio.get_running_loop().call_soon(self._feed, connection)

        connection.connection_made(Wire(answer))
        return connection

    def _feed(self, connection: EngineConnection) -> None:
        for piece in self.pieces:
            connection.data_received(piece)


class Reader:
    """What a strict client makes of the answer."""

    def __init__(self, raw: bytes) -> None:
        self.body = b""
        self.complete = False
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(raw)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def relayed(pieces: list[bytes], **options: Any) -> tuple[bytes, AttemptError | None]:
    """All bytes that the client gets for these reads of the engine."""
    pool = Split(pieces)
    got: list[bytes] = []
    ended: asyncio.Future[AttemptError | None] = asyncio.get_running_loop().create_future()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        error = None
        try:
            await exchange(pool, Outgoing("POST", "/", []), client, on_first_byte=lambda: None, headers=[], **options)
        except AttemptError as failed:
            error = failed
        ended.set_result(error)
        return client.response()

    front = Frontend(answer)()
    front.connection_made(Wire(got.append))
    front.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    async with asyncio.timeout(2):
        error = await ended
    front.connection_lost(None)
    pool.close()
    return b"".join(got), error


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise(sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)}))]


bodies = st.lists(st.sampled_from([b"data: x\n\n", b"\r\n", b"0\r\n\r\n", b"y" * 300, b"!"]), min_size=1, max_size=8)
cuts = st.lists(st.integers(0, 5_000), max_size=40)


@pytest.fixture(scope="module")
def runner() -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@settings(deadline=None, max_examples=150)
@given(parts=bodies, at=cuts)
def test_raw(runner: asyncio.Runner, parts: list[bytes], at: list[int]) -> None:
    framed = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    raw, error = runner.run(relayed(split(CHUNKED_OK + framed, at)))
    assert error is None
    assert raw.partition(b"\r\n\r\n")[2] == framed
    assert Reader(raw).complete


@settings(deadline=None, max_examples=150)
@given(parts=bodies, at=cuts)
def test_transformed(runner: asyncio.Runner, parts: list[bytes], at: list[int]) -> None:
    framed = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    raw, error = runner.run(relayed(split(CHUNKED_OK + framed, at), transform=Upper()))
    assert error is None
    reader = Reader(raw)
    assert reader.complete
    assert reader.body == b"".join(parts).upper() + b"."


class Switching(Upper):
    """Changes what comes in the first reads; then steps aside."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.reads = reads
        self.taken = 0

    def feed(self, data: bytes) -> bytes:
        self.taken += len(data)
        self.reads -= 1
        self.passthrough = self.reads <= 0
        return data.upper()


@settings(deadline=None, max_examples=200)
@given(parts=bodies, at=cuts, reads=st.integers(0, 12))
def test_switching(runner: asyncio.Runner, parts: list[bytes], at: list[int], reads: int) -> None:
    framed = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    transform = Switching(reads)
    transform.passthrough = reads == 0
    raw, error = runner.run(relayed(split(CHUNKED_OK + framed, at), transform=transform))
    assert error is None
    reader = Reader(raw)
    assert reader.complete
    body = b"".join(parts)
    changed = body[: transform.taken].upper() + body[transform.taken :]
    # `finish` is asked only if the transform never stepped aside.
    assert reader.body == changed + (b"" if transform.passthrough else b".") or reader.body == changed + b"."


@settings(deadline=None, max_examples=150)
@given(parts=bodies, at=cuts, transformed=st.booleans())
def test_truncated(runner: asyncio.Runner, parts: list[bytes], at: list[int], transformed: bool) -> None:
    framed = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    options: dict[str, Any] = {"transform": Upper()} if transformed else {}
    raw, error = runner.run(relayed(split(CHUNKED_OK + framed, at), watch=EndMark(), **options))
    assert error is not None
    assert not Reader(raw).complete
    if error.committed:
        body = b"".join(parts)
        assert Reader(raw).body == (body.upper() + b"." if transformed else body)
    else:
        assert raw == b""
