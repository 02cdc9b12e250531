"""Scripts called as `Store` calls them, with short arguments."""

from typing import Any

import redis

from proxy.store.fleet_scripts import PRESENCE
from proxy.store.keys import LOG_TTL_MS, Keys
from proxy.store.lua import Script
from proxy.store.scripts import CLAIM, HEARTBEAT, OCCUPANCY, RELEASE, RENEW
from tests.wait import until_sync

LONG_MS = 30_000
LIFE = "life"
KEYS = Keys("scripts")
LEASE_KEYS = KEYS.of_backend("g0")
Raw = redis.Redis


def run(raw: Raw, script: Script, keys: tuple[str, ...], *arguments: str | int | bytes) -> Any:
    return raw.eval(script.text, len(keys), *keys, *arguments)


def claim(
    raw: Raw, nonce: str, seats: int = 1, limit: int = 2, epoch: int = 1, ttl_ms: int = LONG_MS, by: str = "a/"
) -> Any:
    """The first six fields of the answer."""
    return claim_fully(raw, nonce, seats, limit, epoch, ttl_ms, by)[:6]


def claim_fully(
    raw: Raw,
    nonce: str,
    seats: int = 1,
    limit: int = 2,
    epoch: int = 1,
    ttl_ms: int = LONG_MS,
    by: str = "a/",
    life: str = LIFE,
    most: int = -1,
    slot: int | str = "",
    news: str = "",
) -> Any:
    raw.set(KEYS.life, LIFE, px=LONG_MS)
    keys = (*LEASE_KEYS, KEYS.slots("g0"), KEYS.life, KEYS.log, KEYS.log_count, KEYS.proxies)
    return run(raw, CLAIM, keys, by, nonce, seats, limit, epoch, ttl_ms, 60_000, life, most, slot, news)


def release(raw: Raw, nonce: str, by: str = "a/", slot: int | str = "", news: str = "") -> Any:
    keys = (KEYS.leases("g0"), KEYS.slots("g0"), KEYS.log, KEYS.log_count)
    return run(raw, RELEASE, keys, by, nonce, slot, news)


def renew(
    raw: Raw, *named: tuple[str | int, ...], limit: int = 2, by: str = "a/", life: str = LIFE, most: int = -1
) -> Any:
    """Each named as nonce, seats, epoch, stand and, if need be, slot and news."""
    flat = [value for one in named for value in (*one, "", "")[:6]]
    keys = (*LEASE_KEYS, KEYS.slots("g0"), KEYS.log, KEYS.log_count, KEYS.proxies, KEYS.life)
    raw.set(KEYS.life, LIFE, px=LONG_MS)
    return run(raw, RENEW, keys, by, limit, LONG_MS, 60_000, life, most, *flat)


def presence(raw: Raw, owner: str, ttl_ms: int = LONG_MS, words: str = "", life: str = "new") -> Any:
    keys = (KEYS.proxies, KEYS.life, KEYS.log, KEYS.log_count, KEYS.policy)
    return run(raw, PRESENCE, keys, owner, ttl_ms, life, LOG_TTL_MS, 60_000, words)


def heartbeat(raw: Raw, epoch: int = 1, limit: int = 4, facts: str = "{}", by: str = "a/") -> Any:
    return run(raw, HEARTBEAT, (*LEASE_KEYS, KEYS.backends), by, "g0", epoch, limit, facts, LONG_MS, 60_000, 600_000)


def members(raw: Raw) -> set[bytes]:
    return set(raw.zrange(LEASE_KEYS[0], 0, -1))  # type: ignore[arg-type]  # bytes: nothing is decoded


def slots(raw: Raw) -> dict[int, str]:
    found: Any = raw.hgetall(KEYS.slots("g0"))
    return {int(slot): member.decode() for slot, member in found.items()}


def told(raw: Raw) -> list[tuple[bytes, bytes, bytes]]:
    """Owner, field and value of each entry of the log."""
    entries: Any = raw.xrange(KEYS.log)
    return [(fields.pop(b"o"), *next(iter(fields.items()))) for _, fields in entries]


def expire(raw: Raw, nonce: str, by: str = "a/", slot: int | str = "") -> None:
    """A lease so short that it is over once the store's clock moved."""
    claim_fully(raw, nonce, limit=100, ttl_ms=1, by=by, slot=slot)
    until_sync(lambda: run(raw, OCCUPANCY, (LEASE_KEYS[0], LEASE_KEYS[2]), by)[0][0] == 0, "the lease is over")
