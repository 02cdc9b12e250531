import asyncio
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from proxy.relay import Client, ClientConnection, Sweeper, read_body
from proxy.tasks import Tasks
from tests.proxy.relay.rig import RawClient, Rig
from tests.wait import until


def _received(connection: ClientConnection, wanted: int) -> bool:
    return connection.received_bytes >= wanted


class Swept:
    """A rig whose clock moves only when the test says so."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.now_s = 1000.0
        self.sweeper = Sweeper(rig.frontend)

    def after(self, seconds: float) -> int:
        """Sweep each second of so many; returns how many connections were closed."""
        before = self.sweeper.closed
        for _ in range(int(seconds)):
            self.now_s += 1
            self.sweeper.sweep(self.now_s)
        return self.sweeper.closed - before

    async def connect(self, *parts: bytes) -> RawClient:
        """A client whose bytes have arrived."""
        client = await self.rig.connect()
        client.send(*parts)
        size = sum(map(len, parts))
        await until(
            lambda: self.rig.frontend.clients and self.rig.frontend.clients[-1].received_bytes == size, "its bytes"
        )
        self.sweeper.sweep(self.now_s)
        return client


@pytest.fixture
def swept(rig: Rig) -> Swept:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.reply(200, [], await read_body(request, 2**20))
        return client.response()

    rig.answer = answer
    return Swept(rig)


async def test_a_connection_that_sends_nothing_is_closed_without_a_word(swept: Swept) -> None:
    client = await swept.connect()
    assert swept.after(9) == 0
    assert swept.after(1) == 1
    assert await client.ended()


async def test_a_half_sent_head_is_answered_and_closed(swept: Swept) -> None:
    client = await swept.connect(b"GET / HTTP/1.1\r\nHost: a\r\nX-")
    for _ in range(9):
        assert swept.after(1) == 0
        client.send(b"a")  # one byte a second buys no time
        await client.writer.drain()
    assert swept.after(1) == 1
    assert (await client.answer()).status == 408
    assert await client.ended()


async def test_a_kept_connection_has_longer(swept: Swept) -> None:
    client = await swept.connect()
    client.post()
    await client.answer()
    await until(lambda: swept.rig.frontend.clients[0].waiting, "the end of the request")
    assert swept.after(75) == 0
    assert swept.after(2) == 1
    assert await client.ended()


async def test_a_second_head_that_stays_half_sent_is_closed_sooner(swept: Swept) -> None:
    client = await swept.connect()
    client.post()
    await client.answer()
    connection = swept.rig.frontend.clients[0]
    await until(lambda: connection.waiting, "the end of the request")
    swept.after(30)
    client.send(b"GET / HT")
    await until(lambda: connection.partial_head, "the partial head")
    assert swept.after(10) == 0
    assert swept.after(1) == 1
    assert (await client.answer()).status == 408


async def test_a_dribbled_body_is_closed(swept: Swept) -> None:
    client = await swept.connect(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
    connection = swept.rig.frontend.clients[0]
    await until(lambda: connection.body_wanted, "the request to be read")
    swept.sweeper.sweep(swept.now_s)
    for _ in range(29):
        client.send(b"x")
        await client.writer.drain()
        assert swept.after(1) == 0
    assert swept.after(1) == 1
    assert (await client.answer()).status == 408


async def test_a_slow_but_honest_body_is_not(swept: Swept) -> None:
    size = 60_000
    client = await swept.connect(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
    connection = swept.rig.frontend.clients[0]
    await until(lambda: connection.body_wanted, "the request to be read")
    for _ in range(10):
        wanted = connection.received_bytes + size // 10
        client.send(b"x" * (size // 10))
        await until(partial(_received, connection, wanted), "the piece")
        assert swept.after(20) == 0
    assert (await client.answer()).status == 200


async def test_a_request_in_progress_may_take_for_ever(swept: Swept) -> None:
    going = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await going.wait()
        client = Client(request)
        client.reply(200, [], b"x")
        return client.response()

    swept.rig.answer = answer
    client = await swept.connect(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await until(lambda: not swept.rig.frontend.clients[0].waiting, "the request to be taken up")
    assert swept.after(1000) == 0
    going.set()
    assert (await client.answer()).status == 200


async def test_a_client_that_reads_nothing_is_cut(swept: Swept) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        client.reply(200, [], b"x" * 20_000_000)
        return client.response()

    swept.rig.answer = answer
    client = await swept.rig.connect(receive_buffer_bytes=8192)
    client.post()
    await until(lambda: swept.rig.frontend.clients[0].sent_bytes, "the answer to be written")
    connection = swept.rig.frontend.clients[0]
    left = [-1]

    def settled() -> bool:
        before, left[0] = left[0], connection.wire.get_write_buffer_size()
        return before == left[0] and client.reader._paused  # type: ignore[attr-defined]

    await until(settled, "the kernel's buffers to fill")
    assert swept.after(60) == 0
    # Reading a little buys another minute.
    await client.reader.readexactly(5_000_000)
    await until(lambda: connection.wire.get_write_buffer_size() < left[0], "the buffer to drain")
    await until(settled, "the kernel's buffers to fill again")
    assert swept.after(60) == 0
    assert swept.after(2) == 1
    await until(lambda: not swept.rig.frontend.clients, "the connection to go")


async def test_a_thousand_slow_heads_are_closed_and_nobody_else(swept: Swept) -> None:
    honest = await swept.connect()
    honest.post()
    await honest.answer()
    for _ in range(300):
        (await swept.rig.connect()).send(b"GET / HTTP/1.1\r\n")
    await until(lambda: sum(one.received_bytes > 0 for one in swept.rig.frontend.clients) == 301, "all to connect")
    swept.sweeper.sweep(swept.now_s)
    assert swept.after(10) == 300
    honest.post()
    assert (await honest.answer()).status == 200


async def test_limits_may_change_while_connections_are_open(swept: Swept) -> None:
    client = await swept.connect()
    assert swept.after(5) == 0
    swept.sweeper.set_limits(header_timeout_s=20, body_timeout_s=1, idle_timeout_s=1, write_timeout_s=1)
    assert swept.after(14) == 0
    assert swept.after(1) == 1
    assert await client.ended()


async def test_it_runs_by_itself(rig: Rig) -> None:
    tasks = Tasks()
    tasks.start(Sweeper(rig.frontend, header_timeout_s=0.05, interval_s=0.01).run(), "sweeper")
    client: Any = await rig.connect()
    assert await client.ended()
    await tasks.close()
