"""Several proxies that hear each other through one store: news, presence, and a store that loses its data."""

import asyncio
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store.records import Occupancy
from proxy.store.store import Store
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.heard import Heard, following
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

pytestmark = pytest.mark.usefixtures("raw")


async def trio(open_store: OpenStore) -> tuple[list[Store], list[Heard]]:
    stores = [await open_store(name) for name in "abc"]
    heard = [await following(store) for store in stores]
    await until(lambda: all(len(store.proxies) == 3 for store in stores), "all know each other")
    return stores, heard


async def test_news_of_others_is_heard_by_all_in_one_order(open_store: OpenStore) -> None:
    (one, two, three), heard = await trio(open_store)
    for number in range(20):
        (one, two)[number % 2].tell(b"%d" % number)
        await (one, two)[number % 2].claim("g0", f"n{number}", 1, 100, 1, news=b"taken %d" % number)
    one.give_back("g0", "n0", b"over 0")
    assert await two.release("g0", "n1", b"over 1")
    for store in (one, two, three):
        await store.caught_up()

    assert len(heard[2].news) == 42
    assert heard[0].news == [item for item in heard[2].news if item[0] == two.owner]
    assert heard[1].news == [item for item in heard[2].news if item[0] == one.owner]
    assert [heard.gaps for heard in heard] == [0, 0, 0]
    assert one.position == two.position == three.position


async def test_only_what_happened_is_told_and_once(open_store: OpenStore) -> None:
    (one, two, _), heard = await trio(open_store)
    await one.claim("g0", "n1", 1, 1, 1, news=b"taken")
    await one.claim("g0", "n1", 1, 1, 1, news=b"taken")
    await two.claim("g0", "n2", 1, 1, 1, news=b"refused")
    await one.claim("g1", "n3", 1, 1, 1)
    await one.release("g0", "n1", b"over")
    await one.release("g0", "n1", b"over")
    one.give_back("g0", "never", b"over")
    one.give_back("g1", "n3")
    await one.claim("g1", "n0", 0, 1, 1, news=b"no seat")
    one.tell(b"")
    await two.caught_up()

    assert heard[1].news == [(one.owner, b"taken"), (one.owner, b"over")]


async def test_news_is_told_once_although_answers_are_lost(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        two = await open_store("b", url=own_process.url)
        heard = await following(two)
        one = await open_store("a", url=lossy.url)
        await until(lambda: len(two.proxies) == 2, "the other is known")
        for number in range(5):
            one._link.backoff_s = 0.0  # breaks in a row are spaced; test_link looks at that
            lossy.lose_answers = True
            assert (await one.claim("g0", f"n{number}", 1, 9, 1, news=b"taken %d" % number)).granted
            one._link.backoff_s = 0.0
            lossy.lose_answers = True
            if number % 2:
                one.give_back("g0", f"n{number}", b"over %d" % number)
            else:
                await one.release("g0", f"n{number}", b"over %d" % number)
            await one.occupancy(["g0"])
        await two.caught_up()

        assert [news for _, news in heard.news] == [b"%s %d" % (w, n) for n in range(5) for w in (b"taken", b"over")]
        await one.close()


async def test_what_was_told_on_a_connection_that_broke_is_told_again_in_order(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        two = await open_store("b", url=own_process.url)
        heard = await following(two)
        one = await open_store("a", url=lossy.url)
        await until(lambda: len(two.proxies) == 2, "the other is known")
        lossy.cut()
        for number in range(3):
            one.tell(b"%d" % number)
        await one.claim("g0", "n", 1, 1, 1, news=b"taken")
        await two.caught_up()

        assert list(dict.fromkeys(news for _, news in heard.news)) == [b"0", b"1", b"2", b"taken"]
        await one.close()


async def test_a_lease_that_ended_while_the_store_was_away_is_told_on_return(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    one = await open_store("a", url=own_process.url, call_timeout_s=0.3)
    two = await open_store("b", url=own_process.url, call_timeout_s=0.3)
    heard = await following(two)
    await one.claim("g0", "n1", 1, 4, 1, news=b"taken")
    own_process.stop()
    await one.occupancy(["g0"])
    await until(lambda: not one.up, "one noticed")
    assert (await one.claim("g0", "n2", 1, 4, 1, news=b"taken alone")).local
    one.tell(b"dropped")
    one.give_back("g0", "n1", b"over 1")
    await one.release("g0", "n2", b"over 2")
    own_process.start()
    await until(lambda: one.up and two.up and heard.gaps, "all are back")
    await one.renew()
    await two.occupancy(["g0"])
    await two.caught_up()

    told = [news for _, news in heard.news]
    assert told[0] == b"taken"
    assert b"dropped" not in told
    assert b"taken alone" not in told
    assert len(told) == len(set(told)), "nothing is told twice"
    assert (await two.occupancy(["g0"]))["g0"].seats_total == 0


async def test_who_comes_and_who_leaves_is_known_at_once(open_store: OpenStore) -> None:
    one = await open_store("a", lease_ttl_s=3600)
    heard = await following(one)
    two = await open_store("b", lease_ttl_s=3600)
    await until(lambda: heard.owners[-1:] == [{one.owner, two.owner}], "the new one is known")

    await two.close()
    await until(lambda: heard.owners[-1] == {one.owner}, "it is known to have left")
    assert one.proxies == (one.owner,)


async def test_a_proxy_that_dies_is_gone_after_a_lease_time(open_store: OpenStore) -> None:
    one = await open_store("a", lease_ttl_s=3600)
    heard = await following(one)
    two = await open_store("b", lease_ttl_s=0.5)
    await until(lambda: heard.owners[-1:] == [{one.owner, two.owner}], "the new one is known")

    await two._tasks.close()
    await two._fleet.close()
    await two._link.close()
    await until(lambda: heard.owners[-1] == {one.owner}, "it is known to be gone")


async def test_a_proxy_that_dies_is_not_gone_before_its_leases(open_store: OpenStore, raw: redis.Redis) -> None:
    """It showed itself long before it took the last one. Whoever hears that it is gone can take its seats."""
    one = await open_store("a", lease_ttl_s=3600)
    heard = await following(one)
    two = await open_store("b", lease_ttl_s=0.5)
    await until(lambda: heard.owners[-1:] == [{one.owner, two.owner}], "the new one is known")
    await two._tasks.close()
    sign = raw.zscore(two._keys.proxies, two.owner)

    async def later() -> bool:
        await two.claim("g0", "n1", 1, 1, 1)
        return raw.zscore(two._keys.proxies, two.owner) != sign

    await until(later, "it claimed later than it showed itself")
    assert raw.zscore(two._keys.proxies, two.owner) == raw.zscore(two._keys.leases("g0"), f"{two.owner}/n1#0")
    await two._fleet.close()
    await two._link.close()
    await until(lambda: heard.owners[-1] == {one.owner}, "it is known to be gone")

    assert (await one.claim("g0", "n1", 1, 1, 1)).granted


async def test_closing_while_a_claim_has_the_store_looked_at_does_not_cancel_the_claim(
    open_store: OpenStore, raw: redis.Redis
) -> None:
    store = await open_store(call_timeout_s=0.3)

    async def endless() -> None:
        await asyncio.get_running_loop().create_future()

    store._fleet.look = endless  # type: ignore[method-assign]
    raw.flushall()
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 1, 1))
    await until(lambda: store._fleet._healing is not None, "the store is looked at")
    await store._fleet.close()

    assert (await claim).local


async def test_lost_data_is_noticed_by_the_next_claim_and_nobody_gets_too_much(
    open_store: OpenStore, raw: redis.Redis
) -> None:
    (one, two, three), heard = await trio(open_store)
    for number, store in enumerate((one, two)):
        assert (await store.claim("g0", f"n{number}", 3, 6, 1, slot=number)).granted
    with capture_logs() as lines:
        raw.flushall()
        reply = await three.claim("g0", "n", 1, 6, 1)

        assert not reply.granted
        assert not reply.local
        assert reply.seats_elsewhere >= 4
        await until(lambda: all(store._fleet.presence.settling is None for store in (one, two, three)), "settled")
    assert (await three.occupancy(["g0"]))["g0"].seats_total == 6
    assert len([line for line in lines if line["event"].startswith("store lost its data")]) == 3
    assert all(item.gaps >= 1 for item in heard)
    await one.release("g0", "n0")
    assert (await three.claim("g0", "n", 1, 6, 1, slot=0)).granted
    assert [store.proxies for store in (one, two, three)] == [tuple(sorted(s.owner for s in (one, two, three)))] * 3
    assert heard[2].owners == [], "nobody was taken for gone"


async def test_a_lost_lease_takes_no_seat_of_another_that_the_store_forgot(
    open_store: OpenStore, raw: redis.Redis
) -> None:
    """Found by test_whole_fleet: renewed in the emptied store before its rightful holder told it again."""
    one, two = await open_store("a", lease_ttl_s=0.3), await open_store("b")
    for store in (one, two):
        await following(store)
    await one.claim("g0", "n1", 1, 1, 1)
    await one._tasks.close()  # as if the process had been stopped

    async def taken() -> bool:
        return (await two.claim("g0", "other", 1, 1, 1)).granted

    await until(taken, "its lease expired")
    assert [lost.nonce for lost in await one.renew()] == ["n1"]
    lives = {store._fleet.presence.life for store in (one, two)}
    raw.flushall()
    assert await one.renew() == []

    def again() -> bool:
        return not lives & {store._fleet.presence.life for store in (one, two)}

    await until(again, "both told the store everything again")
    await one.renew()
    await until(lambda: two._fleet.presence.settling is None, "settled")
    await one.renew()
    assert (await two.occupancy(["g0"]))["g0"] == Occupancy(1, 1, False)


async def test_everything_that_was_there_is_there_again_after_lost_data(
    open_store: OpenStore, raw: redis.Redis
) -> None:
    (one, two, _), _ = await trio(open_store)
    assert await one.set_policy(b"document", None) == 1
    assert await two.policy() == (1, b"document")
    assert await two.set_policy(b"newer", 1) == 2
    await one.claim("g0", "n1", 1, 4, 1, slot=3)
    raw.flushall()
    await one.claim("g1", "n2", 1, 4, 1)

    await until(lambda: two._fleet.presence.life == one._fleet.presence.life, "both told it again")
    await two.occupancy(["g0"])
    assert await one.policy() == (2, b"newer")
    assert (await two.claim("g0", "n3", 1, 4, 1, slot=3)).slot_refused


async def test_on_return_each_takes_its_share_only_until_the_others_were_heard(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """Both granted alone. The one that is back first must not take what the other still holds."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        two = await open_store("b", url=lossy.url, call_timeout_s=0.3)
        one = await open_store("a", url=own_process.url, call_timeout_s=0.3)
        heard = [await following(store) for store in (one, two)]
        await until(lambda: len(one.proxies) == len(two.proxies) == 2, "both know each other")
        own_process.stop()
        lossy.closed = True
        for store in (one, two):
            await store.occupancy(["g0"])
            await until(lambda: not store.up, "the trouble is noticed")  # noqa: B023
            replies = [await store.claim("g0", f"n{i}", 1, 4, 1) for i in range(3)]
            assert [reply.granted for reply in replies] == [True, True, False]
        own_process.start()
        await until(lambda: one.up, "one is back")
        first = await one.claim("g0", "more", 1, 4, 1)
        assert not first.granted
        assert not first.local
        assert first.seats_elsewhere == 2, "what is kept for the other counts as taken"
        await one.release("g0", "n0")
        assert (await one.claim("g0", "instead", 1, 4, 1)).granted
        assert one.proxies == tuple(sorted((one.owner, two.owner)))

        lossy.closed = False
        await until(lambda: one._fleet.presence.settling is None and two.up, "the other was heard")
        assert (await one.occupancy(["g0"]))["g0"].seats_total == 4
        await until(lambda: two._fleet.presence.settling is None, "and hears the first")
        await two.release("g0", "n0")
        assert (await one.claim("g0", "more", 1, 4, 1)).granted
        assert all(len(owners) == 2 for item in heard for owners in item.owners[-1:])
        await two.close()


async def test_a_partitioned_proxy_settles_as_soon_as_the_others_answer(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        one = await open_store("a", url=lossy.url, call_timeout_s=0.3, lease_ttl_s=3600)
        two = await open_store("b", url=own_process.url, lease_ttl_s=3600)
        for store in (one, two):
            await following(store)
        await until(lambda: len(one.proxies) == len(two.proxies) == 2, "both know each other")
        lossy.closed = True
        lossy.cut()
        await until(lambda: not one.up, "the trouble is noticed")
        lossy.closed = False
        await until(lambda: one.up and one._fleet.presence.settling is None, "it settled")

        assert (await one.claim("g0", "all", 4, 4, 1)).granted
        await one.close()


async def test_nobody_waits_for_ever_for_a_proxy_that_never_comes_back(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    one = await open_store("a", url=own_process.url, call_timeout_s=0.3, lease_ttl_s=0.6)
    heard = await following(one)
    two = await open_store("b", url=own_process.url, call_timeout_s=0.3, lease_ttl_s=0.6)
    await until(lambda: len(one.proxies) == 2, "the other is known")
    own_process.stop()
    await two.close()
    own_process.start()
    await until(lambda: one.up, "it is back")
    await until(lambda: heard.owners[-1] == {one.owner}, "the other is given up")

    assert (await one.claim("g0", "all", 4, 4, 1)).granted


async def test_catching_up_costs_nothing_where_there_is_nobody_to_hear(open_store: OpenStore) -> None:
    one = await open_store("a")
    await one.caught_up()
    await following(one)
    wire = one._link._wire
    assert wire is not None
    await one.occupancy(["g0"])
    before = wire.writes
    await one.caught_up()

    assert wire.writes == before


async def test_catching_up_ends_without_the_store(open_store: OpenStore, own_process: StoreProcess) -> None:
    one = await open_store("a", url=own_process.url, call_timeout_s=0.2)
    two = await open_store("b", url=own_process.url, call_timeout_s=0.2)
    await following(one)
    await until(lambda: len(one.proxies) == 2, "both are there")
    own_process.stall()
    async with asyncio.timeout(10):
        await one.caught_up()
        await one.caught_up()
    own_process.go_on()
    assert two.owner in one.proxies
