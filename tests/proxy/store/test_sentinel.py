"""A primary with a replica, watched by real Sentinels: found through them, followed when it fails over."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store.trouble import TroubleKind
from tests.proxy.store.conftest import ENGINES, OpenStore
from tests.proxy.store.heard import following
from tests.proxy.store.store_process import StoreProcess, program
from tests.proxy.store.test_cluster import free_port
from tests.wait import until, until_sync

SENTINEL = """\
port {port}
bind 127.0.0.1
dir {directory}
logfile {directory}/log
sentinel monitor fleet 127.0.0.1 {primary} 1
sentinel auth-pass fleet secret
sentinel down-after-milliseconds fleet 2000
sentinel failover-timeout fleet 2000
"""


class Watched:
    """Two stores and a Sentinel on loopback."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.ports = [free_port(), free_port()]
        self.stores: list[StoreProcess] = []
        for index, port in enumerate(self.ports):
            own = directory / str(index)
            own.mkdir()
            follows = ("--replicaof", "127.0.0.1", str(self.ports[0])) if index else ()
            secret = ("--requirepass", "secret", "--masterauth", "secret", "--repl-diskless-sync-delay", "0")
            self.stores.append(StoreProcess(engine, own, "--port", str(port), "--bind", "127.0.0.1", *secret, *follows))
            self.stores[-1].start()
        self.clients = [redis.Redis(port=port, password="secret", protocol=2) for port in self.ports]
        until_sync(lambda: self.clients[0].info("replication")["connected_slaves"] == 1, "the replica follows")
        own = directory / "sentinel"
        own.mkdir()
        self.port = free_port()
        config = own / "sentinel.conf"
        config.write_text(SENTINEL.format(port=self.port, directory=own, primary=self.ports[0]))
        self.child = subprocess.Popen([program(engine), str(config), "--sentinel"], stdin=subprocess.DEVNULL)
        self.sentinel = redis.Redis(port=self.port, protocol=2)
        until_sync(self._knows_the_replica, "the Sentinel knows both")
        # The first Sentinel of the list is not there.
        self.url = f"redis+sentinel://:secret@127.0.0.1:{free_port()},127.0.0.1:{self.port}/fleet/0"

    def _knows_the_replica(self) -> bool:
        try:
            state: Any = self.sentinel.sentinel_master("fleet")
        except redis.ConnectionError:
            return False
        return bool(state["num-slaves"] == 1)

    def stop(self) -> None:
        self.sentinel.close()
        for client in self.clients:
            client.close()
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        for store in self.stores:
            store.stop()


@pytest.fixture(params=ENGINES)
def watched(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Watched]:
    found = Watched(request.param, short_dir)
    yield found
    found.stop()


async def test_a_failover_is_followed_and_what_was_not_replicated_is_told_again(
    watched: Watched, open_store: OpenStore
) -> None:
    with capture_logs() as lines:
        one = await open_store("a", url=watched.url, call_timeout_s=0.5)
        two = await open_store("b", url=watched.url, call_timeout_s=0.5)
        heard = await following(two)
        await following(one)
        assert one.up
        assert (await one.claim("g0", "n1", 2, 4, 1, slot=0)).granted
        await until(lambda: watched.clients[1].exists(one._keys.leases("g0")), "that is replicated")
        watched.clients[1].config_set("masterauth", "wrong")
        watched.clients[0].client_kill_filter(_type="replica")
        await one.claim("g0", "n2", 1, 4, 1)  # not replicated
        watched.clients[1].config_set("masterauth", "secret")
        watched.stores[0].stop()
        await until(lambda: not one.up and not two.up, "the trouble is noticed", timeout_s=20)
        assert (await two.claim("g0", "n3", 1, 4, 1)).local
        await until(lambda: one.up and two.up, "the new primary is found", timeout_s=40)
        await until(lambda: one._fleet.presence.settling is None and two._fleet.presence.settling is None, "settled")

    assert (await two.occupancy(["g0"]))["g0"].seats_total == 4
    assert heard.gaps == 1
    assert any(line["event"].startswith("store is another process") for line in lines)
    assert "secret" not in str(lines)
    one.tell(b"news")
    await until(lambda: (one.owner, b"news") in heard.news, "news is heard")


async def test_without_any_sentinel_the_store_is_unreachable(open_store: OpenStore) -> None:
    store = await open_store(url=f"redis+sentinel://127.0.0.1:{free_port()}/fleet")

    assert store.trouble is not None
    assert store.trouble.kind is TroubleKind.UNREACHABLE
    assert store.trouble.detail == "no Sentinel knows a primary of 'fleet' (1 of 1 did not answer)"
