"""The scripts as the contract of the store, run directly on each kind of store."""

import re
from typing import Any

import pytest
import redis

from proxy.store.lua import Script
from proxy.store.scripts import DRAIN, LISTING, SCRIPTS
from tests.proxy.store.raw_scripts import (
    KEYS,
    LEASE_KEYS,
    Raw,
    claim,
    expire,
    heartbeat,
    members,
    presence,
    release,
    renew,
    run,
)
from tests.wait import until_sync


def drain(raw: Raw, flag: str, how: str = "set") -> None:
    run(raw, DRAIN, LEASE_KEYS[2:], flag, 60_000, how)


def test_claims_are_granted_up_to_the_limit_and_then_refused_with_the_truth(raw: Raw) -> None:
    first, second, third = claim(raw, "n1"), claim(raw, "n2", by="b/"), claim(raw, "n3")

    assert first == [1, 1, 1, -1, 1, 2]
    assert second == [1, 2, 1, -1, 1, 2]
    assert third == [0, 2, 1, -1, 1, 2]
    assert members(raw) == {b"a/n1#0", b"b/n2#0"}


def test_a_claim_said_again_takes_nothing_more_even_when_full_or_draining(raw: Raw) -> None:
    claim(raw, "n1", seats=2)
    drain(raw, "1")

    assert claim(raw, "n1", seats=2) == [1, 2, 2, 1, 1, 2]
    assert len(members(raw)) == 2


def test_seats_of_one_claim_come_all_or_none(raw: Raw) -> None:
    claim(raw, "n1", limit=3)

    assert claim(raw, "n2", seats=3, limit=3)[0] == 0
    assert claim(raw, "n3", seats=2, limit=3)[0] == 1
    assert release(raw, "n3") == 2
    assert members(raw) == {b"a/n1#0"}


def test_a_claim_for_no_seat_is_granted_when_full_but_not_when_draining(raw: Raw) -> None:
    claim(raw, "n1", seats=2)

    assert claim(raw, "n0", seats=0)[:2] == [1, 2]
    drain(raw, "1")
    assert claim(raw, "n0", seats=0)[0] == 0


def test_draining_refuses_until_it_is_lifted(raw: Raw) -> None:
    drain(raw, "1")
    assert claim(raw, "n1") == [0, 0, 0, 1, 1, 2]
    drain(raw, "0")
    assert claim(raw, "n1") == [1, 1, 1, 0, 1, 2]


def test_restoring_a_draining_flag_overrides_no_newer_word(raw: Raw) -> None:
    drain(raw, "1", "restore")
    assert claim(raw, "n1")[3] == 1
    drain(raw, "0")
    drain(raw, "1", "restore")
    assert claim(raw, "n1")[3] == 0


def test_an_older_epoch_is_refused_and_told_the_newer(raw: Raw) -> None:
    claim(raw, "n1", epoch=7)

    assert claim(raw, "n2", epoch=6) == [0, 1, 1, -1, 7, 2]


def test_a_newer_epoch_voids_the_leases_of_the_engine_that_died(raw: Raw) -> None:
    claim(raw, "n1", seats=2, epoch=1)

    assert claim(raw, "n2", epoch=2) == [1, 1, 1, -1, 2, 2]
    assert claim(raw, "n1", seats=2, epoch=1)[0] == 0
    assert members(raw) == {b"a/n2#0"}


def test_epochs_may_be_times_in_milliseconds(raw: Raw) -> None:
    claim(raw, "n1", epoch=1_900_000_000_123)

    assert claim(raw, "n2", epoch=1_900_000_000_122)[0] == 0
    assert claim(raw, "n2", epoch=1_900_000_000_123)[0] == 1
    assert raw.hget(LEASE_KEYS[1], "epoch") == b"1900000000123"


def test_expired_leases_make_room(raw: Raw) -> None:
    expire(raw, "n1")

    assert claim(raw, "n2", limit=1)[:3] == [1, 1, 1]


def test_releasing_twice_or_an_unknown_nonce_does_nothing(raw: Raw) -> None:
    claim(raw, "n1")

    assert [release(raw, "n1"), release(raw, "n1"), release(raw, "other")] == [1, 0, 0]


def test_a_release_after_expiry_frees_nobody_elses_seat(raw: Raw) -> None:
    expire(raw, "n1")
    claim(raw, "n2", limit=1, by="b/")

    assert release(raw, "n1") == 0
    assert members(raw) == {b"b/n2#0"}


def test_the_smaller_of_announced_and_claimed_limit_holds(raw: Raw) -> None:
    heartbeat(raw, limit=1)

    assert claim(raw, "n1", limit=4)[0] == 1
    assert claim(raw, "n2", limit=4) == [0, 1, 1, -1, 1, 1]
    release(raw, "n1")
    assert claim(raw, "n3", limit=0)[5] == 0


def test_of_several_announced_limits_the_smallest_holds_and_its_announcer_may_raise_it(raw: Raw) -> None:
    heartbeat(raw, limit=4, by="a/")
    heartbeat(raw, limit=2, by="b/")
    assert heartbeat(raw, limit=4, by="a/")[4] == 2
    assert heartbeat(raw, limit=3, by="b/")[4] == 3
    assert claim(raw, "n1", seats=4, limit=8)[0] == 0


def test_renewing_extends_takes_again_and_reports_what_is_lost(raw: Raw) -> None:
    expire(raw, "gone1")
    claim(raw, "kept", ttl_ms=5_000)
    before = raw.zscore(LEASE_KEYS[0], "a/kept#0")

    reply = renew(raw, ("kept", 1, 1, "held"), ("gone1", 1, 1, "held"), ("gone2", 1, 1, "held"))

    after = raw.zscore(LEASE_KEYS[0], "a/kept#0")
    assert before is not None
    assert after is not None
    assert after > before
    assert reply == [2, 2, -1, 1, 2, 1, b"gone2"]
    assert members(raw) == {b"a/kept#0", b"a/gone1#0"}


def test_a_renewal_in_another_life_does_nothing(raw: Raw) -> None:
    claim(raw, "gone")

    assert renew(raw, ("n1", 1, 1, "held"), ("n2", 1, 1, "must"), ("gone", 1, 1, "gone"), life="other") == [-1]
    assert members(raw) == {b"a/gone#0"}


def test_a_renewal_takes_again_no_more_than_its_proxy_may_have(raw: Raw) -> None:
    claim(raw, "kept", limit=9)

    reply = renew(raw, ("kept", 1, 1, "held"), ("n1", 1, 1, "held"), ("n2", 1, 1, "held"), limit=9, most=2)
    assert reply[:2] == [2, 2]
    assert reply[5:] == [1, b"n2"]
    assert renew(raw, ("kept", 1, 1, "held"), ("n1", 1, 1, "held"), limit=9, most=1)[:2] == [2, 2], (
        "what is there stays"
    )
    assert renew(raw, ("n2", 1, 1, "must"), limit=9, most=1)[:2] == [3, 3]


def test_the_sign_of_a_proxy_ends_no_earlier_than_its_leases(raw: Raw) -> None:
    def outlives() -> bool:
        last: Any = raw.zrange(LEASE_KEYS[0], -1, -1, withscores=True)
        return bool(raw.zscore(KEYS.proxies, "a") == last[0][1])

    presence(raw, "a", ttl_ms=1_000)
    claim(raw, "n1")
    assert outlives()
    first = raw.zscore(KEYS.proxies, "a")
    until_sync(lambda: renew(raw, ("n1", 1, 1, "held")) and raw.zscore(KEYS.proxies, "a") != first, "a renewal too")
    assert outlives()
    claim(raw, "n2", ttl_ms=1_000)
    assert outlives(), "never shortened"
    claim(raw, "n1", by="b/", limit=9)
    assert raw.zscore(KEYS.proxies, "b") is None, "who is not there is not made to seem so"


def test_a_forced_renewal_goes_over_the_limit_and_nothing_new_fits_until_below(raw: Raw) -> None:
    claim(raw, "x", seats=2, by="b/")

    assert renew(raw, ("n1", 1, 1, "must"))[:2] == [3, 1]
    assert claim(raw, "n2")[0] == 0
    release(raw, "n1")
    assert claim(raw, "n2")[0] == 0
    release(raw, "x", by="b/")
    assert claim(raw, "n2")[0] == 1


def test_a_renewal_keeps_what_is_asked_for_drops_what_is_gone_and_leaves_the_rest(raw: Raw) -> None:
    for nonce in ("asked", "gone", "unnamed"):
        claim(raw, nonce, limit=9)

    renew(raw, ("asked", 1, 1, "asked"), ("never", 1, 1, "asked"), ("gone", 1, 1, "gone"), limit=9)

    assert members(raw) == {b"a/asked#0", b"a/unnamed#0"}


def test_a_renewal_of_an_older_epoch_is_void(raw: Raw) -> None:
    claim(raw, "new", epoch=2)

    assert renew(raw, ("old", 1, 1, "held"), ("new", 1, 2, "held")) == [1, 1, -1, 2, 2, 0, b"old"]


def test_heartbeats_of_an_older_epoch_change_nothing(raw: Raw) -> None:
    heartbeat(raw, epoch=2, facts='{"v":2}')

    assert heartbeat(raw, epoch=1, limit=1, facts='{"v":1}')[3:] == [2, 1]
    assert raw.hget(LEASE_KEYS[1], "facts") == b'{"v":2}'
    assert raw.hget(LEASE_KEYS[1], "limit") == b"4"


def test_a_heartbeat_lengthens_the_life_of_the_draining_flag(raw: Raw) -> None:
    drain(raw, "1")

    assert heartbeat(raw)[2] == 1
    assert raw.pttl(LEASE_KEYS[2]) > 60_000


def test_a_listing_tells_what_was_announced(raw: Raw) -> None:
    heartbeat(raw, epoch=3, limit=4, facts='{"v":1}')
    claim(raw, "n1", epoch=3)

    epoch, limit, facts, age_ms, by, draining, seats = run(raw, LISTING, LEASE_KEYS)

    assert (epoch, limit, facts, by, draining, seats) == (3, 4, b'{"v":1}', b"a/", -1, 1)
    assert 0 <= age_ms < 60_000
    assert run(raw, LISTING, (KEYS.leases("no"), KEYS.backend("no"), KEYS.draining("no"))) is None


def test_the_set_of_leases_lives_as_long_as_its_longest_lease(raw: Raw) -> None:
    claim(raw, "long", ttl_ms=30_000)
    claim(raw, "short", ttl_ms=1_000)

    assert raw.pttl(LEASE_KEYS[0]) > 29_000


def test_the_epoch_is_known_for_as_long_as_any_lease_lives(raw: Raw) -> None:
    claim(raw, "n1", ttl_ms=30_000)

    assert raw.pttl(LEASE_KEYS[1]) > raw.pttl(LEASE_KEYS[0])


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=lambda script: script.name)
def test_scripts_touch_only_declared_keys(script: Script) -> None:
    """Every call names a key that came in through KEYS, or a local that holds one."""
    keys = re.findall(r"redis\.call\('(?!TIME)[A-Z]+', ([^,)]+)", script.text)

    assert keys
    declared = r"KEYS\[[\di+ ]+\]|key|leases|backend|draining|slots|log|count|proxies"
    assert all(re.fullmatch(declared, key) for key in keys), keys


def test_release_frees_memory_when_memory_is_full(raw: Raw) -> None:
    claim(raw, "n1")
    raw.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            presence(raw, "a")
        assert release(raw, "n1") == 1
    finally:
        raw.config_set("maxmemory", "0")
