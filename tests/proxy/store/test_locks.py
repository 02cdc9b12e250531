"""Named locks: one holder, whatever happens to it or to the store. Against real stores."""

import asyncio

import pytest

from proxy.store import Lock, Refused, Store, StoreDown
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


@pytest.mark.usefixtures("raw")
async def test_one_of_two_proxies_has_it(open_store: OpenStore) -> None:
    a, b = await open_store("a"), await open_store("b")
    lock = await a.locks.take("models:x", "a pulls tiny")
    with pytest.raises(Refused, match="a pulls tiny"):
        await b.locks.take("models:x")
    await b.locks.take("models:y")  # another one
    await a.locks.drop(lock)
    assert (await _taken(b, "models:x")).name == "models:x"


@pytest.mark.usefixtures("raw")
async def test_also_within_one_proxy(open_store: OpenStore) -> None:
    store = await open_store("a")
    await store.locks.take("x")
    with pytest.raises(Refused):
        await store.locks.take("x")


@pytest.mark.usefixtures("raw")
async def test_it_is_kept_for_longer_than_its_time(open_store: OpenStore) -> None:
    a, b = await open_store("a", lease_ttl_s=0.3), await open_store("b", lease_ttl_s=0.3)
    lock = await a.locks.take("x")
    kept = lock.kept_at_s
    await until(lambda: lock.kept_at_s > kept + 0.6, "it was renewed over twice its time")
    with pytest.raises(Refused):
        await b.locks.take("x")
    assert not lock.is_lost


@pytest.mark.usefixtures("raw")
async def test_one_that_leaves_gives_it_back_at_once(open_store: OpenStore) -> None:
    a, b = await open_store("a"), await open_store("b")
    await a.locks.take("x")
    await a.close()
    await _taken(b, "x")


@pytest.mark.usefixtures("raw")
async def test_one_that_died_is_rid_of_it(open_store: OpenStore) -> None:
    a, b = await open_store("a", lease_ttl_s=0.3), await open_store("b", lease_ttl_s=0.3)
    lock = await a.locks.take("x")
    assert lock.keeping is not None
    lock.keeping.cancel()  # as its process does, it renews no more
    await _taken(b, "x")


async def test_without_the_store_none_is_granted_and_what_is_held_is_lost(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    store = await open_store("a", own_process.url, lease_ttl_s=0.5, call_timeout_s=0.1)
    lock = await store.locks.take("x")
    told: list[str] = []
    lock.on_lost = lambda: told.append("lost")
    own_process.stop()
    with pytest.raises(StoreDown):
        await store.locks.take("y")
    await until(lambda: told == ["lost"], "it is lost")
    assert lock.is_lost
    await store.locks.drop(lock)


@pytest.mark.usefixtures("raw")
async def test_a_lock_that_another_took_is_lost(open_store: OpenStore) -> None:
    a, b = await open_store("a", lease_ttl_s=0.5), await open_store("b", lease_ttl_s=0.5)
    lock = await a.locks.take("x")
    await a._link.call(("DEL", a._keys.lock("x")))  # the store lost it
    await b.locks.take("x", "b")
    await until(lambda: lock.is_lost, "the first is told")


@pytest.mark.usefixtures("raw")
async def test_a_store_that_lost_its_data_is_told_again(open_store: OpenStore) -> None:
    a, b = await open_store("a"), await open_store("b")
    lock = await a.locks.take("x")
    await b._link.call(("FLUSHALL",))
    a._tell_again()
    await a.caught_up()

    async def refused() -> bool:
        try:
            await b.locks.drop(await b.locks.take("x"))
        except Refused:
            return True
        return False

    await until(refused, "the lock is known again")
    assert not lock.is_lost


@pytest.mark.usefixtures("raw")
async def test_a_take_that_is_given_up_leaves_nothing(open_store: OpenStore) -> None:
    a, b = await open_store("a"), await open_store("b")
    taking = asyncio.ensure_future(a.locks.take("x"))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    await _taken(b, "x")


async def _taken(store: Store, name: str) -> Lock:
    found: list[Lock] = []

    async def take() -> bool:
        try:
            found.append(await store.locks.take(name))
        except Refused:
            return False
        return True

    await until(take, "the lock is free")
    return found[0]
