"""Cluster mode: all keys of a fleet are on one node, which is found and followed when they move."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from proxy.store import ops
from proxy.store.keys import Keys
from proxy.store.trouble import TroubleKind
from tests.proxy.store.conftest import ENGINES, OpenStore
from tests.proxy.store.heard import following
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until, until_sync


def free_port() -> int:
    """A port P whose P + 1 is free too, for the cluster's own talk."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return int(port)


class Node:
    """One process in cluster mode on loopback."""

    def __init__(self, name: str, directory: Path) -> None:
        directory.mkdir()
        self.port = free_port()
        self.process = StoreProcess(
            name,
            directory,
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--cluster-enabled", "yes", "--cluster-port", str(self.port + 1), "--cluster-node-timeout", "2000"),
        )
        self.process.start()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = redis.Redis(port=self.port, protocol=2)

    def ask(self, *command: str | int) -> Any:
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self.client.close()
        self.process.stop()


def state_ok(node: Node) -> bool:
    info: bytes | dict[str, str] = node.ask("CLUSTER", "INFO")  # read by redis-py only if it imported its cluster part
    return info["cluster_state"] == "ok" if isinstance(info, dict) else b"cluster_state:ok" in info


@pytest.fixture(params=ENGINES)
def two_nodes(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[tuple[Node, Node]]:
    """A cluster of two; the first has all slots."""
    with ExitStack() as stack:
        nodes = []
        for name in "ab":
            nodes.append(node := Node(request.param, short_dir / name))
            stack.callback(node.stop)
        nodes[0].ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        nodes[1].ask("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].port + 1)
        for node in nodes:
            until_sync(lambda: state_ok(node), "the cluster is well")  # noqa: B023
        yield nodes[0], nodes[1]


def slot_of(node: Node, fleet: str) -> int:
    return int(node.ask("CLUSTER", "KEYSLOT", Keys(fleet).life))


def give(slot: int, source: Node, target: Node) -> None:
    """Move a slot with its keys."""
    target_id, source_id = (node.ask("CLUSTER", "MYID") for node in (target, source))
    name = [value.decode() if isinstance(value, bytes) else value for value in (target_id, source_id)]
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", name[1])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", name[0])
    while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *found)
    for node in (target, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", name[0])


async def test_the_node_with_the_keys_is_found_from_any_other(
    open_store: OpenStore, two_nodes: tuple[Node, Node], fleet: str
) -> None:
    first, second = two_nodes
    one = await open_store("a", url=second.url)
    two = await open_store("b", url=first.url)
    heard = await following(two)
    await following(one)

    assert one.up
    assert (await one.claim("g0", "n1", 1, 2, 1, slot=0, news=b"taken")).granted
    assert (await two.claim("g0", "n1", 1, 2, 1)).seats_total == 2
    await until(lambda: heard.news == [(one.owner, b"taken")], "the news is heard")
    await one.save_picture(b"picture", 7)
    assert await two.load_picture() == (b"picture", 7)
    found = await ops.check(second.url, fleet)
    assert (found.mode, found.trouble) == ("cluster", None)


async def test_keys_that_move_are_followed(open_store: OpenStore, two_nodes: tuple[Node, Node], fleet: str) -> None:
    first, second = two_nodes
    store = await open_store("a", url=first.url)
    other = await open_store("b", url=second.url)
    heard = await following(other)
    await store.claim("g0", "n1", 1, 4, 1)
    give(slot_of(first, fleet), first, second)

    await until(lambda: store.up and other.up, "all are up")
    reply = await store.claim("g0", "n2", 1, 4, 1, news=b"taken")
    assert reply.granted
    await until(lambda: store.up, "it is up")
    assert (await store.occupancy(["g0"]))["g0"].seats_mine == 2
    await until(lambda: heard.news or heard.gaps, "the other reads at the new place")
    store.tell(b"more")
    await until(lambda: (store.owner, b"more") in heard.news, "and hears")


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_cluster_without_anybody_for_the_keys_is_told_and_used_once_there_is(
    open_store: OpenStore, short_dir: Path, engine: str
) -> None:
    node = Node(engine, short_dir / "a")
    try:
        store = await open_store(url=node.url)
        assert store.trouble is not None
        assert store.trouble.kind is TroubleKind.CLUSTER
        assert (await store.claim("g0", "n1", 1, 2, 1)).local
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: store.up, "the store is used")

        assert (await store.occupancy(["g0"]))["g0"].seats_mine == 1
        await store.close()
    finally:
        node.stop()
