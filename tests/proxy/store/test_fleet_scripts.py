"""Presence, the log and the policy document, run directly on each kind of store."""

from typing import Any

import pytest
import redis

from proxy.store.fleet_scripts import LEAVE, POLICY, TELL
from proxy.store.keys import LOG_MAX_ENTRIES
from tests.proxy.store.raw_scripts import KEYS, LONG_MS, Raw, presence, run, told
from tests.wait import until_sync


def tell(raw: Raw, owner: str, news: bytes) -> None:
    run(raw, TELL, (KEYS.log, KEYS.log_count), owner, news)


def policy(raw: Raw, document: str, version: int, how: str = "after") -> int:
    return int(run(raw, POLICY, (KEYS.policy,), document, 60_000, version, how))


def test_presence_lists_who_is_there(raw: Raw) -> None:
    presence(raw, "gone", 1)

    def present() -> object:
        return presence(raw, "b")[2:]

    until_sync(lambda: present() == [b"b"], "the first is gone")
    assert set(presence(raw, "a")[2:]) == {b"a", b"b"}


def test_the_first_proxy_names_the_life_of_the_store_and_the_others_learn_it(raw: Raw) -> None:
    assert presence(raw, "a", life="one")[0] == b"one"
    assert presence(raw, "b", life="two")[0] == b"one"
    raw.flushall()
    assert presence(raw, "b", life="two")[0] == b"two"


def test_presence_tells_when_the_next_sign_ends(raw: Raw) -> None:
    presence(raw, "a", 10_000)
    left_ms = presence(raw, "b", LONG_MS)[1]

    assert 0 < left_ms <= 10_000


def test_words_about_presence_are_told_with_the_life(raw: Raw) -> None:
    presence(raw, "a", words="join 1 one", life="one")
    run(raw, LEAVE, (KEYS.proxies, KEYS.life, KEYS.log, KEYS.log_count), "a")
    run(raw, LEAVE, (KEYS.proxies, KEYS.life, KEYS.log, KEYS.log_count), "a")

    assert told(raw) == [(b"a", b"x", b"join 1 one"), (b"a", b"x", b"left 0 one")]
    assert raw.zcard(KEYS.proxies) == 0


def test_entries_are_numbered_without_holes_and_any_bytes_pass(raw: Raw) -> None:
    presence(raw, "a")
    begin = int(raw.get(KEYS.log_count) or 0)
    payloads = [bytes(range(256)), b"", b"x" * 100_000]
    for payload in payloads:
        tell(raw, "a", payload)

    entries: Any = raw.xrange(KEYS.log)
    assert [entry[0] for entry in entries] == [b"%d-0" % (begin + 1 + i) for i in range(3)]
    assert told(raw) == [(b"a", b"d", payload) for payload in payloads]


def test_numbers_go_on_above_all_earlier_ones_when_the_data_was_lost(raw: Raw) -> None:
    for _ in range(10):
        tell(raw, "a", b"1")
    before = int(raw.get(KEYS.log_count) or 0)
    raw.flushall()
    tell(raw, "a", b"2")

    assert int(raw.get(KEYS.log_count) or 0) > before
    raw.delete(KEYS.log_count)  # evicted alone
    tell(raw, "a", b"3")
    assert told(raw) == [(b"a", b"d", b"3")]


def test_the_log_is_trimmed(raw: Raw) -> None:
    pipeline = raw.pipeline(transaction=False)
    for _ in range(LOG_MAX_ENTRIES + 1000):
        pipeline.eval(TELL.text, 2, KEYS.log, KEYS.log_count, "a", b"news")
    pipeline.execute()

    assert LOG_MAX_ENTRIES <= raw.xlen(KEYS.log) < LOG_MAX_ENTRIES + 500


def test_a_policy_replaces_only_the_version_that_it_was_made_from(raw: Raw) -> None:
    assert policy(raw, "one", 0) == 1
    assert policy(raw, "other", 0) == -1
    assert policy(raw, "two", 1) == 2
    assert policy(raw, "three", 1) == -1
    assert raw.hgetall(KEYS.policy) == {b"version": b"2", b"document": b"two"}


def test_a_lost_policy_is_restored_but_no_newer_one_is_overridden(raw: Raw) -> None:
    assert policy(raw, "five", 5, "restore") == 5
    assert policy(raw, "four", 4, "restore") == 5
    assert policy(raw, "seven", 7, "restore") == 7
    assert raw.hget(KEYS.policy, "document") == b"seven"


@pytest.mark.parametrize("key", [KEYS.life, KEYS.log_count, KEYS.proxies])
def test_presence_keeps_what_the_fleet_shares(raw: Raw, key: str) -> None:
    presence(raw, "a", words="join 1")

    assert raw.pttl(key) > 0


def test_a_full_memory_lets_nobody_join(raw: redis.Redis) -> None:
    raw.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            presence(raw, "a")
    finally:
        raw.config_set("maxmemory", "0")
