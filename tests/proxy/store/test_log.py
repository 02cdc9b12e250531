"""Following the log on each kind of store: in order, every gap seen, whatever breaks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from proxy.store import log
from proxy.store.fleet_scripts import TELL
from proxy.store.log import LogReader, run_id_in
from proxy.store.places import Places
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.raw_scripts import KEYS, presence, run
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


class Reading:
    """A reader with what it delivered; None for a gap."""

    def __init__(self, url: str, call_timeout_s: float = 5.0) -> None:
        self.heard: list[bytes | None] = []
        self.reader = LogReader(
            Places(url),
            (KEYS.log, KEYS.log_count),
            call_timeout_s=call_timeout_s,
            on_entry=lambda _number, fields: self.heard.append(fields[b"d"]),
            on_gap=lambda: self.heard.append(None),
        )


def tell(raw: redis.Redis, *news: bytes) -> None:
    for one in news:
        run(raw, TELL, (KEYS.log, KEYS.log_count), "a", one)


def count(raw: redis.Redis) -> int:
    return int(raw.get(KEYS.log_count) or 0)


@pytest.fixture
async def reading(
    shared_process: StoreProcess, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reading]:
    monkeypatch.setattr(log, "BLOCK_S", 0.2)  # silence is soon noticed
    presence(raw, "a")
    reading = Reading(shared_process.url)
    yield reading
    await reading.reader.close()


async def test_it_begins_at_the_end_and_goes_on_in_order(reading: Reading, raw: redis.Redis) -> None:
    tell(raw, b"before")
    await reading.reader.start(None)
    news = [b"%d" % number for number in range(1500)]
    tell(raw, *news)
    await reading.reader.reached(count(raw), 10)

    assert reading.heard == news
    assert reading.reader.position == count(raw)


async def test_it_begins_after_a_position(reading: Reading, raw: redis.Redis) -> None:
    tell(raw, b"1")
    after = count(raw)
    tell(raw, b"2", b"3")
    await reading.reader.start(after)
    await until(lambda: reading.heard == [b"2", b"3"], "what came after is heard")


async def test_entries_trimmed_before_it_came_are_a_gap(reading: Reading, raw: redis.Redis) -> None:
    tell(raw, b"1")
    after = count(raw)
    tell(raw, b"2", b"3")
    raw.xtrim(KEYS.log, maxlen=1, approximate=False)
    await reading.reader.start(after)
    await until(lambda: reading.heard == [None, b"3"], "the gap is told, then the rest")


async def test_a_position_of_another_life_is_a_gap(reading: Reading, raw: redis.Redis) -> None:
    await reading.reader.start(count(raw) + 1_000_000)
    await until(lambda: reading.heard == [None], "the gap is told")
    tell(raw, b"1")
    await until(lambda: reading.heard == [None, b"1"], "and it goes on")


@pytest.mark.parametrize("more", [True, False])
async def test_lost_data_is_a_gap(reading: Reading, raw: redis.Redis, more: bool) -> None:
    await reading.reader.start(None)
    tell(raw, b"1")
    await until(lambda: reading.heard == [b"1"], "it reads")
    raw.flushall()
    if more:
        tell(raw, b"2")
        await until(lambda: reading.heard == [b"1", None, b"2"], "it is noticed by the next entry")
    else:
        await until(lambda: reading.heard == [b"1", None], "it is noticed without any")


async def test_a_clock_that_went_back_while_data_was_lost_hides_nothing(reading: Reading, raw: redis.Redis) -> None:
    await reading.reader.start(None)
    tell(raw, b"1")
    await until(lambda: reading.heard == [b"1"], "it reads")
    raw.flushall()
    raw.set(KEYS.log_count, 5, px=60_000)
    tell(raw, b"2")
    await until(lambda: reading.heard == [b"1", None], "the gap is told")
    tell(raw, b"3")
    await until(lambda: reading.heard == [b"1", None, b"3"], "and it goes on")


async def test_a_broken_connection_hides_nothing_and_is_no_gap(own_process: StoreProcess, short_dir: Path) -> None:
    raw = redis.Redis.from_url(own_process.url, protocol=2)
    presence(raw, "a")
    async with LossySocket(own_process.url, short_dir) as lossy:
        reading = Reading(lossy.url)
        await reading.reader.start(None)
        news = []
        for number in range(5):
            news.append(b"%d" % number)
            tell(raw, news[-1])
            lossy.cut()
            await until(lambda: reading.heard == news, "it is heard")
        await reading.reader.close()
    raw.close()


async def test_a_store_that_was_restarted_is_a_gap_and_nobody_waits_meanwhile(own_process: StoreProcess) -> None:
    raw = redis.Redis.from_url(own_process.url, protocol=2)
    presence(raw, "a")
    reading = Reading(own_process.url)
    await reading.reader.start(None)
    waiting = asyncio.ensure_future(reading.reader.reached(count(raw) + 5, 60))
    await asyncio.sleep(0)
    own_process.stop()
    await waiting
    await reading.reader.reached(count_later := reading.reader.position + 1, 60)
    assert count_later
    own_process.start()
    presence(raw, "a")
    await until(lambda: reading.heard == [None], "the gap is told")
    await reading.reader.close()
    raw.close()


async def test_it_waits_for_a_store_that_is_not_there_yet(short_dir: Path) -> None:
    process = StoreProcess("valkey", short_dir)
    reading = Reading(process.url)
    await reading.reader.start(None)
    assert not reading.reader.connected
    process.start()
    await until(lambda: reading.heard == [None], "it came, and what was before is not known")
    await reading.reader.close()
    process.stop()


async def test_doubt_makes_it_begin_anew(reading: Reading, raw: redis.Redis) -> None:
    await reading.reader.start(None)
    reading.reader.doubt()
    await until(lambda: reading.heard == [None], "everything counts as missed")
    tell(raw, b"1")
    await until(lambda: reading.heard == [None, b"1"], "and it goes on")
    assert reading.reader.gaps == 1


async def test_in_doubt_it_is_tried_at_once(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = StoreProcess("valkey", short_dir)
    for name in ("BACKOFF_FIRST_S", "BACKOFF_MAX_S"):
        monkeypatch.setattr(log, name, 1000.0)
    reading = Reading(process.url)
    await reading.reader.start(None)
    process.start()
    try:
        reading.reader.doubt()
        await until(lambda: reading.heard == [None], "it reads, and what was before counts as missed")
    finally:
        await reading.reader.close()
        process.stop()


async def test_waiting_for_a_position_ends_in_time(reading: Reading, raw: redis.Redis) -> None:
    await reading.reader.reached(10**18, 60)
    await reading.reader.start(None)
    await reading.reader.reached(count(raw), 60)
    await reading.reader.reached(10**18, 0.01)
    assert reading.reader._waiting == []


async def test_callbacks_that_fail_end_nothing(reading: Reading, raw: redis.Redis) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the owner's mistake")

    await reading.reader.start(None)
    reading.reader._on_entry = reading.reader._on_gap = fail
    tell(raw, b"1")
    raw.flushall()
    tell(raw, b"2")
    await until(lambda: reading.reader.position == count(raw) and reading.reader.gaps, "it goes on")


def test_the_name_of_a_process_is_read() -> None:
    assert run_id_in("# Server\r\nrun_id:abc\r\nx:y\r\n") == "abc"
    assert run_id_in("") == ""
