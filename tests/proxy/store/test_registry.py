"""The policy document; backends and draining flags are in test_store and test_coming_back."""

from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store.keys import POLICY_MAX_BYTES
from proxy.store.records import BackendRecord
from proxy.store.trouble import StoreDown
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess

pytestmark = pytest.mark.usefixtures("raw")


async def test_the_first_of_two_changes_wins(open_store: OpenStore) -> None:
    one, two = await open_store("a"), await open_store("b")

    assert await one.policy() is None
    assert await one.set_policy(b"one", None) == 1
    assert await two.set_policy(b"two", None) is None
    assert await two.policy() == (1, b"one")
    assert await two.set_policy(b"two", 1) == 2
    assert await one.set_policy(b"three", 1) is None
    assert await one.policy() == (2, b"two")


async def test_a_change_whose_answer_was_lost_is_not_taken_for_somebody_elses(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url)
        lossy.lose_answers = True

        assert await store.set_policy(b"mine", None) == 1
        assert lossy.losses == 1
        assert await store.policy() == (1, b"mine")
        await store.close()


async def test_a_document_beyond_its_bound_is_refused(open_store: OpenStore) -> None:
    store = await open_store()

    with pytest.raises(ValueError, match="policy document"):
        await store.set_policy(b"x" * (POLICY_MAX_BYTES + 1), None)


async def test_without_the_store_nobody_is_told_that_there_is_no_policy(open_store: OpenStore, short_dir: Path) -> None:
    store = await open_store(url=f"unix://{short_dir}/none.sock", call_timeout_s=0.2)

    with pytest.raises(StoreDown):
        await store.policy()
    with pytest.raises(StoreDown):
        await store.set_policy(b"x", None)


async def test_what_is_announced_is_known(open_store: OpenStore) -> None:
    store = await open_store()
    record = BackendRecord("g0", 1, 4)
    await store.heartbeat([record])

    assert store._registry.record("g0") == record
    assert store._registry.record("g1") is None


async def test_a_record_that_cannot_be_read_hides_no_other(open_store: OpenStore, raw: redis.Redis) -> None:
    store = await open_store()
    await store.heartbeat([BackendRecord("good", 1, 4), BackendRecord("bad", 1, 4)])
    [key] = raw.keys("*:backend:bad")
    raw.hset(key, "facts", "{broken")
    with capture_logs() as lines:
        for _ in range(2):
            assert [listing.record.backend_id for listing in await store.backends()] == ["good"]
    assert [line["backend"] for line in lines if line["event"].startswith("record of a backend left out")] == ["bad"]
