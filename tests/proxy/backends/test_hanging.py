"""An engine that neither answers nor ends: when the watcher says so, and how the supervisor ends it."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.backends import orphans
from proxy.backends.probes import Look
from proxy.backends.supervisor import State, Timing
from proxy.backends.watcher import Cadence
from scheduler.health import Signal
from tests.proxy.backends.test_supervisor import QUICK, STUBBORN
from tests.proxy.backends.test_supervisor import Stage as Supervised
from tests.proxy.backends.test_watcher import Clock
from tests.proxy.backends.test_watcher import Scene as Watched
from tests.wait import until


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    yield made
    await made.tasks.close()


@pytest.fixture
async def supervised(tmp_path: Path) -> AsyncIterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    for supervisor in made.made:
        await supervisor.stop(0.1)
    assert orphans.marked(made.state_dir.marker()) == []
    made.state_dir.close()


class Hanging:
    """A managed engine on a clock that stands still until told; remembers what was told of its hanging."""

    def __init__(self, watched: Watched) -> None:
        self.reasons: list[str] = []
        self.clock = Clock()
        self.watched = watched
        cadence = Cadence(busy_s=0, idle_s=0, spacing_s=0, stall_s=60, hung_after_s=30)
        self.watcher = watched.start(url=None, epoch=1, cadence=cadence, clock=self.clock, on_hung=self.told)
        self.surprise: Exception | None = None
        """What hearing of it fails with."""

    def told(self, reason: str) -> None:
        self.reasons.append(reason)
        if self.surprise:
            raise self.surprise

    async def look_some_times(self) -> None:
        seen = self.watched.probe.asked
        await until(lambda: self.watched.probe.asked > seen + 4, "it was looked at again")


async def test_no_good_answer_for_long_is_hanging(watched: Watched) -> None:
    engine = Hanging(watched)
    await until(lambda: engine.watcher.answered, "it answered")
    watched.probe.problem = "no answer within 5 s"
    engine.clock.now_s += 29
    await engine.look_some_times()
    assert engine.reasons == []
    engine.clock.now_s += 1
    await until(lambda: engine.reasons, "it hangs")
    assert engine.reasons[0] == "no answer for 30 s"


async def test_no_progress_for_long_is_hanging(watched: Watched) -> None:
    watched.probe.now = Look(started="a", identity="x", busy_slots=1, working=True, progress="100")
    engine = Hanging(watched)
    await until(lambda: engine.watcher.answered, "it answered")
    engine.clock.now_s += 59
    await engine.look_some_times()
    engine.clock.now_s += 29
    await engine.look_some_times()
    assert engine.reasons == []
    engine.clock.now_s += 1
    await until(lambda: engine.reasons, "it hangs")
    assert engine.reasons[0] == "no progress for 89 s"


async def test_one_missed_look_is_not_hanging_however_late_it_is(watched: Watched) -> None:
    """Where slotgate was stopped for a minute, its first look after that fails for want of time."""
    engine = Hanging(watched)
    await until(lambda: engine.watcher.answered, "it answered")
    engine.clock.now_s += 60
    watched.probe.fail_once = "no answer within 5 s"
    await until(lambda: Signal.MISSED in watched.signals(), "a look was missed")
    await engine.look_some_times()
    assert engine.reasons == []


async def test_an_engine_that_says_that_it_loads_does_not_hang(watched: Watched) -> None:
    engine = Hanging(watched)
    await until(lambda: engine.watcher.answered, "it answered")
    watched.probe.problem, watched.probe.loading = "llama-server loads its model", True
    await engine.look_some_times()
    for _ in range(3):
        engine.clock.now_s += 20
        await engine.look_some_times()
    assert engine.reasons == []


async def test_whoever_fails_on_hearing_of_it_does_not_end_the_watching(watched: Watched) -> None:
    engine = Hanging(watched)
    await until(lambda: engine.watcher.answered, "it answered")
    engine.surprise = RuntimeError("nobody thought of this")
    watched.probe.problem = "no answer within 5 s"
    engine.clock.now_s += 31
    await until(lambda: len(engine.reasons) > 1, "it is told again")
    watched.probe.problem = None
    await until(lambda: engine.watcher.answered, "it is back")


async def test_an_engine_that_hangs_is_ended_and_started_again(supervised: Supervised) -> None:
    """A stopped process takes no notice of SIGTERM."""
    supervisor = supervised.supervisor(timing=Timing(grace_s=0.1, ask_every_s=0.01))
    supervisor.end_hung("nothing runs: nothing happens")
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    with capture_logs() as lines:
        supervisor.end_hung("no answer for 30 s")
        supervisor.end_hung("no answer for 32 s")  # told again with each look
        await until(lambda: supervised.told.events.count("ready") == 2, "it is ready again")
    assert orphans.start_ticks(first) is None
    assert (supervisor.restarts, supervisor.last_error) == (1, "no answer for 30 s")
    assert "exited: no answer for 30 s" in supervised.told.events
    assert [line["reason"] for line in lines if line["event"] == "engine hangs"] == ["no answer for 30 s"]


async def test_an_engine_that_hangs_again_and_again_spends_the_budget(supervised: Supervised) -> None:
    supervised.script = STUBBORN
    supervisor = supervised.supervisor(timing=Timing(grace_s=0, ask_every_s=0.01))
    supervisor.start()

    def hangs() -> bool:
        supervisor.end_hung("no answer for 30 s")
        return supervisor.state is State.FAILED

    await until(hangs, "the budget is spent")
    assert supervisor.restarts == QUICK.budget
    assert supervisor.last_error == "no answer for 30 s"
