"""Claims that are given back, said again or take too long; what they do at a well store is in test_store."""

import asyncio
from pathlib import Path

import pytest
import redis

from proxy.store.holdings import Stand
from proxy.store.link import State
from proxy.store.records import Occupancy
from proxy.store.store import Store
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.heard import following
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


async def seats(store: Store) -> int:
    return (await store.occupancy(["g0"]))["g0"].seats_total


@pytest.mark.usefixtures("raw")
async def test_a_claim_that_is_given_back_before_its_answer_holds_nothing(open_store: OpenStore) -> None:
    store = await open_store()
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 1, 1))
    await asyncio.sleep(0)
    store.give_back("g0", "n1")

    assert not (await claim).granted
    assert await seats(store) == 0
    assert store._holdings.backends() == []


async def test_a_claim_that_is_given_back_and_then_said_again_holds_nothing(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """The connection broke between the claim and its answer, so the release could not go out after it."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url)
        lossy.lose_answers = True
        claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 1, 1, slot=0))
        await until(lambda: store._link.state is State.RECOVERING, "the break is noticed")
        store.give_back("g0", "n1")

        assert not (await claim).granted
        assert await seats(store) == 0
        assert store._holdings.backends() == []
        await store.close()


@pytest.mark.usefixtures("raw")
async def test_a_nonce_that_is_claimed_anew_at_once_is_held(open_store: OpenStore, raw: redis.Redis) -> None:
    store = await open_store()
    await store.claim("g0", "n1", 1, 1, 1)
    store.give_back("g0", "n1")
    assert (await store.claim("g0", "n1", 1, 1, 1)).granted

    assert store._holdings.of("g0")["n1"].stand is Stand.HELD
    raw.delete(store._keys.leases("g0"))
    assert await store.renew() == []
    assert await seats(store) == 1, "it is renewed"


async def test_a_claim_does_not_wait_longer_than_a_call_however_long_the_store_takes_to_return(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """It is decided alone on what others were known to hold, and told as soon as the connection is there again."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        two = await open_store("b", url=own_process.url)
        heard = await following(two)
        one = await open_store("a", url=lossy.url)
        await until(lambda: len(one.proxies) == len(two.proxies) == 2, "both know each other")
        assert (await two.claim("g0", "n0", 3, 4, 1)).granted
        assert await seats(one) == 3
        one._link._call_timeout_s, one._leases._call_timeout_s = 60.0, 0.1
        lossy.closed = True
        lossy.cut()
        await until(lambda: one._link.state is State.RECOVERING, "the break is noticed")
        async with asyncio.timeout(30):
            replies = [await one.claim("g0", f"n{i}", 1, 4, 1, news=b"taken %d" % i) for i in range(2)]

        assert [(reply.granted, reply.local) for reply in replies] == [(True, True), (False, True)]
        assert one.up
        lossy.closed = False
        await until(lambda: one._link.state is State.UP, "it is connected again")
        assert (await one.occupancy(["g0"]))["g0"] == Occupancy(4, 1, False)
        await until(lambda: heard.news == [(one.owner, b"taken 0")], "the other hears of it")
        await one.close()


@pytest.mark.usefixtures("raw")
async def test_a_claim_that_is_late_at_a_well_store_is_told_at_once(open_store: OpenStore) -> None:
    """It waited for others. What the store may have granted late is kept, or given back, without waiting for a
    renewal.
    """
    store = await open_store(lease_ttl_s=3600)
    store._leases._call_timeout_s = -1.0
    granted = await store.claim("g0", "n1", 2, 2, 1)
    refused = await store.claim("g0", "n2", 1, 2, 1)
    assert [(reply.granted, reply.local) for reply in (granted, refused)] == [(True, True), (False, True)]

    assert (await store.occupancy(["g0"]))["g0"] == Occupancy(2, 2, False)
    assert store._holdings.of("g0").keys() == {"n1"}


class PlayedCircle:
    """Others that are told directly."""

    def __init__(self) -> None:
        self.whole = False
        self.forming = False
        self.told: list[bytes] = []
        self.wanted = asyncio.Event()
        self.known = asyncio.Event()

    def tell(self, payload: bytes) -> None:
        self.told.append(payload)

    async def formed(self, until_s: float) -> None:
        assert until_s > asyncio.get_running_loop().time()
        self.wanted.set()
        await self.known.wait()


async def pair_without_store(open_store: OpenStore, process: StoreProcess) -> tuple[Store, PlayedCircle]:
    """A proxy of two that just lost the store."""
    store, circle = await open_store(url=process.url, call_timeout_s=0.25), PlayedCircle()
    await open_store("other", url=process.url, call_timeout_s=0.25)
    store.tell_directly(circle)
    await store._fleet.look()
    assert len(store.proxies) == 2
    process.stop()
    await until(lambda: not store.up, "the store is away")
    return store, circle


async def test_where_others_are_heard_slots_are_named_and_what_happens_is_told(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    store, circle = await pair_without_store(open_store, own_process)
    circle.known.set()
    assert (await store.claim("g0", "n0", 1, 4, 1, 0, b"refused")).slot_refused
    circle.whole = True

    reply = await store.claim("g0", "n1", 1, 4, 1, 0, b"taken")
    assert (reply.granted, reply.local, reply.kept, reply.seats_elsewhere) == (True, True, True, 2)
    assert (await store.claim("g0", "n1", 1, 4, 1, 0, b"taken")).granted, "said again, not told again"
    assert (await store.claim("g0", "n2", 1, 4, 1, 0, b"refused")).slot_refused
    store.tell(b"news")
    assert await store.release("g0", "n1", b"over")
    store.give_back("g0", "nobody's", b"of nothing")

    assert circle.told == [b"taken", b"news", b"over"]
    assert (await store.occupancy(["g0"]))["g0"] == Occupancy(2, 0, False, local=True, kept=True)


async def test_a_claim_waits_until_it_is_known_whether_others_are_heard(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    store, circle = await pair_without_store(open_store, own_process)
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 4, 1, 0))
    await circle.wanted.wait()
    circle.whole = True
    circle.known.set()

    assert (await claim).granted


async def test_if_the_store_is_back_meanwhile_it_is_asked(open_store: OpenStore, own_process: StoreProcess) -> None:
    store, circle = await pair_without_store(open_store, own_process)
    store._leases._call_timeout_s = 30.0
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 4, 1, 0))
    await circle.wanted.wait()
    own_process.start()
    await until(lambda: store.up, "the store is back")
    circle.known.set()

    reply = await claim
    assert (reply.granted, reply.local) == (True, False)


async def test_a_claim_that_is_cancelled_while_it_waits_holds_nothing(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    store, circle = await pair_without_store(open_store, own_process)
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 4, 1, 0))
    await circle.wanted.wait()
    claim.cancel()
    await asyncio.wait([claim])

    assert store._holdings.seats("g0") == 0
    assert store._holdings.of("g0")["n1"].stand is Stand.GONE
