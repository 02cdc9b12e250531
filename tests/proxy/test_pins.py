"""Pins of two proxies that share a real store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from proxy.pins import Pins
from proxy.store import Store, StoreDown
from scheduler.domain import Backend
from scheduler.events import Event, Pin, PinsChanged
from scheduler.runner import Runner
from tests.proxy.store.store_process import StoreProcess
from tests.scheduler.cards import ollama as card
from tests.wait import until


def ollama(name: str) -> Backend:
    return card(name, contexts={"m:latest": 4096})


class Proxy:
    """One proxy's pins; it calls the backend `gpu` by its own name, if it knows it."""

    def __init__(self, url: str, own: str) -> None:
        self.own = own
        self.knows = True
        self.store = Store(url, fleet="pins", proxy_id=own, call_timeout_s=5.0)
        self.fed: list[Event] = []
        self.pins = Pins(self.store.pins, self, self.fed.append)

    @property
    def all(self) -> list[Pin]:
        """In force now."""
        return list(self.pins.all)

    def store_id(self, backend_id: str) -> str:
        return "gpu" if backend_id == self.own else f"?{backend_id}"

    def local_id(self, store_id: str) -> str | None:
        return self.own if store_id == "gpu" and self.knows else None

    async def close(self) -> None:
        await self.pins.close()
        await self.store.close()


@pytest.fixture
def store_url() -> Iterator[str]:
    with TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess("valkey", Path(name))
        process.start()
        yield process.url
        process.stop()


@pytest.fixture
async def pair(store_url: str) -> AsyncIterator[tuple[Proxy, Proxy]]:
    one, two = Proxy(store_url, "a"), Proxy(store_url, "b")
    for proxy in (one, two):
        await proxy.store.start()
        await proxy.pins.start()
    one.pins.on_set = lambda _version: two.pins.heard()
    yield one, two
    await one.close()
    await two.close()


async def test_a_pin_is_the_whole_fleets(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    await one.pins.pin("m:latest", "a", Runner(num_ctx=8192))
    await until(lambda: two.pins.all, "the other proxy has heard of it")

    assert one.fed == [PinsChanged((Pin("m:latest", "a", Runner(num_ctx=8192)),))]
    assert two.fed == [PinsChanged((Pin("m:latest", "b", Runner(num_ctx=8192)),))]
    loaded, smaller = Runner(num_ctx=8192), Runner(num_ctx=4096)
    assert two.pins.keeps("m:latest", ollama("b"), loaded)
    assert not two.pins.keeps("m:latest", ollama("b"), smaller)
    assert not two.pins.keeps("m:latest", ollama("c"), loaded)
    assert not two.pins.keeps("n:latest", ollama("b"), loaded)
    assert two.pins.is_pinned("m:latest")
    assert not two.pins.is_pinned("n:latest")


async def test_it_survives_those_who_set_it(pair: tuple[Proxy, Proxy], store_url: str) -> None:
    await pair[0].pins.pin("m:latest", "", Runner())
    later = Proxy(store_url, "a")
    await later.store.start()
    await later.pins.start()

    assert later.pins.all == (Pin("m:latest"),)
    assert later.pins.keeps("m:latest", ollama("any"), None)
    await later.close()


async def test_pinning_again_replaces_and_unpinning_tells_where(pair: tuple[Proxy, Proxy]) -> None:
    one, pins = pair[0], pair[0].pins
    await pins.pin("m:latest", "a", Runner())
    await pins.pin("m:latest", "a", Runner(num_ctx=2048))
    await pins.pin("m:latest", "", Runner())
    await pins.pin("n:latest", "", Runner())
    assert one.all == [Pin("m:latest"), Pin("m:latest", "a", Runner(num_ctx=2048)), Pin("n:latest")]

    assert await pins.unpin("m:latest", "other") == []
    assert await pins.unpin("m:latest", "a") == ["a"]
    assert await pins.unpin("m:latest") == [""]
    assert await pins.unpin("m:latest") == []
    assert one.all == [Pin("n:latest")]


async def test_two_that_change_it_at_once_lose_nothing(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    for number in range(5):
        await asyncio.gather(one.pins.pin(f"m{number}", "", Runner()), two.pins.pin(f"n{number}", "", Runner()))
    await one.pins.agree()

    assert {pin.model for pin in one.pins.all} == {f"{name}{number}" for name in "mn" for number in range(5)}


async def test_a_backend_that_is_not_known_yet_waits(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    two.knows = False
    await one.pins.pin("m:latest", "a", Runner())
    await two.pins.agree()
    assert two.all == []
    two.knows = True
    await two.pins.agree()
    assert two.all == [Pin("m:latest", "b")]


async def test_the_configurations_stay_whatever_the_list_says(pair: tuple[Proxy, Proxy]) -> None:
    pins = pair[0].pins
    pins.configure({"m:latest": Runner(num_ctx=4096)})
    assert pins.is_configured("m:latest")
    assert await pins.unpin("m:latest") == []
    assert pins.all == (Pin("m:latest", "", Runner(num_ctx=4096)),)

    await pins.pin("m:latest", "", Runner(num_ctx=8192))
    assert pins.all == (Pin("m:latest", "", Runner(num_ctx=8192)),)
    pins.configure({})
    assert pins.all == (Pin("m:latest", "", Runner(num_ctx=8192)),)


async def test_without_the_store_nothing_changes(pair: tuple[Proxy, Proxy], tmp_path: Path) -> None:
    proxy = Proxy(f"unix://{tmp_path}/none.sock", "a")
    await proxy.store.start()
    await proxy.pins.start()
    proxy.pins.configure({"m:latest": Runner()})
    with pytest.raises(StoreDown):
        await proxy.pins.pin("n:latest", "", Runner())

    assert proxy.pins.all == (Pin("m:latest"),)
    await proxy.close()


async def test_a_list_that_cannot_be_read_changes_nothing(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    await one.pins.pin("m:latest", "", Runner())
    await until(lambda: two.pins.all, "the other proxy has heard of it")
    await one.store.pins.replace(b"[{]", 1)
    with capture_logs() as logs:
        await one.pins.agree()
        await one.pins.agree()

    assert one.pins.all == (Pin("m:latest"),)
    assert [each["event"] for each in logs] == ["list of pins not understood"]

    with pytest.raises(StoreDown, match="another version"):
        await one.pins.pin("n:latest", "", Runner())
    assert await two.store.pins.read() == (2, b"[{]"), "what was not understood is not overwritten"
