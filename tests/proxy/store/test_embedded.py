"""The embedded store's life: start, stop, crash, restart, what survives, what is refused."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from proxy.store import embedded, valkey_files
from proxy.store.embedded import EmbeddedStore
from proxy.store.valkey_files import StoreStartError
from tests.proxy.store.conftest import OpenStore
from tests.wait import until, until_sync

OWNER = """
import asyncio, sys, pathlib
from proxy.store.embedded import EmbeddedStore
async def main():
    store = EmbeddedStore(pathlib.Path(sys.argv[1]))
    await store.start()
    print(store.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def start_owner(state_dir: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """A process that owns an embedded store, and the pid of its Valkey."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(state_dir)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        for line in owner.stdout:
            if line.strip().isdigit():
                return owner, int(line)
    raise AssertionError(f"it ended with {owner.wait()}")


def plain(store: EmbeddedStore) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(store.socket_path), protocol=2, decode_responses=True)


async def test_it_listens_on_a_private_socket_only(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir)
    await store.start()
    try:
        assert store.socket_path.stat().st_mode & 0o777 == 0o700
        assert store.data_dir.stat().st_mode & 0o777 == 0o700
        settings = plain(store).config_get("*")
        assert settings["port"] == "0"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["maxmemory"] == str(256 * 1024 * 1024)
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "everysec"
        assert "ready" in store.log_path.read_text().lower()
    finally:
        await store.stop()
    assert not store.socket_path.exists()
    await store.stop()


async def test_what_is_stored_survives_a_clean_stop(short_dir: Path, open_store: OpenStore) -> None:
    first = EmbeddedStore(short_dir)
    await first.start()
    store = await open_store(url=first.url)
    await store.set_draining("g0", True)
    await store.close()
    await first.stop()

    second = EmbeddedStore(short_dir)
    await second.start()
    try:
        again = await open_store(url=second.url)
        assert (await again.occupancy(["g0"]))["g0"].draining
        await again.close()
    finally:
        await second.stop()


async def test_a_second_one_on_the_same_directory_is_refused_by_name(short_dir: Path) -> None:
    first, second = EmbeddedStore(short_dir), EmbeddedStore(short_dir)
    await first.start()
    try:
        with pytest.raises(StoreStartError, match=f"in use by slotgate with pid {os.getpid()}: stop that one"):
            await second.start()
        assert plain(first).ping()
    finally:
        await first.stop()
    await second.start()
    await second.stop()


async def test_stale_socket_pid_and_lock_files_do_not_matter(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir)
    store.data_dir.mkdir()
    store.socket_path.touch()
    (store.data_dir / valkey_files.PID_NAME).write_text("1")
    (store.data_dir / valkey_files.LOCK_NAME).write_text("999999999")

    await store.start()

    assert plain(store).ping()
    await store.stop()


async def test_a_crash_is_noticed_and_healed_and_the_proxy_goes_on(short_dir: Path, open_store: OpenStore) -> None:
    store = EmbeddedStore(short_dir)
    await store.start()
    try:
        proxy = await open_store(url=store.url)
        await proxy.claim("g0", "n1", 1, 2, 1)
        first = store.pid
        assert first is not None
        with capture_logs() as lines:
            os.kill(first, signal.SIGKILL)
            await until(lambda: store.restarts == 1, "it was started again")
            reply = await proxy.claim("g0", "n2", 1, 2, 1)

        assert reply.granted
        assert not reply.local
        assert reply.seats_mine == 2
        assert store.pid != first
        assert ("embedded store ended by itself", -9) in [(line["event"], line.get("status")) for line in lines]
        await proxy.close()
    finally:
        await store.stop()


@pytest.mark.parametrize("stage", ["open_log", "write_config", "explain_exit"])
@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unforeseen")])
async def test_whatever_goes_wrong_at_a_restart_it_is_tried_again(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, stage: str, problem: Exception
) -> None:
    monkeypatch.setattr(embedded, "RESTART_FIRST_S", 0.01)
    problems = [problem] * 3

    def fail(*_: object) -> None:
        problems.pop()
        raise problem

    store = EmbeddedStore(short_dir)
    await store.start()
    try:
        with monkeypatch.context() as patch, capture_logs() as lines:
            if stage == "explain_exit":  # it ends at once, and then its log cannot be read
                patch.setattr(valkey_files, "CONFIG", "no such option\n")
            patch.setattr(valkey_files, stage, fail)
            assert store.pid is not None
            os.kill(store.pid, signal.SIGKILL)
            await until(lambda: len(problems) < 2, "it was tried twice")
        await until(lambda: store.restarts == 1, "it was started again")
        assert plain(store).ping()
        told = [line.get("error") for line in lines if line["event"] == "embedded store does not start"]
        assert str(problem.args[-1]) in str(told[0])
    finally:
        await store.stop()


async def test_it_runs_although_its_pid_cannot_be_noted(short_dir: Path) -> None:
    """A disk that is full: here the pid file's place is taken."""
    store = EmbeddedStore(short_dir)
    (store.data_dir / valkey_files.PID_NAME).mkdir(parents=True)
    with capture_logs() as lines:
        await store.start()
    assert plain(store).ping()
    assert "pid of the embedded store not noted" in [line["event"] for line in lines]
    await store.stop()


async def test_a_log_that_cannot_be_written_is_explained(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir)
    store.log_path.mkdir(parents=True)
    with pytest.raises(StoreStartError, match=r"cannot write .*store\.log: Is a directory"):
        await store.start()


def test_nothing_is_left_after_slotgate_is_killed_and_the_next_start_works_at_once(short_dir: Path) -> None:
    owner, valkey = start_owner(short_dir)
    client = redis.Redis(unix_socket_path=str(short_dir / "store" / "valkey.sock"), protocol=2)
    client.set("kept", "1", ex=3600)
    client.close()

    owner.kill()
    owner.wait()

    async def again() -> None:
        store = EmbeddedStore(short_dir)
        await store.start()
        assert plain(store).get("kept") == "1"
        await store.stop()

    asyncio.run(again())
    until_sync(lambda: not valkey_files.alive(valkey), "the old one is gone")


async def test_an_old_one_that_does_not_end_is_killed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, valkey = start_owner(short_dir)
    os.kill(valkey, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    monkeypatch.setattr(embedded, "OLD_ONE_TIMEOUT_S", 0.2)

    store = EmbeddedStore(short_dir)
    await store.start()

    assert not valkey_files.alive(valkey)
    await store.stop()


async def test_one_that_does_not_stop_is_killed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.1)
    store = EmbeddedStore(short_dir)
    await store.start()
    pid = store.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    await store.stop()

    assert store.pid is None
    assert not valkey_files.alive(pid)


async def test_damaged_data_is_moved_aside(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir)
    await store.start()
    client = plain(store)
    for i in range(50):
        client.set(f"k{i}", "x" * 50, ex=3600)
    client.close()
    await store.stop()
    (log,) = (store.data_dir / "appendonlydir").glob("*.incr.aof")
    data = bytearray(log.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 12] = b"\xff" * 12
    log.write_bytes(data)

    with capture_logs() as lines:
        await store.start()

    assert plain(store).dbsize() == 0
    assert (store.data_dir / "appendonlydir.damaged" / log.name).exists()
    assert "stored data cannot be read, starting empty" in [line["event"] for line in lines]
    await store.stop()


async def test_a_torn_last_write_loses_only_itself(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir)
    await store.start()
    client = plain(store)
    client.set("first", "1", ex=3600)
    client.set("second", "2", ex=3600)
    client.close()
    await store.stop()
    (log,) = (store.data_dir / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes()[:-5])

    await store.start()

    assert plain(store).keys() == ["first"]
    await store.stop()


async def test_a_path_too_long_for_a_socket_works_through_a_short_one(short_dir: Path) -> None:
    store = EmbeddedStore(short_dir / ("long name " * 12))
    await store.start()
    try:
        assert store.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert plain(store).ping()
    finally:
        await store.stop()
        store.socket_path.parent.rmdir()


async def test_a_directory_that_cannot_be_written_is_explained(short_dir: Path) -> None:
    (short_dir / "store").write_text("in the way")

    with pytest.raises(StoreStartError, match="cannot write to"):
        await EmbeddedStore(short_dir).start()


async def test_a_binary_that_cannot_run_is_explained(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = short_dir / "valkey-server"
    broken.write_text("no program")
    broken.chmod(0o755)
    monkeypatch.setattr(valkey_files, "binary", lambda: broken)
    store = EmbeddedStore(short_dir)

    with pytest.raises(StoreStartError, match="Exec format error"):
        await store.start()
    monkeypatch.undo()
    await store.start()
    await store.stop()
