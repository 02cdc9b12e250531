"""What a worker does for the main process, step by step."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from proxy.clients import ClientSide
from proxy.config import Config
from proxy.workers import duty as module
from proxy.workers.duty import Duty
from proxy.workers.orders import Accept, Alive, Leaving, Orders, Ready, Reload, Retire, ToWorker
from proxy.workers.post import Post
from tests.wait import until


class Line:
    """In place of the post: what it would say to the worker, and what the worker says."""

    def __init__(self, groups: list[list[socket.socket]], ready: list[str]) -> None:
        self.groups = groups
        self.orders = Orders(1, {}, "/s", "/s/a.sock", [], 0, ready)
        self.told: list[object] = []
        self.order: Callable[[ToWorker], None] = lambda _order: None
        self.gone: Callable[[], None] = lambda: None

    def start(self, on_order: Callable[[ToWorker], None], on_gone: Callable[[], None]) -> None:
        self.order, self.gone = on_order, on_gone

    def tell(self, message: object) -> None:
        self.told.append(message)

    def keep_telling(self, how: Callable[[], Alive]) -> None:
        self.told.append(how())

    async def close(self) -> None:
        pass


class Proxy:
    """In place of the app, and of its client side."""

    def __init__(self) -> None:
        self.sees: list[str] = []
        self.stops = 0
        self.configs: list[Config] = []
        self.accepts: list[list[socket.socket]] = []
        self.left = asyncio.Event()
        self.connections = 0

    def usable(self) -> list[str]:
        return self.sees

    def alive(self) -> Alive:
        return Alive(served=5)

    def reconfigure(self, config: Config) -> None:
        self.configs.append(config)

    def stop(self) -> None:
        self.stops += 1

    async def accept_from(self, sockets: list[socket.socket]) -> None:
        self.accepts.append(sockets)

    async def retired(self) -> None:
        await self.left.wait()


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made = [socket.socket(), socket.socket()]
    yield made
    for each in made:
        each.close()


@asynccontextmanager
async def duty(sockets: list[socket.socket], ready: list[str]) -> AsyncIterator[tuple[Duty, Line, Proxy, ClientSide]]:
    line, proxy = Line([[each] for each in sockets], ready), Proxy()
    made = Duty(cast("Post", line), proxy)
    made.start()
    try:
        yield made, line, proxy, cast("ClientSide", cast("Any", proxy))
    finally:
        await made.close()


async def test_it_accepts_when_it_is_warm(sockets: list[socket.socket]) -> None:
    async with duty(sockets, ["gpu0", "gpu1"]) as (made, line, proxy, clients):
        proxy.sees = ["gpu0"]
        beginning = asyncio.ensure_future(made.begin(clients))
        line.order(Reload({"limits": {"drain_s": 3}}))  # while it starts: not lost
        await asyncio.sleep(0)
        assert (proxy.accepts, line.told) == ([], [])
        proxy.sees = ["gpu1", "gpu0"]
        await beginning

    assert proxy.accepts == [[sockets[0]]]
    assert line.told == [Ready(warm=True), Alive(served=5)]
    assert [config.limits.drain_s for config in proxy.configs] == [3]


async def test_it_does_not_wait_for_ever(sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_S", 0.05)
    async with duty(sockets, ["gpu0"]) as (made, line, proxy, clients):
        await made.begin(clients)

    assert line.told[0] == Ready(warm=False)
    assert proxy.accepts == [[sockets[0]]]


async def test_it_accepts_for_others_until_it_retires(sockets: list[socket.socket]) -> None:
    async with duty(sockets, []) as (made, line, proxy, clients):
        await made.begin(clients)
        line.order(Accept([1]))
        await until(lambda: proxy.accepts[1:] == [sockets], "it accepts for another one")
        line.order(Accept([]))
        await until(lambda: proxy.accepts[2:] == [[sockets[0]]], "and no more")
        line.order(Retire(60.0))
        line.order(Accept([1]))
        proxy.left.set()
        await until(lambda: proxy.stops == 1, "it ends when the last client has left")

    assert len(proxy.accepts) == 3


async def test_it_retires_in_time(sockets: list[socket.socket]) -> None:
    async with duty(sockets, []) as (made, line, proxy, clients):
        await made.begin(clients)
        line.order(Retire(0.01))
        await until(lambda: proxy.stops == 1, "it ends although clients are left")


async def test_without_the_main_process_it_ends_at_once(sockets: list[socket.socket]) -> None:
    async with duty(sockets, []) as (made, line, proxy, _clients):
        line.gone()
        assert proxy.stops == 2
        made.leave()  # what the app does then; nobody hears it, which is no matter

    assert line.told == [Leaving()]
