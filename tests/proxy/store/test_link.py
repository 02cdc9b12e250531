"""Trouble with the store: noticed, told once, survived. Each kind is made with a real Valkey."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store.link import State
from proxy.store.scripts import OCCUPANCY
from proxy.store.store import Store
from proxy.store.trouble import StoreDown, TroubleKind
from tests.proxy.store.conftest import OpenStore
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

TROUBLE = "store in trouble, going on with this proxy's share of each backend"


def troubles(lines: list[Any]) -> list[str]:
    return [line["trouble"] for line in lines if line["event"] == TROUBLE]


async def test_unreachable_at_start_is_told_once_without_the_password_and_service_goes_on(
    open_store: OpenStore, short_dir: Path
) -> None:
    with capture_logs() as lines:
        store = await open_store(url=f"unix://user:secret@{short_dir}/none.sock?password=secret", call_timeout_s=0.25)
        replies = [await store.claim("g0", f"n{i}", 1, 2, 1) for i in range(3)]
        await until(lambda: store._link._wire is None, "it tried again")

    assert not store.up
    assert [reply.granted for reply in replies] == [True, True, False]
    assert all(reply.local for reply in replies)
    assert troubles(lines) == ["unreachable"]
    assert "secret" not in str(lines)
    assert "correct store.url" in str(lines)


async def test_it_is_used_as_soon_as_it_is_there(open_store: OpenStore, short_dir: Path) -> None:
    process = StoreProcess("valkey", short_dir)
    store = await open_store(url=process.url)
    changes: list[bool] = []
    store.on_change = changes.append
    await store.claim("g0", "n1", 1, 2, 1)
    try:
        process.start()
        await until(lambda: store.up, "the store is up")

        assert changes == [True]
        assert (await store.occupancy(["g0"]))["g0"].seats_mine == 1
    finally:
        await store.close()
        process.stop()


async def test_a_call_waits_for_a_connection_that_is_being_replaced(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url)
        lossy.lose_answers = True

        reply = await store.claim("g0", "n1", 1, 1, 1)

        assert lossy.losses == 1
        assert reply.granted
        assert not reply.local
        assert reply.seats_total == 1
        lossy.lose_answers = True
        assert not await store.release("g0", "n1")  # it was freed by the first call, whose answer was lost
        assert (await store.occupancy(["g0"]))["g0"].seats_total == 0
        await store.close()


async def test_a_slow_store_is_left_alone_after_one_deadline(open_store: OpenStore, own_process: StoreProcess) -> None:
    with capture_logs() as lines:
        store = await open_store(url=own_process.url, call_timeout_s=0.2)
        own_process.stall()
        first = await store.claim("g0", "n1", 1, 2, 1)
        began = asyncio.get_running_loop().time()
        rest = [await store.claim("g0", f"m{i}", 1, 2, 1) for i in range(100)]
        took = asyncio.get_running_loop().time() - began
        own_process.go_on()
        await until(lambda: store.up, "it is back")

    assert first.local
    assert first.granted
    assert [reply.granted for reply in rest] == [True] + [False] * 99
    assert took < 100 * 0.2
    assert troubles(lines) == ["slow"]
    assert (await store.occupancy(["g0"]))["g0"].seats_mine == 2


async def test_a_held_up_event_loop_is_not_taken_for_a_slow_store(
    open_store: OpenStore, own_process: StoreProcess
) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=0.2)
    claim = asyncio.ensure_future(store.claim("g0", "n1", 1, 1, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    held_up = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < held_up:
        pass

    assert not (await claim).local
    assert store.up


def wrong_password(client: redis.Redis) -> None:
    client.config_set("requirepass", "other")
    client.client_kill_filter(_type="normal", skipme=True)


def replica(client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", "1")


def memory_full(client: redis.Redis) -> None:
    client.config_set("maxmemory", "1kb")


def forbidden(client: redis.Redis) -> None:
    client.acl_setuser("default", enabled=True, nopass=True, categories=["-@all"], commands=["+ping", "+acl"])


def no_disk(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "1")


def well_again(client: redis.Redis) -> None:
    client.config_set("requirepass", "")
    client.config_set("maxmemory", "0")
    client.config_set("min-replicas-to-write", "0")
    client.replicaof("no", "one")


def allowed_again(client: redis.Redis) -> None:
    client.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"])


@pytest.mark.parametrize(
    ("spoil", "heal", "kind"),
    [
        (wrong_password, well_again, TroubleKind.PASSWORD),
        (replica, well_again, TroubleKind.READ_ONLY),
        (memory_full, well_again, TroubleKind.MEMORY_FULL),
        (forbidden, allowed_again, TroubleKind.FORBIDDEN),
        (no_disk, well_again, TroubleKind.BUSY),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_each_trouble_is_told_once_and_healed_by_itself(
    open_store: OpenStore,
    own_process: StoreProcess,
    spoil: Callable[[redis.Redis], None],
    heal: Callable[[redis.Redis], None],
    kind: TroubleKind,
) -> None:
    operator = redis.Redis.from_url(own_process.url, protocol=2)
    operator.ping()
    store = await open_store(url=own_process.url, lease_ttl_s=0.6)
    await store.claim("g0", "n1", 1, 2, 1)
    with capture_logs() as lines:
        spoil(operator)
        await until(lambda: not store.up, "trouble is noticed")
        assert store.trouble is not None
        assert store.trouble.kind is kind
        assert (await store.claim("g0", "n2", 1, 2, 1)).local
        tries = store._link.attempts
        await until(lambda: store._link.attempts >= tries + 2, "it tried again")
        heal(operator)
        await until(lambda: store.up, "it is back")

    assert troubles(lines) == [kind.value]
    assert (await store.occupancy(["g0"]))["g0"].seats_mine == 2
    operator.close()


async def test_a_wrong_password_at_start_names_the_remedy(open_store: OpenStore, short_dir: Path) -> None:
    process = StoreProcess("valkey", short_dir, "--requirepass", "right")
    process.start()
    try:
        with capture_logs() as lines:
            wrong = await open_store(url=process.url.replace("unix://", "unix://:wrong@"))
            none = await open_store(url=process.url)
            right = await open_store(url=process.url.replace("unix://", "unix://:right@"))

        assert [wrong.up, none.up, right.up] == [False, False, True]
        assert troubles(lines) == ["password", "password"]
        assert "redis://USER:PASSWORD@HOST:PORT" in str(lines)
    finally:
        for store in (wrong, none, right):
            await store.close()
        process.stop()


async def test_cluster_mode_without_slots_is_told(open_store: OpenStore, short_dir: Path) -> None:
    process = StoreProcess(
        "valkey", short_dir, "--cluster-enabled", "yes", "--cluster-port", "17999", "--bind", "127.0.0.1"
    )
    process.start()
    try:
        store = await open_store(url=process.url)
        assert store.trouble is not None
        assert store.trouble.kind is TroubleKind.CLUSTER
    finally:
        process.stop()


async def test_while_it_is_gone_attempts_are_spaced(open_store: OpenStore, own_process: StoreProcess) -> None:
    store = await open_store(url=own_process.url, call_timeout_s=0.1)
    before = store._link.attempts
    own_process.stop()
    await until(lambda: not store.up, "it is noticed")
    began = asyncio.get_running_loop().time()
    await until(lambda: store._link.attempts >= before + 5, "five attempts")

    assert asyncio.get_running_loop().time() - began > 0.3


async def test_in_doubt_it_is_tried_at_once(
    open_store: OpenStore, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.store.link.BACKOFF_MAX_S", 1000.0)
    process = StoreProcess("valkey", short_dir)
    store = await open_store(url=process.url)
    store._link.backoff_s = 1000.0
    store.doubt()
    attempts = store._link.attempts
    await until(lambda: store._link.attempts > attempts and store._link._wire is None, "it tried once more")
    try:
        process.start()
        store.doubt()
        await until(lambda: store.up, "the store is up")
        store.doubt()
        await until(lambda: store._fleet._healing is None or store._fleet._healing.done(), "it looked")
        assert store.up
    finally:
        await store.close()
        process.stop()


async def test_a_connection_that_breaks_again_and_again_is_no_busy_loop(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url, call_timeout_s=1.0)
        for _ in range(3):
            lossy.cut()
            await until(lambda: store._link.state is not State.UP, "the break is noticed")
            await until(lambda: store._link.state is State.UP, "it connected again")
        assert store._link.backoff_s > 0.1
        await store.close()


async def test_a_restart_of_the_store_is_bridged(open_store: OpenStore, own_process: StoreProcess) -> None:
    """Restarted empty within the deadline: no claim is decided alone, and what was held is held again."""
    store = await open_store(url=own_process.url)
    await store.claim("g0", "n1", 1, 2, 1)

    def restart() -> None:
        own_process.stop()
        own_process.start()

    waiting: Awaitable[Any] = asyncio.get_running_loop().run_in_executor(None, restart)
    await until(lambda: store._link.state.value == "recovering", "the break is noticed")
    reply = await store.claim("g0", "n2", 1, 2, 1)
    await waiting

    assert reply.granted
    assert not reply.local
    assert reply.seats_mine == 2


async def test_what_is_said_again_is_made_anew(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    """On another connection other things may hold, for one that others have to be heard first."""
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url)
        made: list[str] = []

        def arguments() -> tuple[str]:
            made.append(store._prefix)
            return (store._prefix,)

        lossy.lose_answers = True
        keys = (store._keys.leases("g0"), store._keys.draining("g0"))
        assert await store._link.run(OCCUPANCY, keys, arguments) == [[0, 0, -1]]
        assert len(made) == 2
        await store.close()


async def test_a_connection_that_breaks_while_it_is_closed_ends_the_calls(
    open_store: OpenStore, own_process: StoreProcess, short_dir: Path
) -> None:
    async with LossySocket(own_process.url, short_dir) as lossy:
        store = await open_store(url=lossy.url)
        wire = store._link._wire
        assert wire is not None
        store._link._closed = True
        lossy.cut()
        await until(lambda: wire.broken is not None, "it is broken")

        with pytest.raises(StoreDown):
            await store._link.call(("PING",))
        await store.close()


async def test_closing_while_it_connects_leaves_nothing_behind(fleet: str, short_dir: Path) -> None:
    """A store that accepts and says nothing."""
    writers: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_unix_server(lambda _reader, writer: writers.append(writer), short_dir / "mute.sock")
    store = Store(f"unix://{short_dir}/mute.sock", fleet=fleet, proxy_id="p", call_timeout_s=60.0)
    before = asyncio.all_tasks()
    starting = asyncio.ensure_future(store.start())
    await until(lambda: "store reader" in {task.get_name() for task in asyncio.all_tasks()}, "it is connected")
    await store.close()
    await starting
    await store.close()

    assert asyncio.all_tasks() - {starting} <= before
    listener.close()
    for writer in writers:
        writer.close()
