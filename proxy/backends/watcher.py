"""Owns looking at one engine as long as it lives, and telling the scheduler what was seen. Decides nothing.

A look is asked for by the clock, or by the scheduler (`look`), but never sooner than `spacing_s` after the last one:
see `probes.llama_server` for what more looks would break.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from proxy.backends.control import ProbeError
from proxy.backends.probes import CHILD_SPACING_S, Description, Look, Probe
from proxy.backends.verify import make_backend, mismatches
from proxy.config import BackendConfig
from scheduler.domain import Backend, Engine, Gpu, Report
from scheduler.events import BackendChanged, BackendReported, BackendSignalled, Event
from scheduler.health import Signal

log = structlog.get_logger("slotgate.watcher")

_DETECT_AGAIN_AFTER = 3
"""Looks missed in a row after which an engine that was detected is detected again: it may be another one now."""
_HUNG_AFTER = 2
"""Looks that must fail in a row before an engine counts as hung: one alone fails too where slotgate itself was stopped
for a while, or its machine was."""


class Cadence(msgspec.Struct, frozen=True):
    """When engines are looked at, in seconds."""

    busy_s: float = 2.0
    """Pause between looks at an engine that works, or that missed the last look."""
    idle_s: float = 5.0
    """The same for an idle one."""
    spacing_s: float = 2.0
    """Least pause, whoever asks."""
    stall_s: float = 60.0
    """An engine that says it works and makes no progress for this long counts as not answering."""
    hung_after_s: float = 30.0
    """A managed engine without a good answer for this long hangs: its process is ended and started again."""
    timeout_s: float = 5.0
    """Longest wait for an answer of llama-server."""
    slow_timeout_s: float = 15.0
    """The same for Ollama, whose /api/ps waits for its loads."""
    describe_s: float = 10.0
    """Pause between two readings of Ollama's list of models."""
    child_spacing_s: float = CHILD_SPACING_S
    """Least pause between looks at an Ollama whose llama-servers are asked."""


class Subject(msgspec.Struct, frozen=True):
    """Which backend a watcher looks at."""

    name: str
    config: BackendConfig
    epoch: int
    gpu: Gpu | None = None


class Watcher:
    """Looks at one engine. A managed one gets a new watcher with each process."""

    def __init__(
        self,
        subject: Subject,
        open_probe: Callable[[], Awaitable[Probe]],
        emit: Callable[[Event], None],
        *,
        cadence: Cadence,
        clock: Callable[[], float] = time.monotonic,
        known: Backend | None = None,
        on_hung: Callable[[str], None] | None = None,
    ) -> None:
        """`open_probe` finds out which engine it is, if need be; `known` is what the scheduler was told already.

        `on_hung` is called in the event loop, with the reason, after each look that finds the engine hung. None: nobody
        could do anything about it.
        """
        self._subject = subject
        self._open_probe = open_probe
        self._listener = emit
        self._cadence = cadence
        self._clock = clock
        self._probe: Probe | None = None
        self._woken = asyncio.Event()
        self._wanted_at_s = math.inf
        self._looked_at_s = -math.inf
        self._described_at_s = -math.inf
        self._progress: tuple[str, float] = ("", -math.inf)
        self._still_s = 0.0
        """For how long it stood still at the last look; 0 where that look got no answer."""
        self._on_hung = on_hung
        self._missed = 0
        self._good_at_s = clock()
        self._started = ""
        self._identity = ""
        self.epoch = subject.epoch
        self.backend = known
        self.description: Description | None = None
        self.warnings: tuple[str, ...] = ()
        self.last_look: Look | None = None
        self.last_error = ""
        self.answered = False

    @property
    def engine(self) -> Engine | None:
        """What it is, once known."""
        return self._probe.engine if self._probe else None

    @property
    def looked_at_s(self) -> float:
        """When the last look ended."""
        return self._looked_at_s

    def look(self, at_s: float) -> None:
        """Look at the given time, or as soon after it as the spacing allows. Several wishes make one look."""
        self._wanted_at_s = min(self._wanted_at_s, at_s)
        self._woken.set()

    async def list_models(self) -> None:
        """Describe it again now, beside what else goes on: models came or went. Nothing where it does not answer."""
        if self._probe is not None and self.description is not None:
            await self._describe_again(self._probe, at_once=True)

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await self._once()
                await self._pause()
                await asyncio.sleep(0)  # whatever the clock and the cadence say, others get their turn
        finally:
            await self._close_probe()

    async def _close_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is None:
            return
        try:
            await probe.close()
        except Exception as error:
            log.error("probe not closed", backend=self._subject.name, exc_info=error)

    def _emit(self, event: Event) -> None:
        """Tell the listener. That it fails is its trouble: the engine is looked at all the same."""
        try:
            self._listener(event)
        except Exception as error:
            log.error("fact not taken in", backend=self._subject.name, fact=type(event).__name__, exc_info=error)

    async def _once(self) -> None:
        self._wanted_at_s = math.inf
        asked_at_s = self._clock()
        try:
            if self._probe is None:
                self._probe = await self._open_probe()
            if self.description is None:
                await self._describe(self._probe)
            look = await self._probe.look()
            if await self._is_another(self._probe, look):
                look = await self._probe.look()
            self._tell(look, asked_at_s)
        except ProbeError as error:
            await self._miss(str(error))
            if error.loading:  # it is not ready, but says so
                self._good_at_s = self._clock()
        except Exception as error:  # an odd answer must not end the watching for good
            log.error("look failed", backend=self._subject.name, exc_info=error)
            await self._miss(f"its answers make no sense: {error!r}")
        else:
            await self._describe_again(self._probe, at_once=look.outdated)
        finally:
            self._looked_at_s = self._clock()
        self._judge()

    def _judge(self) -> None:
        """Whether it hangs: a process that neither works nor ends."""
        without_s = self._clock() - self._good_at_s
        if self._on_hung is None or self._missed < _HUNG_AFTER or without_s < self._cadence.hung_after_s:
            return
        reason = f"no progress for {self._still_s:.0f} s" if self._still_s else f"no answer for {without_s:.0f} s"
        try:
            self._on_hung(reason)
        except Exception as error:
            log.error("hanging not told", backend=self._subject.name, exc_info=error)

    async def _describe(self, probe: Probe, *, restarted: bool = False) -> None:
        description = await probe.describe()
        if restarted:
            self.epoch = max(self.epoch + 1, description.epoch_hint)
            log.warning("engine was restarted", backend=self._subject.name, epoch=self.epoch)
        elif not self.epoch:
            self.epoch = description.epoch_hint
        self.description = description
        self._described_at_s = self._clock()
        self.warnings = mismatches(self._subject.config, description)
        self._announce(probe.engine)

    def _announce(self, engine: Engine) -> None:
        before, subject = self.backend, self._subject
        backend = make_backend(
            subject.name, subject.config, engine, self.epoch, description=self.description, gpu=subject.gpu
        )
        if backend == before:
            return
        self.backend = backend
        self._emit(BackendChanged(backend))
        if before is None or before.epoch != backend.epoch:
            self._emit(BackendSignalled(subject.name, Signal.STARTED))
        log.info("backend facts", backend=subject.name, slots=backend.slots, models=sorted(backend.models))

    async def _describe_again(self, probe: Probe, *, at_once: bool = False) -> None:
        if at_once or self._clock() - self._described_at_s >= probe.describe_every_s:
            try:
                await self._describe(probe)
            except ProbeError:
                pass  # it just answered a look: busy, not dead
            except Exception as error:
                log.error("description not understood", backend=self._subject.name, exc_info=error)

    async def _is_another(self, probe: Probe, look: Look) -> bool:
        """Whether this is not the process, or not the configuration, that was described; then it is described again."""
        restarted = bool(self._started and look.started and look.started != self._started)
        changed = bool(self._identity and look.identity != self._identity)
        if restarted or changed:
            await self._describe(probe, restarted=restarted)
        self._started, self._identity = look.started or self._started, look.identity
        return restarted or changed

    async def _miss(self, reason: str) -> None:
        self._missed += 1
        if self.last_error != reason:
            log.warning("backend does not answer", backend=self._subject.name, reason=reason)
        self.last_error, self.answered, self._still_s = reason, False, 0.0
        if self.backend is not None:
            self._emit(BackendSignalled(self._subject.name, Signal.MISSED))
        if self._missed % _DETECT_AGAIN_AFTER == 0 and self._subject.config.url is not None:
            self.description = None
            await self._close_probe()

    def _tell(self, look: Look, asked_at_s: float) -> None:
        name = self._subject.name
        if not look.alive_only:
            self.last_look = look
            report = Report(
                backend_id=name,
                epoch=self.epoch,
                asked_at_s=asked_at_s,
                busy_slots=look.busy_slots,
                deferred=look.deferred,
                slots=look.slots,
                residencies=look.residencies,
            )
            self._emit(BackendReported(report))
        still_s = self._standing_still_s(look)
        if still_s >= self._cadence.stall_s:
            self._missed, self._still_s = self._missed + 1, still_s
            self.last_error, self.answered = f"says that it works but made no progress for {still_s:.0f} s", False
            log.warning("engine stands still", backend=name, for_s=round(still_s))
            self._emit(BackendSignalled(name, Signal.MISSED))
            return
        if not self.answered:
            log.debug("backend answers", backend=name)
        self._missed, self.last_error, self.answered = 0, "", True
        self._good_at_s = self._clock()
        self._emit(BackendSignalled(name, Signal.ANSWERED))

    def _standing_still_s(self, look: Look) -> float:
        now_s = self._clock()
        if not look.working or not look.progress or look.progress != self._progress[0]:
            self._progress = (look.progress, now_s)
        return now_s - self._progress[1]

    async def _pause(self) -> None:
        busy = not self.answered or (self.last_look is not None and self.last_look.working)
        regular_s = self._looked_at_s + (self._cadence.busy_s if busy else self._cadence.idle_s)
        spacing_s = max(self._cadence.spacing_s, self._probe.spacing_s if self._probe else 0.0)
        soonest_s = self._looked_at_s + spacing_s
        while True:
            self._woken.clear()
            wait_s = max(soonest_s, min(regular_s, self._wanted_at_s)) - self._clock()
            if wait_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
