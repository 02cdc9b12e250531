"""One change on one model store: locks, turns, failover. Scripted engines behind a real store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.model_store import single
from proxy.model_store.grouping import ModelStore
from proxy.model_store.single import Outcome, Singles
from proxy.model_store.wishes import Change, Wish
from proxy.relay import ConnectionPool
from proxy.store import Store
from tests.proxy.relay.rig import CHUNKED_OK, Call, ScriptedEngine, chunk, sized
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

PULL = Wish(Change.PULL, "m", {"model": "m"})
DELETE = Wish(Change.DELETE, "m", {"model": "m"})
PLACE = ModelStore("x", ("a", "b"))
DONE = (CHUNKED_OK, chunk(b'{"status":"pulling manifest"}\n{"status":"success"}\n'), b"0\r\n\r\n")


class Scene:
    """Two engines that share a directory, and proxies that change it."""

    def __init__(self, url: str) -> None:
        self.engines = {name: ScriptedEngine(self.succeed) for name in ("a", "b")}
        self.usable = ["a", "b"]
        self.waits = 0
        self._pools: dict[str, ConnectionPool] = {}
        self._url = url
        self.stores: list[Store] = []

    @staticmethod
    async def succeed(call: Call) -> None:
        call.write(*DONE)

    def of(self, backend_id: str) -> ConnectionPool:
        return self._pools.setdefault(backend_id, ConnectionPool(self.engines[backend_id].endpoint))

    async def proxy(self, name: str = "p") -> Singles:
        store = Store(self._url, fleet="single", proxy_id=name, lease_ttl_s=0.6, call_timeout_s=0.2)
        self.stores.append(store)
        await store.start()
        return Singles(store.locks, self, lambda _store: list(self.usable), name)

    async def run(self, proxy: Singles, wish: Wish = PULL, patience_s: float | None = None) -> Outcome:
        return await proxy.run(PLACE, wish, lambda _line: None, self._waits, patience_s)

    def _waits(self) -> None:
        self.waits += 1

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@pytest.fixture
def process(short_dir: Path) -> Any:
    process = StoreProcess("valkey", short_dir)
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def scene(process: StoreProcess) -> AsyncIterator[Scene]:
    scene = Scene(process.url)
    for engine in scene.engines.values():
        await engine.start()
    yield scene
    scene.close()
    for engine in scene.engines.values():
        await engine.stop()
    for store in scene.stores:
        await store.close()


async def test_the_first_backend_does_it(scene: Scene) -> None:
    outcome = await scene.run(await scene.proxy())
    assert outcome == Outcome(backend="a")
    assert [len(engine.calls) for engine in scene.engines.values()] == [1, 0]


async def test_two_proxies_never_at_once(scene: Scene) -> None:
    open_now, most = 0, 0

    async def script(call: Call) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(20):
            await asyncio.sleep(0)
        open_now -= 1
        call.write(*DONE)

    for engine in scene.engines.values():
        engine.script = script
    proxies = [await scene.proxy(name) for name in ("one", "two")]
    outcomes = await asyncio.gather(*(scene.run(proxy) for proxy in proxies for _ in range(3)))

    assert all(outcome.ok for outcome in outcomes)
    assert most == 1
    assert scene.waits > 0


async def test_patience_has_an_end(scene: Scene) -> None:
    held = asyncio.Event()

    async def script(call: Call) -> None:
        await held.wait()
        call.write(*DONE)

    scene.engines["a"].script = script
    one, two = await scene.proxy("one"), await scene.proxy("two")
    first = asyncio.ensure_future(scene.run(one))
    await until(lambda: scene.engines["a"].calls, "it runs")
    for proxy in (one, two):
        outcome = await scene.run(proxy, DELETE, 0.05)
        assert (outcome.status, "is under way" in outcome.error) == (503, True)
    held.set()
    assert (await first).ok


async def test_one_that_breaks_is_followed_by_the_next(scene: Scene) -> None:
    async def breaks(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"status":"pulling manifest"}\n'))
        await call.writer.drain()
        call.reset()

    scene.engines["a"].script = breaks
    proxy = await scene.proxy()
    assert await scene.run(proxy) == Outcome(backend="b")
    scene.engines["b"].script = breaks
    failed = await scene.run(proxy)
    assert (failed.status, failed.backend) == (502, "b")
    assert "did not finish it" in failed.error


async def test_what_ollama_refuses_is_not_tried_elsewhere(scene: Scene) -> None:
    async def refuses(call: Call) -> None:
        call.write(sized(b'{"error":"model \'m\' not found"}', "404 Not Found"))

    scene.engines["a"].script = refuses
    outcome = await scene.run(await scene.proxy(), DELETE)
    assert (outcome.status, outcome.error, outcome.raw) == (
        404,
        "model 'm' not found",
        b'{"error":"model \'m\' not found"}',
    )
    assert scene.engines["b"].calls == []


async def test_a_delete_that_was_done_before_its_answer_was_lost(scene: Scene) -> None:
    async def dies(call: Call) -> None:
        call.reset()

    async def missing(call: Call) -> None:
        call.write(sized(b'{"error":"model \'m\' not found"}', "404 Not Found"))

    scene.engines["a"].script, scene.engines["b"].script = dies, missing
    assert (await scene.run(await scene.proxy(), DELETE)).ok


async def test_a_delete_that_hangs_does_not_stop_all_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "AT_ONCE_S", 0.05)
    scene.engines["a"].script = Call.gone
    proxy = await scene.proxy()
    assert await scene.run(proxy, DELETE) == Outcome(backend="b")
    assert (await scene.run(proxy, DELETE)).ok
    assert len(scene.engines["a"].calls) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [(b'{"error":"no such host"}\n', "no such host"), (b'{"status":"x"}\n', "the progress ended without success")],
)
async def test_streams_that_end_badly(scene: Scene, text: bytes, error: str) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(text), b"0\r\n\r\n")

    scene.engines["a"].script = script
    outcome = await scene.run(await scene.proxy())
    assert (outcome.status, outcome.error) == (500, error)


async def test_nobody_to_ask(scene: Scene) -> None:
    scene.usable = []
    outcome = await scene.run(await scene.proxy())
    assert (outcome.status, outcome.error) == (503, "no backend of the model store answers: a, b")


async def test_without_the_store(scene: Scene, process: StoreProcess) -> None:
    proxy = await scene.proxy()
    process.stop()
    assert await scene.run(proxy) == Outcome(503, single.AWAY)
    assert scene.engines["a"].calls == []


async def test_a_lock_that_is_lost_ends_it(scene: Scene, process: StoreProcess) -> None:
    left: list[bool] = []

    async def script(call: Call) -> None:
        with contextlib.suppress(ConnectionError):
            await call.gone()
        left.append(True)

    scene.engines["a"].script = script
    running = asyncio.ensure_future(scene.run(await scene.proxy()))
    await until(lambda: scene.engines["a"].calls, "it runs")
    process.stop()
    assert await running == Outcome(503, single.AWAY)
    await until(lambda: left, "the engine was told to stop")
    assert scene.engines["b"].calls == []
