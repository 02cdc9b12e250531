"""Two joined connections: bytes, pace and ends go through."""

import asyncio
import os
import socket
from typing import Any

import pytest

from proxy.passage import BUFFER_BYTES, EngineSide, Side
from tests.wait import until


class Joined:
    """A passage and the two programs at its ends, as plain sockets."""

    def __init__(self) -> None:
        self.box, self.engine = Side(), EngineSide(linger_s=0.05)
        self.box.other, self.engine.other = self.engine, self.box
        self.boxes: Any = None
        self.engines: Any = None

    async def start(self) -> None:
        self.boxes = await self._pair(self.box)
        self.engines = await self._pair(self.engine)

    @staticmethod
    async def _pair(side: Side) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        listening, far = socket.socket(), socket.socket()
        for each in (listening, far):  # what a kernel takes in unasked is not what is tested
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        far.connect(listening.getsockname())
        near, _ = listening.accept()
        listening.close()
        await loop.connect_accepted_socket(lambda: side, near)
        return await asyncio.open_connection(sock=far)

    def close(self) -> None:
        for _, writer in (self.boxes, self.engines):
            writer.transport.abort()


@pytest.fixture
async def joined() -> Any:
    joined = Joined()
    await joined.start()
    yield joined
    joined.close()


async def test_bytes_go_both_ways(joined: Joined) -> None:
    for (reader, _), (_, writer) in ((joined.boxes, joined.engines), (joined.engines, joined.boxes)):
        data = os.urandom(3_000_000)
        writer.write(data)
        assert await reader.readexactly(len(data)) == data


async def test_a_side_that_does_not_read_stops_the_other(joined: Joined) -> None:
    _, writer = joined.engines
    joined.boxes[1].transport.pause_reading()
    for _ in range(1000):
        writer.write(bytes(65536))
    await until(lambda: joined.box.full, "the passage to be full")
    assert joined.box.transport.get_write_buffer_size() <= BUFFER_BYTES + 256 * 1024
    assert not joined.engine.transport.is_reading()
    joined.boxes[1].transport.resume_reading()
    await joined.boxes[0].readexactly(65_536_000)
    assert joined.engine.transport.is_reading()


async def test_a_reset_comes_behind_what_was_sent_before_it(joined: Joined) -> None:
    joined.boxes[1].transport.pause_reading()
    data = os.urandom(3_000_000)
    joined.engines[1].write(data)
    await until(lambda: joined.box.full, "the passage to be full")
    waiting = joined.box.transport.get_write_buffer_size()
    joined.box.reset()
    joined.box.reset()
    assert joined.box.transport.get_write_buffer_size() == waiting
    joined.boxes[1].transport.resume_reading()
    with pytest.raises(ConnectionResetError):
        await joined.boxes[0].readexactly(len(data))
    await until(joined.box.transport.is_closing, "the side to close")


async def test_an_engine_reset_is_a_reset_and_its_end_an_end(joined: Joined) -> None:
    joined.engines[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    joined.engines[1].transport.abort()
    with pytest.raises(ConnectionResetError):
        await joined.boxes[0].readexactly(1)


async def test_an_end_of_stream_is_one(joined: Joined) -> None:
    joined.engines[1].write(b"all")
    joined.engines[1].write_eof()
    assert await joined.boxes[0].read() == b"all"
    assert await joined.engines[0].read() == b"", "let go after a while"


async def test_when_the_box_leaves_so_does_the_passage(joined: Joined) -> None:
    joined.engine.leave()
    assert await joined.engines[0].read() == b""
    assert joined.box.other is None
    joined.boxes[1].write(b"nobody asked for this")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await joined.boxes[0].readexactly(1)
