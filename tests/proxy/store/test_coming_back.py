"""While the store is gone each proxy serves its share; when it is back the store learns the truth."""

from pathlib import Path

from proxy.store.records import BackendRecord, ClaimReply, Occupancy
from proxy.store.store import Store
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

QUICK = 0.3
"""Call timeout in seconds where the store will be stalled or killed."""


async def pair(open_store: OpenStore, process: StoreProcess, lease_ttl_s: float = 15.0) -> tuple[Store, Store]:
    """Two proxies that know of each other."""
    one = await open_store("a", url=process.url, call_timeout_s=QUICK, lease_ttl_s=lease_ttl_s)
    two = await open_store("b", url=process.url, call_timeout_s=QUICK, lease_ttl_s=lease_ttl_s)
    await one._announce()
    assert len(one.proxies) == len(two.proxies) == 2
    return one, two


async def noticed(*stores: Store) -> None:
    """Each store has found out that its store is gone."""
    for store in stores:
        await store.occupancy(["any"])
        await until(lambda: not store.up, "trouble is noticed")  # noqa: B023


async def back(*stores: Store) -> None:
    """Each store is up, and what it had to tell has been heard."""
    for store in stores:
        await until(lambda: store.up, "it is back")  # noqa: B023
        assert not (await store.occupancy(["any"]))["any"].local


async def grants(store: Store, limit: int, tries: int = 8, backend_id: str = "g0", epoch: int = 1) -> int:
    replies = [await store.claim(backend_id, f"alone{i}", 1, limit, epoch) for i in range(tries)]
    assert all(reply.local for reply in replies)
    return sum(reply.granted for reply in replies)


async def test_shares_of_all_proxies_add_up_to_the_limit(open_store: OpenStore, own_process: StoreProcess) -> None:
    one, two = await pair(open_store, own_process)
    own_process.stop()
    await noticed(one, two)

    for backend_id in ("g0", "g1", "g2"):
        shares = [await grants(store, 5, backend_id=backend_id) for store in (one, two)]
        assert sorted(shares) == [2, 3]


async def test_one_proxy_alone_has_everything(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=QUICK)
    await store.claim("g0", "n1", 1, 4, 1)
    own_process.stop()
    await noticed(store)

    assert await grants(store, 4) == 3


async def test_what_others_held_counts_until_it_would_have_expired(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    one, two = await pair(open_store, own_process, lease_ttl_s=0.6)
    await one.claim("g0", "n1", 3, 4, 1)
    await two.occupancy(["g0"])
    own_process.stop()
    await noticed(two)

    assert await grants(two, 4) == 1
    assert (await two.occupancy(["g0"]))["g0"] == Occupancy(4, 1, False, local=True)

    async def second() -> bool:
        return (await two.claim("g0", "later", 1, 4, 1)).granted

    await until(second, "the share holds")
    assert not (await two.claim("g0", "third", 1, 4, 1)).granted


async def test_the_smaller_announced_limit_holds_alone_too(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=QUICK)
    await store.heartbeat([BackendRecord("g0", 1, 2)])
    await store.claim("g0", "n1", 1, 4, 1)
    own_process.stop()
    await noticed(store)

    assert await grants(store, 4) == 1


async def test_draining_and_epochs_hold_alone_too(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=QUICK)
    await store.set_draining("g0", True)
    await store.claim("g1", "n1", 1, 1, epoch=5)
    own_process.stop()
    await noticed(store)

    assert await store.claim("g0", "n1", 1, 1, 1) == ClaimReply(False, 0, 0, True, 1, local=True)
    assert await store.claim("g1", "n2", 1, 1, epoch=4) == ClaimReply(False, 1, 1, False, 5, local=True)
    assert await store.claim("g1", "n3", 1, 1, epoch=6) == ClaimReply(True, 1, 1, False, 6, local=True)
    assert await store.claim("g1", "n3", 1, 1, epoch=6) == ClaimReply(True, 1, 1, False, 6, local=True)


async def test_leases_released_or_given_up_meanwhile_are_dropped_on_return(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    """The store keeps its data: it is only stalled. The claim that it did not answer is carried out late."""
    one, two = await pair(open_store, own_process)
    await one.claim("g0", "n1", 1, 2, 1)
    await one.claim("g0", "n2", 1, 2, 1)
    own_process.stall()
    assert not (await one.claim("g0", "n3", 1, 2, 1)).granted
    assert await one.release("g0", "n1")
    assert not await one.release("g0", "n1")
    own_process.go_on()
    await back(one, two)

    assert (await two.occupancy(["g0"]))["g0"] == Occupancy(1, 0, False)
    assert one._holdings.of("g0").keys() == {"n2"}


async def test_a_store_that_comes_back_empty_learns_everything(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    one, two = await pair(open_store, own_process)
    record = BackendRecord("g0", 3, 4, {"engine": "ollama"})
    await one.heartbeat([record])
    await one.claim("g0", "before", 2, 4, 3)
    await one.set_draining("g1", True)
    listed = await two.backends()
    own_process.stop()
    await noticed(one, two)
    assert await two.backends() == listed
    assert (await two.claim("g0", "during", 1, 4, 3)).granted
    await two.set_draining("g2", True)
    own_process.start()
    await back(one, two)

    assert [item.record for item in await two.backends()] == [record]
    seen = await one.occupancy(["g0", "g1", "g2"])
    assert seen["g0"] == Occupancy(3, 2, False)
    assert seen["g2"].draining
    await one._announce()
    assert (await two.occupancy(["g1"]))["g1"].draining


async def test_a_flag_lifted_meanwhile_stays_lifted(open_store: OpenStore, own_process: StoreProcess) -> None:
    one, two = await pair(open_store, own_process)
    await one.set_draining("g0", True)
    assert (await two.occupancy(["g0"]))["g0"].draining
    own_process.stop()
    await noticed(one, two)
    await one.set_draining("g0", False)
    own_process.start()
    await back(one, two)
    await one.set_draining("g0", False)
    await two._announce()

    assert not (await two.occupancy(["g0"]))["g0"].draining


async def test_too_many_on_return_are_told_as_they_are_and_nothing_new_fits_until_below(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """A partition: one proxy alone lost the store, and the other took the whole limit meanwhile."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        two = await open_store("b", url=own_process.url)
        one = await open_store("a", url=lossy.url, call_timeout_s=QUICK)
        lossy.closed = True
        lossy.cut()
        await noticed(one)
        assert await grants(one, 4) == 2
        assert [(await two.claim("g0", f"n{i}", 1, 4, 1)).granted for i in range(4)] == [True] * 4
        lossy.closed = False
        await back(one)

        assert (await two.occupancy(["g0"]))["g0"] == Occupancy(6, 4, False)
        assert await one.claim("g0", "new", 1, 4, 1) == ClaimReply(False, 6, 2, False, 1)
        for i in range(3):
            await two.release("g0", f"n{i}")
        assert (await one.claim("g0", "new", 1, 4, 1)).granted
        await one.close()


async def test_a_lost_lease_is_not_forced_back_when_a_connection_is_replaced(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """Its seat is another's by right; only room brings it back."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        one = await open_store("a", url=lossy.url, lease_ttl_s=0.3)
        two = await open_store("b", url=own_process.url)
        await one.claim("g0", "n1", 1, 1, 1)
        await one._tasks.close()  # as if the process had been stopped

        async def taken() -> bool:
            return (await two.claim("g0", "other", 1, 1, 1)).granted

        await until(taken, "its lease expired")
        assert [lost.nonce for lost in await one.renew()] == ["n1"]
        lossy.cut()

        assert (await one.occupancy(["g0"]))["g0"] == Occupancy(1, 0, False)
        await two.release("g0", "other")
        assert await one.renew() == []
        assert (await one.occupancy(["g0"]))["g0"] == Occupancy(1, 1, False)
        await one.close()
