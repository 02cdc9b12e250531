"""The benchmark's own parts, in the small: what it counts is what went through."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.load import Streams, closed_loop, open_loop
from tests.bench.processes import Missing, Process, cpu_s, pss_bytes, start_bare, start_engine, start_nginx
from tests.bench.relay import paired
from tests.wait import until


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[list[Process]]:
    engine, unix = start_engine(tmp_path)
    started = [engine]
    try:
        started.append(start_bare("tcp", tmp_path, f"http://127.0.0.1:{engine.port}"))
        started.append(start_bare("unix", tmp_path, f"unix:{unix}"))
        yield started[1:]
    finally:
        for process in started:
            process.stop()


@pytest.mark.parametrize("which", [0, 1], ids=["tcp", "unix"])
async def test_streams_and_short_requests_are_counted(proxies: list[Process], which: int) -> None:
    proxy = proxies[which]
    streams = Streams(proxy.port)
    await streams.start(5, 20)
    await until(lambda: streams.ended == 5, "the streams to end")
    assert streams.chunks == 5 * 20
    assert streams.lost == 0
    streams.close()
    answers, used_s = await closed_loop(proxy.port, 4, 0.1, lambda: cpu_s([proxy.pid]))
    assert answers > 0
    assert used_s > 0
    took = await open_loop(proxy.port, 200, 0.2)
    assert len(took) == 36
    assert max(took) < 10


async def test_idle_streams_stay_open(proxies: list[Process]) -> None:
    streams = Streams(proxies[0].port)
    await streams.start(10, -1)
    await streams.all_begun()
    assert streams.ended == 0
    assert pss_bytes([proxies[0].pid]) > 0
    streams.close()


def test_a_missing_nginx_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(Missing, match="apt-get install"):
        start_nginx(tmp_path, "127.0.0.1:1")


def test_a_process_that_does_not_start_tells_why(tmp_path: Path) -> None:
    process = Process("broken", ["/bin/sh", "-c", "echo no such luck >&2; exit 1"], os.sched_getaffinity(0), tmp_path)
    with pytest.raises(Missing, match="no such luck"):
        process.listen(1, timeout_s=5)
    process.stop()


def test_ratios_are_taken_within_a_round() -> None:
    assert paired([10, 40, 30], [10, 20, 30]) == 1
