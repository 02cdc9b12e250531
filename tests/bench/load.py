"""The clients of a benchmark: raw protocols on one event loop, cheap enough to leave the proxy the bottleneck."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from tests.bench.ticks import Ticks


def request(fields: dict[str, Any]) -> bytes:
    body = json.dumps(
        {"model": "bench", "messages": [{"role": "user", "content": "Why is the sky blue? " * 5}], **fields},
        separators=(",", ":"),
    ).encode()
    return (
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


SHORT = request({"stream": False})


def stream(chunks: int) -> bytes:
    return request({"stream": True, "options": {"num_predict": chunks}})


class Broken(Exception):
    """A proxy gave something other than what was asked for."""


class Streams:
    """Streams through one proxy, counted while they run."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.chunks = 0
        self.begun = 0
        self.ended = 0
        self.lost = 0
        self._transports: list[asyncio.Transport] = []

    async def start(self, count: int, chunks: int) -> None:
        loop = asyncio.get_running_loop()
        payload = stream(chunks)
        for _ in range(count):
            transport, _ = await loop.create_connection(lambda: _Stream(self), "127.0.0.1", self._port)
            transport.write(payload)
            self._transports.append(transport)

    async def all_begun(self, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.begun < len(self._transports):
            if time.monotonic() > deadline or self.lost:
                raise Broken(f"{self.begun} of {len(self._transports)} streams began, {self.lost} were lost")
            await asyncio.sleep(0.005)

    def close(self) -> None:
        for transport in self._transports:
            transport.abort()


class _Stream(asyncio.Protocol):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = False

    def data_received(self, data: bytes) -> None:
        streams = self._streams
        streams.chunks += data.count(b'"done":false')
        if not self._begun:
            self._begun = True
            streams.begun += data.startswith(b"HTTP/1.1 200")
        if data.endswith(b"0\r\n\r\n"):
            streams.ended += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.lost += 1


class Shorts(asyncio.Protocol):
    """One kept connection that asks for a short answer; `answered` is called when it is whole."""

    def __init__(self, answered: Callable[["Shorts"], None]) -> None:
        self._answered = answered
        self._transport: Any = None
        self._got = b""
        self.due_s = 0.0
        self.broken = False

    def ask(self) -> None:
        self._transport.write(SHORT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.endswith(b"}\n"):
            self.broken = not self._got.startswith(b"HTTP/1.1 200")
            self._got = b""
            self._answered(self)

    def close(self) -> None:
        self._transport.abort()


async def _connect(port: int, answered: Callable[[Shorts], None]) -> Shorts:
    _, one = await asyncio.get_running_loop().create_connection(lambda: Shorts(answered), "127.0.0.1", port)
    return one


async def closed_loop(port: int, connections: int, seconds: float, measure: Callable[[], float]) -> tuple[int, float]:
    """Each connection asks again as soon as it is answered. Returns answers, and the CPU that `measure` saw used."""
    answers = 0
    running = True

    def answered(one: Shorts) -> None:
        nonlocal answers
        if one.broken:
            raise Broken("a short request was refused")
        answers += 1
        if running:
            one.ask()

    clients = [await _connect(port, answered) for _ in range(connections)]
    for one in clients:
        one.ask()
    await asyncio.sleep(0.1)
    answers, before = 0, measure()
    await asyncio.sleep(seconds)
    count, used = answers, measure() - before
    running = False
    await asyncio.sleep(0.05)
    for one in clients:
        one.close()
    if count == 0:
        raise Broken("no short request was answered")
    return count, used


async def open_loop(port: int, per_s: int, seconds: float) -> list[float]:
    """Requests at fixed times, whether or not earlier ones are answered. Returns times to first byte from when due."""
    took: list[float] = []
    sent = 0

    def answered(one: Shorts) -> None:
        if one.broken:
            raise Broken("a short request was refused")
        took.append(time.perf_counter() - one.due_s)
        idle.append(one)

    total = int(per_s * seconds)
    clients = [await _connect(port, answered) for _ in range(min(total, 512))]
    idle = list(clients)
    start_s = time.perf_counter()

    def ask(passed: int) -> None:
        nonlocal sent
        for _ in range(min(passed, total - sent, len(idle))):
            one = idle.pop()
            one.due_s = start_s + (sent + 1) / per_s
            sent += 1
            one.ask()

    ticks = Ticks(1_000_000_000 // per_s, ask)
    deadline = start_s + seconds + 5
    while len(took) < total and time.perf_counter() < deadline:
        await asyncio.sleep(0.01)
    ticks.close()
    for one in clients:
        one.close()
    # What was not answered within 5 s took longer than that; the first tenth warms connections up.
    return (took + [float("inf")] * (total - len(took)))[total // 10 :]
