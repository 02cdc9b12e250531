"""Telling without waiting; what happens when the connection breaks is in test_fleet."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from proxy.store.store import Store
from proxy.store.telling import UNANSWERED_MAX, Telling
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


@pytest.fixture
async def lossy(own_process: StoreProcess, short_dir: Path) -> AsyncIterator[LossySocket]:
    async with LossySocket(own_process.url, short_dir) as socket:
        yield socket


def news(client: redis.Redis, store: Store) -> list[bytes]:
    entries: list[tuple[bytes, dict[bytes, bytes]]] = client.xrange(store._keys.log)  # type: ignore[assignment]
    return [fields[b"d"] for _, fields in entries if b"d" in fields]


@pytest.mark.usefixtures("raw")
async def test_it_stands_in_the_log_before_what_is_asked_later(open_store: OpenStore, raw: redis.Redis) -> None:
    store = await open_store()
    store.tell(b"1")
    await store.claim("g0", "n", 1, 1, 1, news=b"2")
    store.tell(b"3")
    store.tell(b"")
    await store.release("g0", "n", b"4")

    assert news(raw, store) == [b"1", b"2", b"3", b"4"]
    assert not store._telling._unanswered


async def test_what_is_told_while_the_connection_is_replaced_is_told_on_the_next(
    open_store: OpenStore, own_process: StoreProcess, lossy: LossySocket
) -> None:
    store = await open_store(url=lossy.url)
    lossy.cut()
    await until(lambda: store._link.state.value == "recovering", "the break is noticed")
    store.tell(b"1")
    store.tell(b"2")
    await store.occupancy(["g0"])

    client = redis.Redis.from_url(own_process.url, protocol=2)
    assert news(client, store) == [b"1", b"2"]
    assert not store._telling._unanswered
    client.close()
    await store.close()


async def test_without_the_store_it_is_dropped(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=0.2)
    own_process.stall()
    store.tell(b"1")
    await until(lambda: not store.up, "the trouble is noticed")
    store.tell(b"2")

    assert not store._telling._unanswered
    own_process.go_on()


async def test_what_is_kept_is_bounded(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url)
    own_process.stall()
    telling: Telling = store._telling
    for _ in range(UNANSWERED_MAX + 10):
        telling.tell(b"x")

    assert len(telling._unanswered) == UNANSWERED_MAX
    own_process.go_on()
    await store.occupancy(["g0"])
    assert not telling._unanswered
