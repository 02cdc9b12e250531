"""Stores to test against: the bundled Valkey, and the system's Redis where there is one. No imitation."""

import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from proxy.store.store import Store
from tests.proxy.store.store_process import REDIS, StoreProcess

ENGINES = ["valkey", *(["redis"] if REDIS else [])]

OpenStore = Callable[..., Awaitable[Store]]


@pytest.fixture(scope="session", params=ENGINES)
def shared_process(request: pytest.FixtureRequest) -> Iterator[StoreProcess]:
    """A store that lives as long as the test run; each test finds it empty."""
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess(request.param, Path(name))
        process.start()
        yield process
        process.stop()


@pytest.fixture
def raw(shared_process: StoreProcess) -> Iterator[redis.Redis]:
    """A plain client of the shared store, to look behind the scenes."""
    client = redis.Redis.from_url(shared_process.url, protocol=2)
    client.flushall()
    client.script_flush()
    yield client
    client.close()


@pytest.fixture
def own_process(short_dir: Path) -> Iterator[StoreProcess]:
    """A Valkey of this test's own, started, to be stalled, killed and reconfigured."""
    process = StoreProcess("valkey", short_dir)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def fleet() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def open_store(request: pytest.FixtureRequest, fleet: str) -> AsyncIterator[OpenStore]:
    """Opens stores of one fleet; the shared process is behind them if no URL is given."""
    stores: list[Store] = []
    for name in {"own_process", "raw", "two_nodes", "watched"} & set(request.fixturenames):
        request.getfixturevalue(name)  # first, so that it ends after the stores

    async def opened(proxy_id: str = "p", url: str | None = None, **settings: Any) -> Store:
        where = url or request.getfixturevalue("shared_process").url
        store = Store(where, fleet=fleet, proxy_id=proxy_id, **{"call_timeout_s": 5.0} | settings)
        stores.append(store)
        await store.start()
        return store

    yield opened
    urls = {store._places.url for store in stores if "sentinel" not in store._places.url}
    found = [leaked for url in urls for leaked in keys_without_end(url)]
    for store in stores:
        await store.close()
    assert found == []


@pytest.fixture(autouse=True)
def no_key_outlives_its_use(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails any test after which a key of the shared store has no TTL; `open_store` looks at others."""
    shared: StoreProcess | None = (
        request.getfixturevalue("shared_process") if "shared_process" in request.fixturenames else None
    )
    yield
    if shared is not None:
        assert keys_without_end(shared.url) == []


def keys_without_end(url: str) -> list[str]:
    """Keys that would stay for ever."""
    found: list[str] = []
    with suppress(redis.RedisError):
        client = redis.Redis.from_url(url, protocol=2, socket_timeout=1)
        with client:
            found = [key.decode() for key in client.scan_iter() if client.pttl(key) == -1]
    return found
