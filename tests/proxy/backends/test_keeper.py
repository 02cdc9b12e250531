"""The keeper, with real processes and real signals."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.backends import keeper, orphans
from tests.wait import until_sync

KEEPER = Path(keeper.__file__)

OLLAMA_LIKE = """
    import os, signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    def leave(*_):
        child.kill(); child.wait(); sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    open(sys.argv[1], "w").write(str(child.pid))
    print("serving", flush=True)
    signal.pause()
"""

STUBBORN = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    while True:
        signal.pause()
"""


def alive(pid: int) -> bool:
    return orphans.start_ticks(pid) is not None


class Kept:
    """A keeper started for a test."""

    def __init__(self, directory: Path, argv: list[str], *, parent: int | None = None, **options: object) -> None:
        self.log = directory / "engine.log"
        flags = ["--parent", str(os.getpid() if parent is None else parent)]
        flags += [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), "--log", str(self.log), *flags, "--", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.facts: list[dict[str, Any]] = []

    def fact(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.facts.append(json.loads(self.process.stdout.readline()))
        return self.facts[-1]

    def close_pipe(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(timeout=20)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Any]:
    started: list[Kept] = []

    def start(script: str, *arguments: str, **options: Any) -> Kept:
        argv = [sys.executable, "-c", textwrap.dedent(script), *arguments]
        started.append(Kept(tmp_path, argv, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            pipe.close()


def child_pid(path: Path) -> int:
    until_sync(lambda: path.exists() and path.read_text(), "the engine has started its child")
    return int(path.read_text())


def test_reports_the_engine_and_its_exit_status(kept: Any, tmp_path: Path) -> None:
    one = kept("import sys; print('bye'); sys.exit(7)")
    assert set(one.fact()) == {"started"}
    assert one.fact() == {"exited": 7}
    assert one.wait() == 7
    assert (tmp_path / "engine.log").read_text() == "bye\n"


def test_a_signal_that_ends_the_engine_is_told(kept: Any) -> None:
    one = kept("import signal; signal.pause()")
    os.kill(one.fact()["started"], signal.SIGKILL)
    assert one.fact() == {"exited": -9}
    assert one.wait() == 128 + 9


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    one = Kept(tmp_path, ["/no/such/engine"])
    assert "No such file" in one.fact()["failed"]
    one.wait()
    assert one.process.returncode == 127
    assert "cannot start /no/such/engine" in one.log.read_text()
    one.close_pipe()


def test_sigterm_reaches_the_engine_first(kept: Any, tmp_path: Path) -> None:
    one = kept(OLLAMA_LIKE, str(tmp_path / "child"), grace=20)
    engine, child = one.fact()["started"], child_pid(tmp_path / "child")
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 0
    assert not alive(engine)
    assert not alive(child)


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(kept: Any) -> None:
    one = kept(
        STUBBORN,
        grace=0.2,
    )
    engine = one.fact()["started"]
    until_sync(lambda: "up" in one.log.read_text(), "the engine ignores SIGTERM")
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 128 + 9
    assert not alive(engine)


def test_a_second_sigterm_means_at_once(kept: Any) -> None:
    one = kept(
        STUBBORN,
        grace=1000,
    )
    one.fact()
    until_sync(lambda: "up" in one.log.read_text(), "the engine ignores SIGTERM")
    one.process.send_signal(signal.SIGTERM)
    until_sync(lambda: "got SIGTERM" in one.log.read_text(), "the keeper took the first")
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 128 + 9


def test_the_end_of_slotgate_ends_everything(kept: Any, tmp_path: Path) -> None:
    one = kept(OLLAMA_LIKE, str(tmp_path / "child"), grace=20)
    engine, child = one.fact()["started"], child_pid(tmp_path / "child")
    one.close_pipe()  # what the kernel does when slotgate is killed
    one.wait()
    assert not alive(engine)
    assert not alive(child)
    assert "slotgate is gone" in one.log.read_text()


def test_the_child_of_a_killed_ollama_goes_too(kept: Any, tmp_path: Path) -> None:
    one = kept(OLLAMA_LIKE, str(tmp_path / "child"))
    engine, child = one.fact()["started"], child_pid(tmp_path / "child")
    os.kill(engine, signal.SIGKILL)
    assert one.wait() == 128 + 9
    assert not alive(child)
    assert f"ending what the engine left: [{child}]" in one.log.read_text()


def test_grandchildren_that_hide_in_a_session_of_their_own_go_too(kept: Any, tmp_path: Path) -> None:
    one = kept(
        """
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(sys.argv[1], "w").write(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.wait()
        time.sleep(600)
        """,
        str(tmp_path / "child"),
        grace=5,
    )
    hidden = child_pid(tmp_path / "child")
    one.process.send_signal(signal.SIGTERM)
    one.wait()
    assert not alive(hidden)


def test_a_killed_keeper_takes_the_engine_with_it(kept: Any) -> None:
    one = kept("import signal; signal.pause()")
    engine = one.fact()["started"]
    one.process.kill()
    until_sync(lambda: not alive(engine), "the kernel sent the parent-death signal")


def test_a_killed_keeper_ends_ollama_in_order(kept: Any, tmp_path: Path) -> None:
    one = kept(OLLAMA_LIKE, str(tmp_path / "child"), death_signal=int(signal.SIGTERM))
    engine, child = one.fact()["started"], child_pid(tmp_path / "child")
    until_sync(lambda: "serving" in one.log.read_text(), "it takes SIGTERM")
    one.process.kill()
    until_sync(lambda: not alive(engine) and not alive(child), "by SIGTERM its child goes too")


def test_a_keeper_whose_parent_is_gone_already_starts_nothing(kept: Any, tmp_path: Path) -> None:
    one = kept("open(__import__('sys').argv[1], 'w')", str(tmp_path / "ran"), parent=1)
    assert one.wait() == 1
    assert not (tmp_path / "ran").exists()


def test_kill_9_of_slotgate_leaves_nothing(tmp_path: Path) -> None:
    """A stand-in for slotgate holds the pipe and is killed hard."""
    engine = [sys.executable, "-c", textwrap.dedent(OLLAMA_LIKE), str(tmp_path / "child")]
    stand_in = f"""
import os, signal, subprocess, sys
p = subprocess.Popen([sys.executable, "-I", "-S", {str(KEEPER)!r}, "--log", {str(tmp_path / "log")!r},
    "--parent", str(os.getpid()), "--"] + {engine!r}, stdin=subprocess.PIPE, start_new_session=True)
print(p.pid, flush=True)
signal.pause()
"""
    slotgate = subprocess.Popen([sys.executable, "-c", stand_in], stdout=subprocess.PIPE)
    assert slotgate.stdout is not None
    kept_by = int(slotgate.stdout.readline())
    child = child_pid(tmp_path / "child")
    slotgate.kill()
    slotgate.wait()
    slotgate.stdout.close()
    until_sync(lambda: not alive(kept_by) and not alive(child), "keeper, engine and its child are gone")


def test_the_log_is_bounded(kept: Any, tmp_path: Path) -> None:
    one = kept("print(('x' * 99 + '\\n') * 1000, end='')", log_bytes=20000)
    one.wait()
    sizes = [path.stat().st_size for path in tmp_path.glob("engine.log*")]
    assert len(sizes) == 2
    assert max(sizes) <= 20000 + 65536  # one read of the pipe is written whole


def test_a_log_that_cannot_be_renamed_is_bounded_all_the_same(kept: Any, tmp_path: Path) -> None:
    (tmp_path / "engine.log.1" / "in the way").mkdir(parents=True)
    one = kept("print(('x' * 99 + '\\n') * 10000, end='')", log_bytes=20000)
    assert one.wait() == 0
    assert 0 < (tmp_path / "engine.log").stat().st_size <= 20000 + 65536


def test_an_engine_runs_without_a_log(kept: Any, tmp_path: Path) -> None:
    (tmp_path / "engine.log").mkdir()
    one = kept("import sys; print('bye'); sys.exit(7)")
    assert one.wait() == 7


def test_an_engine_that_closes_its_output_lives_on(kept: Any) -> None:
    one = kept("import os, signal\nos.close(1); os.close(2)\nsignal.pause()")
    engine = one.fact()["started"]
    os.kill(engine, 0)
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 128 + 15
