"""Owns the life of one managed engine's process: start, readiness, restart, end. What the engine is asked once it is
ready is `watcher`'s business; where requests go is nobody's here.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from proxy.backends import logtail, orphans
from proxy.backends.launch import LaunchError, LaunchSpec, keeper_command
from proxy.backends.statedir import PidFile, StateDir, StateDirError
from proxy.config import RestartConfig
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.supervisor")

LOG_BYTES = 8 * 2**20
"""A backend's log is renamed at this size; two such files are kept."""
_HUNG_GRACE_S = 3.0
"""From SIGTERM to SIGKILL for an engine that hangs: it has had its time, and a stopped one does not even notice."""
_LAST_RESORT_S = 10.0
"""After an engine was killed, its keeper has this long to report before it is killed too."""


class State(StrEnum):
    """Where a managed process is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    BACKOFF = "backoff"  # ended; it is started again soon
    FAILED = "failed"  # its restart budget is spent; an operator must act


class ProcessObserver(Protocol):
    """Who is told. Called in the event loop; must not block."""

    def started(self, spec: LaunchSpec, epoch: int) -> None:
        """A process was started; it is not ready yet."""

    def ready(self, spec: LaunchSpec, epoch: int) -> None:
        """The engine says itself that it is ready."""

    def ending(self) -> None:
        """It was asked to end; connections to it should be closed now, or it may wait for them for ever."""

    def exited(self, reason: str) -> None:
        """A life is over: the process and all that it started are gone, or it never came to one."""


class Timing(msgspec.Struct, frozen=True):
    """How patient a supervisor is, in seconds."""

    start_timeout_s: float = 600.0
    grace_s: float = 10.0
    """From SIGTERM to SIGKILL when nobody says otherwise."""
    ask_every_s: float = 0.05
    """First pause between two looks for readiness; grows to ten times as much."""


class Supervisor:
    """Keeps one engine running. `prepare` makes the launch anew for each start: keys and ports may change."""

    def __init__(
        self,
        name: str,
        observer: ProcessObserver,
        state_dir: StateDir,
        prepare: Callable[[], LaunchSpec],
        is_ready: Callable[[LaunchSpec], Awaitable[bool]],
        *,
        restart: RestartConfig,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        log_bytes: int = LOG_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.state = State.STOPPED
        self.restarts = 0
        self.epoch = 0
        self.last_error = ""
        self.pid: int | None = None
        self.keeper_pid: int | None = None
        self.spec: LaunchSpec | None = None
        self._observer = observer
        self._state_dir = state_dir
        self._prepare = prepare
        self._is_ready = is_ready
        self._restart = restart
        self._timing = timing
        self._log_bytes = log_bytes
        self._clock = clock
        self._tasks = Tasks()
        self._run_task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._recent: deque[float] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._asked_to_end = False
        self._hung = ""

    def start(self) -> None:
        """Begin; returns at once, the rest is told to `ProcessObserver`."""
        self._stop.clear()
        self._run_task = self._tasks.start(self._run(), f"supervisor {self.name}")

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, connections closed, after the grace SIGKILL; returns when nothing is left of the engine."""
        self._stop.set()
        self._wake.set()
        await self._end(grace_s)
        if self._run_task is not None:
            await self._run_task
        await self._tasks.close()
        self.state = State.STOPPED

    async def restart(self, grace_s: float) -> None:
        """End the process if it runs and start it again with a fresh restart budget: what an operator asks for.

        Returns when the process is gone. Asked again meanwhile: nothing more happens, its grace above all is not cut.
        """
        self._recent.clear()
        if self._asked_to_end:
            return
        self._asked_to_end = self._process is not None
        self._wake.set()
        await self._end(grace_s)

    def end_hung(self, reason: str) -> None:
        """End the engine because it hangs; returns at once. It comes back as one that died, within its budget."""
        if self.state is not State.READY or self._hung:
            return
        self._hung = reason
        log.error("engine hangs", backend=self.name, reason=reason, pid=self.pid)
        self._tasks.start(self._end(min(_HUNG_GRACE_S, self._timing.grace_s)), f"end of hung {self.name}")

    async def _run(self) -> None:
        while not self._stop.is_set():
            reason = await self._live_to_the_end()
            self._is_over(reason)
            if self._stop.is_set():
                break
            if self._asked_to_end:
                self._asked_to_end = False
                continue
            self.last_error = reason
            await self._back_off(reason)
        self.state = State.STOPPED

    async def _live_to_the_end(self) -> str:
        """One life; whatever goes wrong in it, it ends here, and the engine comes back in the next."""
        try:
            return await self._live()
        except (LaunchError, StateDirError, TimeoutError, OSError) as error:
            reason = str(error) or repr(error)
        except Exception as error:
            log.error("supervising failed", backend=self.name, exc_info=error)
            reason = repr(error)
        await self._end(self._timing.grace_s)
        return reason

    def _is_over(self, reason: str) -> None:
        self._process = None
        self.pid = self.keeper_pid = None
        self._tell(lambda observer: observer.exited(reason))

    def _tell(self, fact: Callable[[ProcessObserver], None]) -> None:
        """Tell the observer. That it fails is its trouble, not the engine's."""
        try:
            fact(self._observer)
        except Exception as error:
            log.error("observer failed", backend=self.name, exc_info=error)

    async def _live(self) -> str:
        """One life of the process; returns why it ended."""
        self.state, self._hung = State.STARTING, ""
        spec, log_start = await asyncio.to_thread(self._ground)
        if self._stop.is_set():
            return "stopped before it was started"
        process = await self._spawn(spec)
        self._tell(lambda observer: observer.started(spec, self.epoch))
        exited = self._tasks.start(process.wait(), f"exit of {self.name}")
        await self._watch_over(spec, exited)
        status = await exited
        self._process = None
        if status < 0:  # the keeper was killed: what it kept may still run
            await asyncio.to_thread(orphans.sweep, spec.marker)
        reason = self._hung or await asyncio.to_thread(_why, status, spec.log_path, log_start)
        log.info("engine ended", backend=self.name, reason=reason, asked=self._stop.is_set() or self._asked_to_end)
        return reason

    def _ground(self) -> tuple[LaunchSpec, int]:
        """Before each start, in a thread: nobody of an earlier life is left, and the launch is made."""
        left = self._state_dir.read_pid_file(self.name)
        recorded = [process for process in (left.keeper, left.engine) if process is not None]
        if ended := orphans.sweep(self._state_dir.marker(self.name), recorded):
            log.warning("ended leftovers of an earlier run", backend=self.name, pids=ended)
        self.epoch = max(self.epoch, left.epoch) + 1
        # grows with wall time, so that it does so even if the state directory is lost
        self.epoch = max(self.epoch, int(time.time()))
        spec = self._prepare()
        return spec, logtail.size(spec.log_path)

    async def _spawn(self, spec: LaunchSpec) -> asyncio.subprocess.Process:
        log.info("starting engine", backend=self.name, gpu=spec.gpu.uuid if spec.gpu else None, log=str(spec.log_path))
        log.debug("command line", backend=self.name, argv=list(spec.argv))
        process = await asyncio.create_subprocess_exec(
            *keeper_command(spec, grace_s=self._timing.grace_s, log_bytes=self._log_bytes, parent=os.getpid()),
            env=spec.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process, self.spec, self.keeper_pid = process, spec, process.pid
        assert process.stdout is not None  # noqa: S101 - we asked for the pipe
        with contextlib.suppress(ValueError):  # a killed keeper says nothing; its exit status tells
            fact = msgspec.json.decode(await process.stdout.readline(), type=dict[str, int | str])
            self.pid = int(fact["started"]) if "started" in fact else None
        await asyncio.to_thread(self._note_pids)
        return process

    def _note_pids(self) -> None:
        """For a later run, should this one be killed. It has the environment's marker to go by, too."""
        keeper, engine = (orphans.record(pid) if pid else None for pid in (self.keeper_pid, self.pid))
        try:
            self._state_dir.write_pid_file(self.name, PidFile(keeper, engine, self.epoch))
        except OSError as error:  # a full disk is no reason to end an engine
            log.warning("pids not noted", backend=self.name, error=str(error))

    async def _watch_over(self, spec: LaunchSpec, exited: asyncio.Task[int]) -> None:
        if self._stop.is_set():  # asked to stop while it was being started
            await self._end(self._timing.grace_s)
            return
        ready = self._tasks.start(self._await_ready(spec), f"readiness of {self.name}")
        timeout_s = self._timing.start_timeout_s
        await asyncio.wait({exited, ready}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            ready.cancel()
        elif ready.done() and ready.exception() is None:
            if self.state is State.STARTING:
                self.state = State.READY
                log.info("engine ready", backend=self.name, pid=self.pid)
                self._tell(lambda observer: observer.ready(spec, self.epoch))
        else:
            ready.cancel()
            log.warning("engine not ready in time", backend=self.name, start_timeout_s=timeout_s)
            await self._end(self._timing.grace_s)

    async def _await_ready(self, spec: LaunchSpec) -> None:
        pause_s = self._timing.ask_every_s
        while not await self._ask_whether_ready(spec):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.3, self._timing.ask_every_s * 10)

    async def _ask_whether_ready(self, spec: LaunchSpec) -> bool:
        try:
            return await self._is_ready(spec)
        except Exception as error:  # it has its time to start in any case
            log.error("readiness not told", backend=self.name, exc_info=error)
            return False

    async def _end(self, grace_s: float) -> None:
        """End the running process, if there is one, and wait until it is gone."""
        process = self._process
        if process is None:
            return
        self.state = State.ENDING
        for step, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGTERM, _LAST_RESORT_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(step)  # the keeper takes a second SIGTERM as "at once"
            self._tell(lambda observer: observer.ending())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await process.wait()
                return

    async def _back_off(self, reason: str) -> None:
        now_s = self._clock()
        while self._recent and self._recent[0] <= now_s - self._restart.budget_window_s:
            self._recent.popleft()
        self._wake.clear()
        if len(self._recent) >= self._restart.budget:
            self.state = State.FAILED
            log.error("restart budget spent", backend=self.name, reason=reason, restarts=len(self._recent))
            await self._wake.wait()
            return
        pause_s = min(self._restart.backoff_max_s, self._restart.backoff_s * 2.0 ** len(self._recent))
        self._recent.append(now_s)
        self.restarts += 1
        self.state = State.BACKOFF
        log.warning("engine is started again soon", backend=self.name, reason=reason, pause_s=pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()


def _why(status: int, log_path: Path, log_start: int) -> str:
    """How it ended, and what it said about that. Reads its log: call it in a thread."""
    said = logtail.cause(log_path, log_start)
    if not said and 0 < status <= 128:
        said = logtail.last(log_path, log_start)
    return f"{_describe_end(status)}: {said}" if said else _describe_end(status)


def _describe_end(status: int) -> str:
    """Words for a keeper's exit status: negative if the keeper itself was killed, above 128 if the engine was."""
    if status < 0:
        return f"its keeper was killed by {_signal_name(-status)}"
    if status > 128:
        return f"killed by {_signal_name(status - 128)}"
    return f"exited with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
