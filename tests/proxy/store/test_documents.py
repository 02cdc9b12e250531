"""A document of the fleet, for which the list of pins stands; the policy's own way is in test_registry."""

import pytest
import redis

from proxy.store.keys import PINS_MAX_BYTES
from proxy.store.trouble import StoreDown
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

pytestmark = pytest.mark.usefixtures("raw")


async def test_who_knows_the_last_version_may_replace_it(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")

    assert await one.pins.read() is None
    assert await one.pins.replace(b"one", None) == 1
    assert await two.pins.replace(b"two", None) is None
    assert await two.pins.read() == (1, b"one")
    assert await two.pins.replace(b"two", 1) == 2
    assert await one.pins.read() == (2, b"two")
    assert await one.policy() is None


async def test_it_is_told_again_to_a_store_that_lost_it(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=1.0)
    await store.pins.replace(b"pins", None)
    await store.set_policy(b"policy", None)
    own_process.stop()
    await until(lambda: not store.up, "the store is gone")
    with pytest.raises(StoreDown):
        await store.pins.read()
    own_process.start()
    await until(lambda: store.up, "the store is back")

    assert await store.pins.read() == (1, b"pins")
    assert await store.policy() == (1, b"policy")


async def test_it_lives_its_whole_time_again(open_store: OpenStore, raw: redis.Redis, fleet: str) -> None:
    store = await open_store()
    await store.pins.replace(b"pins", None)
    key = f"{{slotgate:{fleet}}}:pins"
    raw.pexpire(key, 5_000)
    await store.pins.touch()

    assert raw.pttl(key) > 5_000


async def test_a_document_beyond_its_bound_is_refused(open_store: OpenStore) -> None:
    store = await open_store()

    with pytest.raises(ValueError, match="list of pins of 1048577 bytes"):
        await store.pins.replace(b"x" * (PINS_MAX_BYTES + 1), None)
