"""What a proxy gets from its store while the store is well. Trouble is in test_link and test_coming_back."""

import asyncio

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store.records import BackendRecord, ClaimReply, LostLease, Occupancy
from proxy.store.store import Store
from tests.proxy.store.conftest import OpenStore
from tests.wait import until

pytestmark = pytest.mark.usefixtures("raw")


def leases(raw: redis.Redis, fleet: str, backend_id: str = "g0") -> int:
    """Members of the set of leases, as the store has it."""
    return int(raw.zcard(f"{{slotgate:{fleet}}}:leases:{backend_id}"))


async def test_two_proxies_share_the_seats_of_a_backend(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")

    assert await one.claim("g0", "n1", 1, 2, 1) == ClaimReply(True, 1, 1, False, 1)
    assert await two.claim("g0", "n1", 1, 2, 1) == ClaimReply(True, 2, 1, False, 1)
    refused = await one.claim("g0", "n2", 1, 2, 1)
    assert refused == ClaimReply(False, 2, 1, False, 1)
    assert refused.seats_elsewhere == 1
    assert await two.release("g0", "n1")
    assert (await one.claim("g0", "n2", 1, 2, 1)).granted


async def test_a_lease_is_released_once_and_only_by_its_proxy(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")
    await one.claim("g0", "n1", 1, 1, 1)

    assert not await two.release("g0", "n1")
    assert await one.release("g0", "n1")
    assert not await one.release("g0", "n1")
    assert not await one.release("never", "n1")


async def test_calls_of_one_turn_go_out_as_one_write(open_store: OpenStore) -> None:
    store = await open_store()
    wire = store._link._wire
    assert wire is not None
    before = wire.writes

    replies = await asyncio.gather(*(store.claim(f"g{i % 4}", f"n{i}", 1, 8, 1) for i in range(32)))

    assert all(reply.granted for reply in replies)
    assert wire.writes == before + 1


async def test_occupancy_of_several_backends_in_one_read(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")
    await one.claim("g0", "n1", 2, 4, 1)
    await two.claim("g0", "n1", 1, 4, 1)
    await two.set_draining("g1", True)

    assert await one.occupancy(["g0", "g1"]) == {"g0": Occupancy(3, 2, False), "g1": Occupancy(0, 0, True)}
    assert await one.occupancy([]) == {}


async def test_draining_is_seen_by_all_and_outlives_the_proxy_that_set_it(open_store: OpenStore) -> None:
    one = await open_store("a")
    await one.set_draining("g0", True)
    await one.close()
    two = await open_store("b")

    assert await two.claim("g0", "n1", 1, 2, 1) == ClaimReply(False, 0, 0, True, 1)
    await two.set_draining("g0", False)
    assert (await two.claim("g0", "n1", 1, 2, 1)).granted


async def test_the_registry_lists_what_any_proxy_announced(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")
    first = BackendRecord("g0", 3, 4, {"engine": "ollama", "models": ["m"]})
    second = BackendRecord("g1", 1, 2)
    await one.heartbeat([first])
    await two.heartbeat([second])
    await two.claim("g0", "n1", 1, 4, 3)
    await one.set_draining("g1", True)

    listed = await two.backends()

    assert [item.record for item in listed] == [first, second]
    assert [(item.seats_total, item.draining, item.heartbeat_by) for item in listed] == [
        (1, False, one.owner),
        (0, True, two.owner),
    ]
    assert all(0 <= item.heartbeat_age_s < 60 for item in listed)


async def test_facts_beyond_their_bound_are_refused(open_store: OpenStore) -> None:
    store = await open_store()

    with pytest.raises(ValueError, match="facts of"):
        await store.heartbeat([BackendRecord("g0", 1, 1, {"x": "y" * 70_000})])


async def test_leases_are_renewed_for_as_long_as_they_are_held(
    open_store: OpenStore, raw: redis.Redis, fleet: str
) -> None:
    store = await open_store(lease_ttl_s=0.6)
    await store.claim("g0", "n1", 1, 1, 1)
    key = f"{{slotgate:{fleet}}}:leases:g0"
    first = raw.zscore(key, f"{store.owner}/n1#0")
    assert first is not None

    def past_first() -> bool:
        seconds, micros = raw.time()
        return seconds * 1000 + micros / 1000 > first

    await until(past_first, "the first lease time is over")
    assert (await store.occupancy(["g0"]))["g0"].seats_mine == 1


async def test_leases_of_a_proxy_that_vanished_expire(open_store: OpenStore) -> None:
    one, two = await open_store("a", lease_ttl_s=0.3), await open_store("b")
    await one.claim("g0", "n1", 1, 1, 1)
    await one._tasks.close()
    await one._link.close()

    async def granted() -> bool:
        return (await two.claim("g0", "n2", 1, 1, 1)).granted

    await until(granted, "its seat is free")


async def test_a_lease_that_expired_is_taken_again_or_reported_lost_once(open_store: OpenStore) -> None:
    one, two = await open_store("a", lease_ttl_s=0.2), await open_store("b")
    lost: list[LostLease] = []
    one.on_lost = lost.append
    await one.claim("g0", "n1", 1, 2, 1)
    await one.claim("g0", "n2", 1, 2, 1)
    await one._tasks.close()  # as if the process had been stopped

    async def free() -> bool:
        return (await two.occupancy(["g0"]))["g0"].seats_total == 0

    await until(free, "its leases expired")
    await two.claim("g0", "other", 1, 2, 1)

    first, second = await one.renew(), await one.renew()

    assert first == lost == [LostLease("g0", "n2", "expired")]
    assert second == []
    assert (await two.occupancy(["g0"]))["g0"] == Occupancy(2, 1, False)
    await two.release("g0", "other")
    await one.renew()
    assert (await two.occupancy(["g0"]))["g0"].seats_elsewhere == 2


async def test_leases_of_an_engine_that_was_restarted_are_void(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")
    await one.claim("g0", "n1", 1, 1, epoch=1)
    assert (await two.claim("g0", "n1", 1, 1, epoch=2)).granted

    assert await one.renew() == [LostLease("g0", "n1", "epoch")]
    assert not await one.release("g0", "n1")
    assert await one.claim("g0", "n2", 1, 1, epoch=1) == ClaimReply(False, 1, 0, False, 2)


async def test_a_cancelled_claim_leaves_no_lease(open_store: OpenStore, raw: redis.Redis, fleet: str) -> None:
    store = await open_store()
    claims = [asyncio.ensure_future(store.claim("g0", f"n{i}", 1, 8, 1)) for i in range(8)]
    await asyncio.sleep(0)
    for claim in claims:
        claim.cancel()
    assert await asyncio.gather(*claims, return_exceptions=True)

    assert (await store.claim("g0", "last", 8, 8, 1)).granted
    assert leases(raw, fleet) == 8
    assert store._holdings.of("g0").keys() == {"last"}


async def test_scripts_that_the_store_forgot_are_sent_again(open_store: OpenStore, raw: redis.Redis) -> None:
    store = await open_store()
    raw.script_flush()

    assert (await store.claim("g0", "n1", 1, 2, 1)).granted
    raw.script_flush()
    await asyncio.gather(store.renew(), store.heartbeat([BackendRecord("g0", 1, 2)]))
    assert await store.release("g0", "n1")
    assert store.up


async def test_closing_gives_everything_back(open_store: OpenStore, raw: redis.Redis, fleet: str) -> None:
    one, two = await open_store("a"), await open_store("b")
    await one.claim("g0", "n1", 2, 4, 1)
    await two.claim("g0", "n1", 1, 4, 1)

    await one.close()

    assert leases(raw, fleet) == 1
    assert raw.zrange(f"{{slotgate:{fleet}}}:proxies", 0, -1) == [two.owner.encode()]


async def test_a_store_that_lost_its_data_gets_it_back(open_store: OpenStore, raw: redis.Redis, fleet: str) -> None:
    store = await open_store(lease_ttl_s=0.6)
    await store.claim("g0", "n1", 1, 1, 1)
    await store.heartbeat([BackendRecord("g0", 1, 1)])
    await store.set_draining("g1", True)
    raw.flushall()

    async def healed() -> bool:
        seen = await store.occupancy(["g0", "g1"])
        return seen["g1"].draining and seen["g0"].seats_mine == 1 and len(await store.backends()) == 1

    await until(healed, "lease, record and draining flag are back")


async def test_a_callback_that_fails_ends_nothing(open_store: OpenStore) -> None:
    store = await open_store(lease_ttl_s=0.2)

    def fail(_: object) -> None:
        raise RuntimeError("the owner's mistake")

    store.on_change = store.on_lost = fail
    with capture_logs() as lines:
        store._changed(True)
        await store.claim("g0", "n1", 1, 1, 1)
        await store.set_draining("g0", False)
        store._holdings.of("g0")["n1"].epoch = 0
        await store.renew()

    assert [line["callback"] for line in lines if line["event"] == "callback failed"] == ["on_change", "on_lost"]
    assert store.up


async def test_a_renewal_that_fails_is_followed_by_the_next(open_store: OpenStore) -> None:
    store = await open_store(lease_ttl_s=0.2)
    renewed: list[bool] = []
    renew = store.renew

    async def fails_first() -> list[LostLease]:
        renewed.append(True)
        if len(renewed) == 1:
            raise RuntimeError("nobody knows why")
        return await renew()

    with capture_logs() as lines:
        store.renew = fails_first  # type: ignore[method-assign]
        await until(lambda: len(renewed) >= 2, "it is tried again")

    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["renewal failed"]


@pytest.mark.parametrize("fleet_name", ["", "a b", "a{b}", "x" * 65])
def test_a_fleet_name_that_cannot_be_part_of_a_key_is_refused(fleet_name: str) -> None:
    with pytest.raises(ValueError, match="fleet"):
        Store("redis://localhost", fleet=fleet_name, proxy_id="p")


async def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="schemes"):
        await Store("http://localhost", fleet="f", proxy_id="p").start()


async def test_giving_back_needs_no_waiting(open_store: OpenStore, raw: redis.Redis) -> None:
    store = await open_store("a")
    await store.claim("g0", "n1", 1, 1, 1)

    store.give_back("g0", "n1")
    granted = await store.claim("g0", "n2", 1, 1, 1)

    assert granted.granted
    assert granted.seats_total == 1
