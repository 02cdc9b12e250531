"""What operators can ask a store: on each kind of store, beside running proxies."""

from pathlib import Path

import pytest
import redis

from proxy.store import ops
from proxy.store.ops import Purged, StoreUnusable
from proxy.store.records import BackendRecord
from proxy.store.trouble import TroubleKind
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.store_process import StoreProcess

pytestmark = pytest.mark.usefixtures("raw")


async def test_a_store_that_is_fit_is_said_to_be(shared_process: StoreProcess, raw: redis.Redis, fleet: str) -> None:
    found = await ops.check(shared_process.url, fleet)

    assert found.trouble is None
    assert found.warnings == ()
    assert found.server.split()[0] == shared_process.name
    assert (found.mode, found.role, found.eviction, found.persistence) == ("standalone", "master", "noeviction", "none")
    assert found.ping is not None
    assert found.claim is not None
    assert 0 < found.ping.p50_ms <= found.ping.p99_ms
    assert abs(found.clock_off_s) < 60
    assert raw.keys() == [], "nothing is left behind"


async def test_what_is_dangerous_is_warned_of(shared_process: StoreProcess, raw: redis.Redis, fleet: str) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    raw.config_set("maxmemory", "32mb")
    try:
        found = await ops.check(shared_process.url, fleet)
    finally:
        raw.config_set("maxmemory", "0")
        raw.config_set("maxmemory-policy", "noeviction")

    assert [warning.split(" is ")[0] for warning in found.warnings] == ["maxmemory-policy", "maxmemory"]
    assert "noeviction" in found.warnings[0]


async def test_each_trouble_is_told_with_its_remedy(short_dir: Path, own_process: StoreProcess, fleet: str) -> None:
    gone = await ops.check(f"unix://:secret@{short_dir}/none.sock", fleet)
    assert gone.trouble is not None
    assert gone.trouble.kind is TroubleKind.UNREACHABLE
    assert "secret" not in str(gone)

    operator = redis.Redis.from_url(own_process.url)
    operator.replicaof("127.0.0.1", "1")
    replica = await ops.check(own_process.url, fleet)
    assert replica.trouble is not None
    assert replica.trouble.kind is TroubleKind.READ_ONLY
    assert replica.role == "slave"
    operator.replicaof("no", "one")
    operator.config_set("requirepass", "x")
    closed = await ops.check(own_process.url, fleet)
    assert closed.trouble is not None
    assert closed.trouble.kind is TroubleKind.PASSWORD
    with pytest.raises(StoreUnusable, match="USER:PASSWORD"):
        await ops.stats(own_process.url, fleet)
    operator.close()


async def test_keys_are_counted_by_kind(shared_process: StoreProcess, open_store: OpenStore, fleet: str) -> None:
    store = await open_store("a")
    await store.heartbeat([BackendRecord("g0", 1, 4), BackendRecord("g1", 1, 4)])
    for backend in ("g0", "g1"):
        await store.claim(backend, "n", 1, 4, 1, slot=0, news=b"taken")
    await store.set_draining("g2", True)
    await store.set_policy(b"document", None)
    await store.save_picture(b"picture", 1)

    found = await ops.stats(shared_process.url, fleet)

    assert found.proxies == (store.owner,)
    assert {kind.kind: kind.keys for kind in found.kinds} == {
        "backend": 2,
        "backends": 1,
        "draining": 1,
        "leases": 2,
        "life": 1,
        "log": 1,
        "log-count": 1,
        "picture": 1,
        "policy": 1,
        "proxies": 1,
        "slots": 2,
    }
    assert all(kind.endless == 0 and kind.size_bytes > 0 for kind in found.kinds)
    assert all(kind.ttl_min_s is not None and kind.ttl_min_s > 0 for kind in found.kinds)
    assert found.size_bytes == sum(kind.size_bytes for kind in found.kinds)


async def test_a_purge_is_refused_while_proxies_are_there(
    shared_process: StoreProcess, raw: redis.Redis, open_store: OpenStore, fleet: str
) -> None:
    store = await open_store("a")
    await store.claim("g0", "n", 1, 4, 1)
    raw.set("other", "data", px=60_000)
    raw.set(f"{{slotgate:{fleet}-other}}:life", "x", px=60_000)

    assert await ops.purge(shared_process.url, fleet) == Purged(0, (store.owner,))
    forced = await ops.purge(shared_process.url, fleet, force=True)
    assert forced.removed >= 4
    assert (await store.claim("g0", "n2", 1, 4, 1)).seats_mine == 2, "everything was told again"
    await store.close()
    assert (await ops.purge(shared_process.url, fleet)).removed > 0
    assert sorted(raw.keys()) == sorted([b"other", f"{{slotgate:{fleet}-other}}:life".encode()])


async def test_unknown_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="fleet"):
        await ops.check("redis://localhost", "a b")
    with pytest.raises(ValueError, match="schemes"):
        await ops.stats("http://localhost", "f")
