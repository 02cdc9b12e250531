"""The scripts of locks, run directly on each kind of store."""

from proxy.store.lock_scripts import LOCK, UNLOCK
from tests.proxy.store.raw_scripts import KEYS, LONG_MS, Raw, run
from tests.wait import until_sync

KEY = (KEYS.lock("models:x"),)


def test_one_at_a_time(raw: Raw) -> None:
    assert run(raw, LOCK, KEY, "a", LONG_MS, "a pulls") == [1, b""]
    assert run(raw, LOCK, KEY, "b", LONG_MS, "b pulls") == [0, b"a pulls"]
    assert run(raw, UNLOCK, KEY, "b") == 0
    assert run(raw, UNLOCK, KEY, "a") == 1
    assert run(raw, LOCK, KEY, "b", LONG_MS, "b pulls") == [1, b""]


def test_said_again_it_is_the_same_lock_for_longer(raw: Raw) -> None:
    run(raw, LOCK, KEY, "a", 5_000, "")
    assert run(raw, LOCK, KEY, "a", LONG_MS, "") == [1, b""]
    assert raw.pttl(KEY[0]) > 5_000


def test_it_ends_by_itself(raw: Raw) -> None:
    run(raw, LOCK, KEY, "a", 1, "")
    until_sync(lambda: run(raw, LOCK, KEY, "b", LONG_MS, "")[0] == 1, "the lock is free")
