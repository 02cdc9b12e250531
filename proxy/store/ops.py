"""For operators: is a store fit for slotgate, what does a fleet keep in it, remove all of it. Prints nothing.

Works on a connection of its own beside running proxies.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.exceptions import MovedError, RedisError, ResponseError

from proxy.store.keys import Keys
from proxy.store.places import Places
from proxy.store.scripts import CLAIM, RELEASE
from proxy.store.trouble import Trouble, trouble_of, version_trouble
from proxy.store.wire import Wire, WireBroken

TIMEOUT_S = 5.0
PINGS = 100
SCAN_COUNT = 500
MOVES_MAX = 4
MEMORY_MIN_BYTES = 64 * 1024 * 1024
"""A busy fleet's log alone may take some tens of MiB."""
CLOCK_OFF_S = 2.0
SLOW_MS = 20.0
SCRATCH = "slotgate-store-check"
"""Name of a backend that nobody has."""


class Latency(msgspec.Struct, frozen=True):
    """How long calls took, one after the other."""

    p50_ms: float
    p99_ms: float


class StoreCheck(msgspec.Struct, frozen=True):
    """What `check` found."""

    url: str
    """Without the password."""
    trouble: Trouble | None = None
    """Why it cannot be used; the rest is then as far as it went."""
    warnings: tuple[str, ...] = ()
    """What the operator should look at, with what to do."""
    server: str = ""
    """`valkey 9.1.2`, `redis 7.0.15`."""
    mode: str = ""
    """standalone, cluster or sentinel."""
    role: str = ""
    replicas: int = 0
    memory_used_bytes: int = 0
    memory_max_bytes: int = 0
    """0: no bound."""
    eviction: str = ""
    """`maxmemory-policy`."""
    persistence: str = ""
    """`append-only file`, `snapshots`, `none` or `unknown` (not allowed to look)."""
    clock_off_s: float = 0.0
    """The store's clock minus ours. Harmless: slotgate uses the store's alone."""
    ping: Latency | None = None
    claim: Latency | None = None
    """A claim with its release, on a scratch key."""


class KindStats(msgspec.Struct, frozen=True):
    """Keys of one kind."""

    kind: str
    """The part of the name after the fleet: `leases`, `log`, …"""
    keys: int
    size_bytes: int
    ttl_min_s: float | None
    """None: no key of this kind has an end."""
    ttl_max_s: float | None
    endless: int
    """Keys without an end; anything but 0 is a mistake."""


class StoreStats(msgspec.Struct, frozen=True):
    """What a fleet keeps in the store."""

    fleet: str
    proxies: tuple[str, ...]
    kinds: tuple[KindStats, ...]

    @property
    def size_bytes(self) -> int:
        """Of all keys."""
        return sum(kind.size_bytes for kind in self.kinds)


class Purged(msgspec.Struct, frozen=True):
    """What `purge` did."""

    removed: int
    refused_by: tuple[str, ...] = ()
    """Proxies that are there; nothing was removed because of them."""


class StoreUnusable(Exception):
    """The store cannot be asked; the message says why and what to do."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"{trouble.kind.value}: {trouble.detail} ({trouble.advice})")
        self.trouble = trouble


async def check(url: str, fleet: str) -> StoreCheck:
    """Look at a store as slotgate would use it; changes nothing but a scratch key that is removed again.

    Raises:
        ValueError: the URL or the fleet's name is of no known form.
    """
    places, keys = Places(url), Keys(fleet)
    found: dict[str, Any] = {"url": places.shown}
    try:
        async with _connected(places, keys) as wire:
            info = await _info(wire)
            found |= _facts(info)
            if trouble := version_trouble("\n".join(f"{name}:{value}" for name, value in info.items())):
                return StoreCheck(**found, trouble=trouble)
            found["persistence"] = await _persistence(wire, info)
            seconds, micros = await wire.call(("TIME",))
            found["clock_off_s"] = int(seconds) + int(micros) / 1e6 - time.time()
            found["ping"] = await _ping(wire)
            found["claim"] = await _claim(wire, keys)
    except StoreUnusable as error:
        return StoreCheck(**found, trouble=error.trouble)
    checked = StoreCheck(**found)
    return msgspec.structs.replace(checked, warnings=_warnings(checked, info))


async def stats(url: str, fleet: str) -> StoreStats:
    """Count keys, bytes and lifetimes of a fleet by kind.

    Raises:
        ValueError: the URL or the fleet's name is of no known form.
        StoreUnusable: it cannot be asked.
    """
    keys = Keys(fleet)
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    async with _connected(Places(url), keys) as wire:
        async for names in _scan(wire, keys):
            sizes = await asyncio.gather(*(wire.call(("MEMORY", "USAGE", name)) for name in names))
            ttls = await asyncio.gather(*(wire.call(("PTTL", name)) for name in names))
            for name, size, ttl_ms in zip(names, sizes, ttls, strict=True):
                if size is not None:
                    rows[_kind(name, keys)].append((size, ttl_ms))
        proxies = await _proxies(wire, keys)
    kinds = []
    for kind, found in sorted(rows.items()):
        ends_s = [ttl_ms / 1000 for _, ttl_ms in found if ttl_ms >= 0]
        kinds.append(
            KindStats(
                kind=kind,
                keys=len(found),
                size_bytes=sum(size for size, _ in found),
                ttl_min_s=min(ends_s, default=None),
                ttl_max_s=max(ends_s, default=None),
                endless=sum(ttl_ms == -1 for _, ttl_ms in found),
            )
        )
    return StoreStats(fleet, proxies, tuple(kinds))


async def purge(url: str, fleet: str, *, force: bool = False) -> Purged:
    """Remove all keys of a fleet. Refused while proxies are there, unless `force`: those tell everything again.

    Raises:
        ValueError: the URL or the fleet's name is of no known form.
        StoreUnusable: it cannot be asked.
    """
    keys = Keys(fleet)
    async with _connected(Places(url), keys) as wire:
        proxies = await _proxies(wire, keys)
        if proxies and not force:
            return Purged(0, proxies)
        # The life first: no claim is granted on what is half removed.
        removed: int = await wire.call(("DEL", keys.life))
        async for names in _scan(wire, keys):
            removed += await wire.call(("UNLINK", *names))
    return Purged(removed)


@asynccontextmanager
async def _connected(places: Places, keys: Keys) -> AsyncIterator[Wire]:
    """A connection to the process that has the keys; errors become StoreUnusable."""
    try:
        for _ in range(MOVES_MAX):
            wire = Wire(await places.find(), call_timeout_s=TIMEOUT_S, on_broken=lambda _: None)
            try:
                await wire.open()
                try:
                    await wire.call(("EXISTS", keys.life))
                except MovedError as error:
                    if not places.moved(error):
                        raise
                    continue
                yield wire
                return
            finally:
                await wire.close()
        raise StoreUnusable(trouble_of(ResponseError("MOVED again and again")))
    except (RedisError, OSError, WireBroken) as error:
        cause = error.__cause__ if isinstance(error, WireBroken) and error.__cause__ is not None else error
        raise StoreUnusable(trouble_of(cause)) from error


async def _info(wire: Wire) -> dict[str, str]:
    text = (await wire.call(("INFO",))).decode(errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _facts(info: dict[str, str]) -> dict[str, Any]:
    name = info.get("server_name", "redis")
    version = info.get(f"{name}_version") or info.get("redis_version", "")
    return {
        "server": f"{name} {version}".strip(),
        "mode": info.get("server_mode") or info.get("redis_mode", ""),
        "role": info.get("role", ""),
        "replicas": int(info.get("connected_slaves", 0)),
        "memory_used_bytes": int(info.get("used_memory", 0)),
        "memory_max_bytes": int(info.get("maxmemory", 0)),
        "eviction": info.get("maxmemory_policy", ""),
    }


async def _persistence(wire: Wire, info: dict[str, str]) -> str:
    if info.get("aof_enabled") == "1":
        return "append-only file"
    try:
        saves = await wire.call(("CONFIG", "GET", "save"))
    except ResponseError:
        return "unknown"
    return "snapshots" if saves[1:] and saves[1] else "none"


def _warnings(found: StoreCheck, info: dict[str, str]) -> tuple[str, ...]:
    warnings = []
    if found.eviction not in {"noeviction", ""}:
        warnings.append(
            f"maxmemory-policy is {found.eviction}: leases may be evicted; set it to noeviction, or give slotgate a "
            "store of its own"
        )
    if 0 < found.memory_max_bytes < MEMORY_MIN_BYTES:
        warnings.append(f"maxmemory is {found.memory_max_bytes} bytes: give it at least {MEMORY_MIN_BYTES}")
    if found.memory_max_bytes and found.memory_used_bytes > 0.9 * found.memory_max_bytes:
        warnings.append("more than nine tenths of maxmemory are in use: raise it or remove other data")
    if found.role not in {"master", ""}:
        warnings.append("this is a replica: put the address of the primary or of the Sentinels into store.url")
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        warnings.append("its last write to disk failed: see its log and free space there")
    if found.ping is not None and found.ping.p99_ms > SLOW_MS:
        warnings.append(f"a ping takes up to {found.ping.p99_ms:.0f} ms: each request waits for one claim")
    if abs(found.clock_off_s) > CLOCK_OFF_S:
        warnings.append(f"its clock is {found.clock_off_s:+.0f} s off from ours: harmless here, but worth a look")
    return tuple(warnings)


async def _ping(wire: Wire) -> Latency:
    took = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await wire.call(("PING",))
        took.append(time.perf_counter() - began)
    return _latency(took)


async def _claim(wire: Wire, keys: Keys) -> Latency:
    """Claim and release on a backend that nobody has, as the proxies do it."""
    backend, life = f"{SCRATCH}-{secrets.token_hex(8)}", secrets.token_hex(8)
    scratch = f"{keys.tag}:life:{backend}"
    await wire.call(("SET", scratch, life, "PX", 60_000))
    for script in (CLAIM, RELEASE):
        await wire.call(("SCRIPT", "LOAD", script.text))
    claimed = (*keys.of_backend(backend), keys.slots(backend), scratch, keys.log, keys.log_count, keys.proxies)
    released = (keys.leases(backend), keys.slots(backend), keys.log, keys.log_count)
    took = []
    try:
        for turn in range(PINGS):
            arguments = (SCRATCH + "/", turn, 1, 1, 1, 10_000, 60_000, life, -1, 0, "")
            began = time.perf_counter()
            await wire.call(CLAIM.command(claimed, arguments))
            await wire.call(RELEASE.command(released, (SCRATCH + "/", turn, 0, "")))
            took.append(time.perf_counter() - began)
    finally:
        await wire.call(("UNLINK", scratch, *claimed[:4]))
    return _latency(took)


def _latency(took_s: list[float]) -> Latency:
    took_s.sort()
    return Latency(1000 * took_s[len(took_s) // 2], 1000 * took_s[round(0.99 * (len(took_s) - 1))])


async def _scan(wire: Wire, keys: Keys) -> AsyncIterator[list[bytes]]:
    cursor = b"0"
    while True:
        cursor, names = await wire.call(("SCAN", cursor, "MATCH", f"{keys.tag}:*", "COUNT", SCAN_COUNT))
        if names:
            yield names
        if cursor == b"0":
            return


async def _proxies(wire: Wire, keys: Keys) -> tuple[str, ...]:
    seconds, _ = await wire.call(("TIME",))
    owners = await wire.call(("ZRANGEBYSCORE", keys.proxies, f"({int(seconds) * 1000}", "+inf"))
    return tuple(sorted(owner.decode() for owner in owners))


def _kind(name: bytes, keys: Keys) -> str:
    return name.decode(errors="replace").removeprefix(f"{keys.tag}:").partition(":")[0]
