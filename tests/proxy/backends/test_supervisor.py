"""The life of a managed engine, with real processes, a real keeper and real signals."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from proxy.backends import orphans
from proxy.backends.launch import LaunchError, LaunchSpec
from proxy.backends.statedir import PidFile, StateDir
from proxy.backends.supervisor import State, Supervisor, Timing
from proxy.config import RestartConfig
from proxy.endpoint import parse_endpoint
from scheduler.domain import Engine
from tests.wait import until

RUNS = "import signal, sys\nopen(sys.argv[1], 'w')\nsignal.pause()"
STUBBORN = (
    "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(sys.argv[1], 'w')\n"
    "while True: signal.pause()"
)
CRASHES = "import sys\nprint('E init: failed to open GGUF file')\nsys.exit(3)"
LEAVES_A_CHILD = (
    "import signal, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\nsignal.pause()"
)
QUICK = RestartConfig(backoff_s=0.01, backoff_max_s=0.02, budget=3, budget_window_s=600)


class Told:
    """What a supervisor told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.epochs: list[int] = []

    def started(self, spec: LaunchSpec, epoch: int) -> None:
        self.events.append("started")
        self.epochs.append(epoch)

    def ready(self, spec: LaunchSpec, epoch: int) -> None:
        assert epoch == self.epochs[-1]
        self.events.append("ready")

    def ending(self) -> None:
        self.events.append("ending")

    def exited(self, reason: str) -> None:
        self.events.append(f"exited: {reason}")


class Forgetful(Told):
    """Fails whenever it is told something."""

    def started(self, spec: LaunchSpec, epoch: int) -> None:
        super().started(spec, epoch)
        raise RuntimeError("started")

    def ready(self, spec: LaunchSpec, epoch: int) -> None:
        super().ready(spec, epoch)
        raise RuntimeError("ready")

    def ending(self) -> None:
        super().ending()
        raise RuntimeError("ending")

    def exited(self, reason: str) -> None:
        super().exited(reason)
        raise RuntimeError("exited")


class Stage:
    """One supervised script. Ready as soon as the script has written its file."""

    def __init__(self, directory: Path) -> None:
        self.told = Told()
        self.directory = directory
        self.file = directory / "up"
        self.script = RUNS
        self.state_dir = StateDir(directory / "state")
        self.state_dir.open()
        self.made: list[Supervisor] = []

    def prepare(self) -> LaunchSpec:
        self.file.unlink(missing_ok=True)
        marker = self.state_dir.marker("one")
        return LaunchSpec(
            name="one",
            engine=Engine.LLAMA_SERVER,
            argv=(sys.executable, "-c", self.script, str(self.file)),
            env={**os.environ, orphans.MARKER: marker},
            endpoint=parse_endpoint("http://127.0.0.1:1"),
            log_path=self.state_dir.log_path("one"),
            marker=marker,
            slots=1,
            slot_context_tokens=1,
        )

    async def is_ready(self, _spec: LaunchSpec) -> bool:
        return self.file.exists()

    def supervisor(
        self,
        restart: RestartConfig = QUICK,
        timing: Timing | None = None,
        prepare: Callable[[], LaunchSpec] | None = None,
        is_ready: Callable[[LaunchSpec], Awaitable[bool]] | None = None,
    ) -> Supervisor:
        self.made.append(
            Supervisor(
                "one",
                self.told,
                self.state_dir,
                prepare or self.prepare,
                is_ready or self.is_ready,
                restart=restart,
                timing=timing or Timing(grace_s=5, ask_every_s=0.01),
            )
        )
        return self.made[-1]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for supervisor in made.made:
        await supervisor.stop(0.1)
    assert orphans.marked(made.state_dir.marker()) == []
    made.state_dir.close()


async def test_starts_is_ready_and_stops(stage: Stage) -> None:
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert supervisor.pid is not None
    left = stage.state_dir.read_pid_file("one")
    assert left.keeper == orphans.record(supervisor.keeper_pid or 0)
    assert left.engine == orphans.record(supervisor.pid)
    assert left.epoch == supervisor.epoch
    pid = supervisor.pid
    await supervisor.stop(5)
    assert orphans.start_ticks(pid) is None
    assert stage.told.events == ["started", "ready", "ending", "exited: killed by SIGTERM"]
    assert supervisor.state.value == "stopped"


async def test_kill_9_of_the_engine_starts_it_again_in_a_new_epoch(stage: Stage) -> None:
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: stage.told.events.count("ready") == 2, "it is ready again")
    assert supervisor.pid != first
    assert supervisor.restarts == 1
    assert supervisor.last_error == "killed by SIGKILL"
    assert stage.told.epochs == sorted(set(stage.told.epochs))
    assert stage.told.events[2:] == ["exited: killed by SIGKILL", "started", "ready"]


async def test_kill_9_of_the_keeper_leaves_nothing_behind(stage: Stage) -> None:
    stage.script = LEAVES_A_CHILD
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY and stage.file.read_text(), "it is ready")
    child, keeper, engine = int(stage.file.read_text()), supervisor.keeper_pid, supervisor.pid
    assert keeper is not None
    assert engine is not None
    os.kill(keeper, signal.SIGKILL)
    await until(lambda: stage.told.events.count("started") == 2, "it is started again")
    assert orphans.start_ticks(engine) is None
    assert orphans.start_ticks(child) is None
    assert supervisor.last_error.startswith("its keeper was killed by SIGKILL")


async def test_a_crash_loop_spends_the_budget_and_says_why(stage: Stage) -> None:
    stage.script = CRASHES
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.FAILED, "the budget is spent")
    assert supervisor.restarts == QUICK.budget
    assert stage.told.events.count("started") == QUICK.budget + 1
    assert supervisor.last_error == "exited with status 3: E init: failed to open GGUF file"
    stage.script = RUNS
    await supervisor.restart(1)  # an operator acts
    await until(lambda: supervisor.state is State.READY, "it is ready")


async def test_an_operator_restarts_a_running_engine_at_no_cost(stage: Stage) -> None:
    supervisor = stage.supervisor(RestartConfig(backoff_s=1000, backoff_max_s=1000))
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    first = supervisor.pid
    await supervisor.restart(5)
    await until(lambda: stage.told.events.count("ready") == 2, "it is ready again")
    assert supervisor.pid != first
    assert (supervisor.restarts, supervisor.last_error) == (0, "")


async def test_asking_twice_for_a_restart_is_asking_once(stage: Stage) -> None:
    """A second wish must not cut the grace of an engine that is ending already."""
    stage.script = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\nopen(sys.argv[1], 'w')\nwhile True: signal.pause()"
    )
    supervisor = stage.supervisor(timing=Timing(grace_s=1000, ask_every_s=0.01))
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    first = supervisor.pid
    assert first is not None
    asked = asyncio.ensure_future(supervisor.restart(1000))
    await until(lambda: supervisor.state is State.ENDING, "it was asked to end")
    await supervisor.restart(1000)
    os.kill(first, signal.SIGUSR1)
    await asked
    await until(lambda: stage.told.events.count("ready") == 2, "it is ready again")
    assert stage.told.events == ["started", "ready", "ending", "exited: exited with status 0", "started", "ready"]


async def test_the_wait_before_a_restart_doubles(stage: Stage) -> None:
    """With a first wait of 1000 s it stays where it is, until somebody acts; stopping does not wait either."""
    stage.script = CRASHES
    supervisor = stage.supervisor(RestartConfig(backoff_s=1000, backoff_max_s=1000))
    supervisor.start()
    await until(lambda: supervisor.state is State.BACKOFF, "it waits")
    assert stage.told.events.count("started") == 1
    await supervisor.stop(1)


async def test_an_engine_that_is_not_ready_in_time_is_started_again(stage: Stage) -> None:
    stage.script = "import signal; signal.pause()"
    supervisor = stage.supervisor(timing=Timing(start_timeout_s=0.3, grace_s=1, ask_every_s=0.01))
    supervisor.start()
    await until(lambda: stage.told.events.count("started") >= 2, "it is started again")
    assert "ready" not in stage.told.events


async def test_what_cannot_be_launched_is_tried_again(stage: Stage) -> None:
    problems = ["no such GPU"]

    def prepare() -> LaunchSpec:
        if problems:
            raise LaunchError(problems.pop())
        return stage.prepare()

    supervisor = stage.supervisor(prepare=prepare)
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert supervisor.last_error == "no such GPU"
    assert stage.told.events == ["exited: no such GPU", "started", "ready"]


async def test_leftovers_that_do_not_end_are_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, problems = orphans.sweep, [TimeoutError("processes [7] of an earlier run do not end")]

    def stuck(*arguments: object, **options: object) -> list[int]:
        if problems:
            raise problems.pop()
        return sweep(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(orphans, "sweep", stuck)
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert stage.told.events == ["exited: processes [7] of an earlier run do not end", "started", "ready"]


async def test_every_failed_life_is_told_once(stage: Stage) -> None:
    stage.script = CRASHES
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.FAILED, "the budget is spent")
    lives = QUICK.budget + 1
    assert stage.told.events == ["started", "exited: exited with status 3: E init: failed to open GGUF file"] * lives


async def test_an_engine_lives_although_its_pid_cannot_be_noted(stage: Stage) -> None:
    """A disk that is full: here the pid file's place is taken."""
    (stage.state_dir.path / "run" / "one.pid.new").mkdir()
    supervisor = stage.supervisor()
    with capture_logs() as lines:
        supervisor.start()
        await until(lambda: supervisor.state is State.READY, "it is ready")
    assert stage.told.events == ["started", "ready"]
    assert "pids not noted" in [line["event"] for line in lines]


async def test_an_observer_that_fails_costs_no_engine(stage: Stage) -> None:
    stage.told = Forgetful()
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: stage.told.events.count("ready") == 2, "it is ready again")
    await supervisor.stop(5)
    assert stage.told.events[-1] == "exited: killed by SIGTERM"


async def test_a_readiness_that_cannot_be_asked_costs_no_engine(stage: Stage) -> None:
    problems = [RuntimeError("nobody thought of this")]

    async def is_ready(spec: LaunchSpec) -> bool:
        if problems:
            raise problems.pop()
        return await stage.is_ready(spec)

    supervisor = stage.supervisor(is_ready=is_ready)
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert stage.told.events == ["started", "ready"]


async def test_no_surprise_ends_the_supervision(stage: Stage) -> None:
    surprises = [RuntimeError("nobody thought of this")]

    def prepare() -> LaunchSpec:
        if surprises:
            raise surprises.pop()
        return stage.prepare()

    supervisor = stage.supervisor(prepare=prepare)
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert supervisor.last_error == "RuntimeError('nobody thought of this')"


async def test_a_program_that_is_not_there(stage: Stage) -> None:
    def prepare() -> LaunchSpec:
        return msgspec.structs.replace(stage.prepare(), argv=("/no/such/engine",))

    supervisor = stage.supervisor(prepare=prepare)
    supervisor.start()
    await until(lambda: supervisor.state is State.FAILED, "the budget is spent")
    assert supervisor.last_error.startswith("exited with status 127")


async def test_stopping_while_it_starts(stage: Stage) -> None:
    stage.script = "import signal; signal.pause()"
    supervisor = stage.supervisor()
    supervisor.start()
    await supervisor.stop(1)
    assert "ready" not in stage.told.events
    assert orphans.marked(stage.state_dir.marker()) == []


async def test_sigkill_after_the_grace(stage: Stage) -> None:
    stage.script = STUBBORN
    supervisor = stage.supervisor(timing=Timing(grace_s=1000, ask_every_s=0.01))
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    await supervisor.stop(0.1)
    assert stage.told.events[-1] == "exited: killed by SIGKILL"


async def test_leftovers_of_an_earlier_run_are_ended_first(stage: Stage) -> None:
    env = {**os.environ, orphans.MARKER: stage.state_dir.marker("one")}
    marked = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env=env)
    recorded = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    stage.state_dir.write_pid_file("one", PidFile(engine=orphans.record(recorded.pid), epoch=5 * 10**9))
    supervisor = stage.supervisor()
    supervisor.start()
    await until(lambda: supervisor.state is State.READY, "it is ready")
    assert marked.wait(10) == -signal.SIGTERM
    assert recorded.wait(10) == -signal.SIGTERM
    assert supervisor.epoch == 5 * 10**9 + 1  # grows, whatever the clock says
