"""Loads and unloads at emulated Ollamas over HTTP, with the lock in a real Valkey."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from proxy import loads as loads_module
from proxy.emulated.emulated_engine import EmulatedEngine
from proxy.emulated.faults import Kind
from proxy.endpoint import Endpoint, parse_endpoint
from proxy.loads import Loads, load_body
from proxy.store import Store
from scheduler import effects, events
from scheduler.runner import Runner
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

MODELS = ["a", "b", "embedder"]


class Engines:
    """The backend `gpu`, and what is wanted of it."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.looks: list[str] = []
        self.by_default: list[tuple[str, str]] = []

    def endpoint(self, backend_id: str) -> Endpoint:
        if self.url is None:
            raise LookupError(f"no backend {backend_id}")
        return parse_endpoint(self.url)

    def look(self, backend_id: str, _at_s: float) -> None:
        self.looks.append(backend_id)

    def store_id(self, backend_id: str) -> str:
        return f"box/{backend_id}"

    def loaded_by_default(self, backend_id: str, model: str) -> None:
        self.by_default.append((backend_id, model))


class Proxy:
    """One proxy's loads, and what they told."""

    def __init__(self, store: Store, url: str | None) -> None:
        self.engines = Engines(url)
        self.ended: list[events.Event] = []
        self.loads = Loads(self.engines, store.locks, self.ended.append)

    async def end(self, effect: effects.Load) -> events.LoadEnded:
        """Load, and wait for what came of it."""
        self.loads.load(effect)
        await until(lambda: self.ended, "the load is over")
        (ended,) = self.ended
        self.ended.clear()
        assert isinstance(ended, events.LoadEnded)
        assert (ended.backend_id, ended.model, ended.nonce) == (effect.backend_id, effect.model, effect.nonce)
        return ended


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    with TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess("valkey", Path(name))
        process.start()
        yield process.url
        process.stop()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    store = Store(store_url, fleet="loads", proxy_id="p", call_timeout_s=5.0)
    await store.start()
    yield store
    await store.close()


@pytest.fixture
async def engine() -> AsyncIterator[EmulatedEngine]:
    async with EmulatedEngine("ollama", models=MODELS, load_s=0.2, speed=10.0, max_loaded=3, context=4096) as engine:
        yield engine


@pytest.fixture
async def proxy(store: Store, engine: EmulatedEngine) -> AsyncIterator[Proxy]:
    proxy = Proxy(store, engine.url)
    yield proxy
    await proxy.loads.close()


def load(model: str = "a:latest", **values: Any) -> effects.Load:
    return effects.Load("gpu", model, "nonce", **({"runner": Runner()} | values))


async def loaded(engine: EmulatedEngine) -> dict[str, int]:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        models = (await client.get("/api/ps")).json()["models"]
    return {model["name"]: model["context_length"] for model in models}


async def test_a_model_is_loaded_with_its_options(proxy: Proxy, engine: EmulatedEngine) -> None:
    ended = await proxy.end(load(runner=Runner(num_ctx=8192), keep_alive_s=-1.0))

    assert (ended.loaded, ended.detail, ended.refused) == (True, "", False)
    assert ended.took_ms is not None
    assert ended.took_ms >= 20.0
    assert await loaded(engine) == {"a:latest": 8192}
    assert engine.residents[0].keep_alive_s < 0
    assert proxy.engines.looks == ["gpu"]
    (record,) = proxy.loads.records
    assert (record.loaded, record.took_ms) == (True, ended.took_ms)


async def test_what_is_loaded_already_took_no_time_to_learn_from(proxy: Proxy, engine: EmulatedEngine) -> None:
    await proxy.end(load(runner=Runner(num_ctx=8192)))
    again = await proxy.end(load(runner=Runner(num_ctx=8192), keep_alive_s=-1.0))

    assert (again.loaded, again.took_ms) == (True, None)
    assert engine.loads.loads == 1
    assert engine.residents[0].keep_alive_s < 0


async def test_a_load_without_a_context_shows_the_engines_default(proxy: Proxy) -> None:
    await proxy.end(load(runner=Runner(num_ctx=8192)))
    assert proxy.engines.by_default == []
    await proxy.end(load(runner=Runner()))
    assert proxy.engines.by_default == [("gpu", "a:latest")]


async def test_what_is_in_its_way_is_unloaded_first(proxy: Proxy, engine: EmulatedEngine) -> None:
    await proxy.end(load())
    await proxy.end(load("b:latest"))
    ended = await proxy.end(load("a:latest", runner=Runner(num_ctx=2048), unload=("a:latest", "b:latest")))

    assert ended.loaded
    assert await loaded(engine) == {"a:latest": 2048}
    assert (engine.loads.reloads, engine.loads.evictions) == (0, 0)


async def test_what_does_not_leave_fails_the_load(
    proxy: Proxy, engine: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads_module, "GONE_WITHIN_S", 0.1)
    await proxy.end(load())
    engine.faults.add(Kind.FREEZE)
    async with httpx.AsyncClient(base_url=engine.url) as client:
        body = {"model": "a", "prompt": "x", "options": {"num_predict": 1000}}
        running = asyncio.ensure_future(client.post("/api/generate", json=body))
        await until(lambda: engine.open_requests, "a request runs on it")
        ended = await proxy.end(load("b:latest", unload=("a:latest",)))
        running.cancel()

    assert not ended.loaded
    assert ended.detail.startswith("a: still loaded after 0.1 s")


async def test_an_embedding_model_is_loaded_by_an_empty_embedding(proxy: Proxy, engine: EmulatedEngine) -> None:
    ended = await proxy.end(load("embedder:latest", embeds=True, runner=Runner(num_ctx=512)))

    assert ended.loaded
    assert [each.path for each in engine.requests if each.method == "POST"] == ["/api/embed"]
    assert await loaded(engine) == {"embedder:latest": 512}


async def test_the_engines_own_words_tell_why_not(proxy: Proxy, engine: EmulatedEngine) -> None:
    engine.faults.add(Kind.LOAD_FAILS, times=1, message="llama runner process has terminated: CUDA out of memory")
    failed = await proxy.end(load())
    missing = await proxy.end(load("nope:latest"))

    assert (failed.loaded, failed.detail) == (False, "llama runner process has terminated: CUDA out of memory")
    assert (missing.loaded, missing.detail) == (False, "model 'nope' not found")


async def test_a_backend_that_is_gone(store: Store) -> None:
    proxy = Proxy(store, None)
    assert "no backend gpu" in (await proxy.end(load())).detail
    proxy = Proxy(store, "http://127.0.0.1:9")
    assert "cannot connect" in (await proxy.end(load())).detail
    await proxy.loads.close()


async def test_only_one_proxy_loads_at_a_backend(store: Store, store_url: str, engine: EmulatedEngine) -> None:
    other_store = Store(store_url, fleet="loads", proxy_id="q", call_timeout_s=5.0)
    await other_store.start()
    one, other = Proxy(store, engine.url), Proxy(other_store, engine.url)
    engine.faults.add(Kind.HANG, times=1)
    one.loads.load(load())
    await until(lambda: engine.open_requests, "the first load is on its way")

    refused = await other.end(load("b:latest"))
    assert (refused.loaded, refused.refused) == (False, True)
    assert refused.detail == "another proxy of the fleet loads a there"
    await one.loads.close()
    assert [(each.loaded, each.detail) for each in one.ended] == [(False, "slotgate stops")]  # type: ignore[union-attr]
    assert (await other.end(load("b:latest"))).loaded
    await other.loads.close()
    await other_store.close()


async def test_without_the_store_it_loads_all_the_same(tmp_path: Path, engine: EmulatedEngine) -> None:
    store = Store(f"unix://{tmp_path}/none.sock", fleet="loads", proxy_id="p", call_timeout_s=0.2)
    await store.start()
    proxy = Proxy(store, engine.url)
    assert (await proxy.end(load())).loaded
    await proxy.loads.close()
    await store.close()


async def test_a_load_that_never_began_ends_too(proxy: Proxy) -> None:
    proxy.loads.load(load())
    await proxy.loads.close()  # before its first step
    proxy.loads.load(load())
    await proxy.loads.close()

    assert [each.loaded for each in proxy.ended if isinstance(each, events.LoadEnded)] == [False, False]


async def test_unloading(proxy: Proxy, engine: EmulatedEngine) -> None:
    await proxy.end(load())
    proxy.loads.unload(effects.Unload("gpu", "a:latest"))
    await until(lambda: not engine.residents, "it is unloaded")


async def test_why_an_unload_came_to_nothing_is_logged(proxy: Proxy) -> None:
    with capture_logs() as logged:
        proxy.loads.unload(effects.Unload("gpu", "nope:latest"))
        await until(lambda: bool(logged), "it is refused")
        proxy.engines.url = None
        proxy.loads.unload(effects.Unload("gpu", "a:latest"))
        await until(lambda: len(logged) == 2, "it cannot be told")
    assert [each["event"] for each in logged] == ["model not unloaded"] * 2
    assert logged[0]["error"] == "model 'nope' not found"
    assert "no backend gpu" in logged[1]["error"]


def test_what_is_said() -> None:
    full = load(runner=Runner(8192, num_gpu=20, use_mmap=False, shift=False, exact=True), keep_alive_s=90.5)
    assert load_body(full) == {
        "model": "a",
        "stream": False,
        "options": {"num_ctx": 8192, "num_gpu": 20, "use_mmap": False},
        "shift": False,
        "keep_alive": "90.5s",
    }
    assert load_body(load(keep_alive_s=0.0)) == {"model": "a", "stream": False}
    assert load_body(load(embeds=True)) == {"model": "a", "input": []}
