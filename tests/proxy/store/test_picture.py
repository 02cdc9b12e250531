"""The picture of what was learned: kept whole, bounded, never in the way."""

from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store import picture
from proxy.store.keys import PICTURE_MAX_BYTES, Keys
from proxy.store.places import Places
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.store_process import StoreProcess

KEY = Keys("picture").picture

pytestmark = pytest.mark.usefixtures("raw")


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)), b"x" * PICTURE_MAX_BYTES], ids=len)
async def test_a_picture_comes_back_as_it_was(shared_process: StoreProcess, raw: redis.Redis, payload: bytes) -> None:
    places = Places(shared_process.url)
    assert await picture.load(places, KEY) is None
    assert await picture.save(places, KEY, payload, 1_800_000_000_000_000)

    assert await picture.load(places, KEY) == (payload, 1_800_000_000_000_000)
    assert 0 < raw.pttl(KEY) <= 3_600_000


async def test_a_picture_that_is_too_large_is_refused(shared_process: StoreProcess, raw: redis.Redis) -> None:
    with capture_logs() as lines:
        assert not await picture.save(Places(shared_process.url), KEY, b"x" * (PICTURE_MAX_BYTES + 1), 1)

    assert [line["event"] for line in lines] == ["picture not saved: too large"]
    assert raw.keys() == []


async def test_what_is_no_picture_is_none(shared_process: StoreProcess, raw: redis.Redis) -> None:
    raw.set(KEY, b"short", px=60_000)

    assert await picture.load(Places(shared_process.url), KEY) is None


async def test_trouble_is_logged(short_dir: Path) -> None:
    places = Places(f"unix://{short_dir}/none.sock")
    with capture_logs() as lines:
        assert not await picture.save(places, KEY, b"x", 1)
        assert await picture.load(places, KEY) is None

    assert [line["event"] for line in lines] == ["picture not saved", "picture not loaded"]


async def test_it_does_not_hold_up_the_calls_of_a_store(open_store: OpenStore) -> None:
    store = await open_store()
    wire = store._link._wire
    assert wire is not None
    before = wire.writes
    await store.save_picture(b"x" * 1_000_000, 3)

    assert await store.load_picture() == (b"x" * 1_000_000, 3)
    assert wire.writes == before
