"""Finding and ending leftovers, with real processes."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.backends import orphans
from proxy.backends.orphans import MARKER, ProcessRecord
from tests.wait import until_sync


@pytest.fixture
def spawn() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, marker: str | None = None) -> subprocess.Popen[bytes]:
        env = {**os.environ, MARKER: marker} if marker else dict(os.environ)
        started.append(subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE))
        stdout = started[-1].stdout
        assert stdout is not None
        assert stdout.readline() == b"up\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


SLEEP = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)


def test_marked_processes_are_found_by_state_directory_and_by_name(spawn: Any) -> None:
    home = uuid.uuid4().hex
    one, other = spawn(SLEEP, f"{home}/one"), spawn(SLEEP, f"{home}/one-more")
    spawn(SLEEP)
    assert {process.pid for process in orphans.marked(f"{home}/")} == {one.pid, other.pid}
    assert [process.pid for process in orphans.marked(f"{home}/one")] == [one.pid]


def test_sweep_ends_them_and_says_which(spawn: Any) -> None:
    home = uuid.uuid4().hex
    polite, stubborn = spawn(SLEEP, f"{home}/a"), spawn(STUBBORN, f"{home}/b")
    assert set(orphans.sweep(f"{home}/", grace_s=0.2)) == {polite.pid, stubborn.pid}
    assert polite.wait() == -signal.SIGTERM
    assert stubborn.wait() == -signal.SIGKILL
    assert orphans.sweep(f"{home}/") == []


def test_recorded_processes_are_ended_even_unmarked(spawn: Any) -> None:
    process = spawn(SLEEP)
    record = orphans.record(process.pid)
    assert record is not None
    assert orphans.sweep(uuid.uuid4().hex, [record]) == [process.pid]


def test_another_process_with_the_same_number_is_left_alone(spawn: Any) -> None:
    process = spawn(SLEEP)
    assert orphans.sweep(uuid.uuid4().hex, [ProcessRecord(process.pid, started=1)]) == []
    assert process.poll() is None


def test_a_dead_process_is_no_process(spawn: Any) -> None:
    process = spawn(SLEEP)
    process.kill()
    until_sync(lambda: orphans.start_ticks(process.pid) is None, "it is a corpse that nobody has waited for")
    assert orphans.record(process.pid) is None
    process.wait()
    assert orphans.record(process.pid) is None
