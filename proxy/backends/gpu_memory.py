"""Owns sampling the memory of the cards that backends run on, beside the event loop. What it means is the scheduler's.

NVML's calls block, above all on a card in trouble: one thread of its own makes them all, and a call that hangs delays
samples, nothing else. NVML stays open between samples, since opening it can take seconds; it is opened anew after a
round in which no card answered.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import structlog

from proxy.backends.gpus import CardMemory, ProcessMemory, binding, card_memory, process_memory
from proxy.backends.orphans import MARKER
from proxy.tasks import Tasks
from scheduler.events import Event, GpuReported
from scheduler.memory import GpuMemory

log = structlog.get_logger("slotgate.gpu_memory")

EVERY_S = 2.0
"""Pause between two samples, in seconds: as often as engines are looked at."""
_CLOSE_S = 2.0
"""How long closing waits for a call to NVML that hangs."""


class Occupant(msgspec.Struct, frozen=True):
    """A backend that runs on a card."""

    backend_id: str
    gpu_uuid: str
    marker: str
    """Value of the environment variable `orphans.MARKER` of all its processes."""


class Card(msgspec.Struct, frozen=True):
    """What one round told of one card."""

    memory: CardMemory
    processes: tuple[ProcessMemory, ...] | None


def carries(pid: int, marker: str) -> bool:
    """Whether a process was started for the backend of this marker, by the engine's start or by the engine itself."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, gone meanwhile, or of another name space
        return False
    return f"{MARKER}={marker}".encode() in variables


def used_bytes(processes: Sequence[ProcessMemory] | None, is_own: Callable[[int], bool]) -> int | None:
    """What the processes that are a backend's own hold together.

    None where that is not known: the driver tells no processes or no sizes, or none of them is its own. The last may
    mean that it holds nothing, or that the driver counts processes in another name space.
    """
    sizes = [process.used_bytes for process in processes or () if is_own(process.pid)]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


class NvmlReader:
    """Asks NVML; every call blocks, and all must come from one thread at a time."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml` is a module with pynvml's names; default: pynvml itself."""
        self._given = nvml
        self._open: Any = None
        self._problems: dict[str, str] = {}

    def read(self, uuids: Sequence[str]) -> dict[str, Card]:
        """Ask for these cards; those that do not answer are left out, and why is logged once."""
        found: dict[str, Card] = {}
        problems: dict[str, str] = {}
        nvml = self._open or self._begin(uuids, problems)
        for uuid in uuids if nvml else ():
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                found[uuid] = Card(card_memory(nvml, handle), process_memory(nvml, handle))
            except nvml.NVMLError as error:  # one card that fell off the bus must not hide the others
                problems[uuid] = str(error)
        if not found:
            self.close()
        for uuid, problem in problems.items():
            if self._problems.get(uuid) != problem:
                log.warning("gpu memory is not known", gpu=uuid, reason=problem)
        self._problems = problems
        return found

    def close(self) -> None:
        """Close NVML if it is open; `read` opens it again."""
        nvml, self._open = self._open, None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _begin(self, uuids: Sequence[str], problems: dict[str, str]) -> Any:
        """Open NVML, or note for each card why that does not work."""
        try:
            nvml = self._given or binding()
        except ImportError:
            problems |= dict.fromkeys(uuids, "nvidia-ml-py is not installed")
            return None
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError, AttributeError) as error:
            problems |= dict.fromkeys(uuids, str(error))
            return None
        self._open = nvml
        return nvml


class GpuMemorySampler:
    """Tells the memory of each backend's card, every few seconds from `start` to `close`."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        occupants: Sequence[Occupant],
        *,
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
        carries: Callable[[int, str], bool] = carries,
    ) -> None:
        """`feed` is called in the event loop with a `GpuReported` for each occupant and sample.

        `nvml` stands in for pynvml in tests, `carries` for the look at a process's environment.
        """
        self._feed = feed
        self._occupants = tuple(occupants)
        self._clock = clock
        self._every_s = every_s
        self._carries = carries
        self._reader = NvmlReader(nvml)
        self._tasks = Tasks()
        self._thread: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin; returns at once. Without occupants nothing happens, and NVML is not touched."""
        if self._occupants and self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
            self._tasks.start(self._run(self._thread), "gpu memory")

    async def close(self) -> None:
        """End; nothing is told afterwards. Never raises."""
        await self._tasks.close()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.get_running_loop().run_in_executor(thread, self._reader.close)
        thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at_s = self._clock()
            sample: list[GpuMemory | None] = [None] * len(self._occupants)
            try:
                sample = await loop.run_in_executor(thread, self._sample, asked_at_s)
            except Exception as error:  # an odd answer must not end the sampling for good
                log.error("gpu memory not sampled", exc_info=error)
            for occupant, memory in zip(self._occupants, sample, strict=True):
                self._tell(GpuReported(occupant.backend_id, memory, asked_at_s))
            await asyncio.sleep(self._every_s)

    def _sample(self, asked_at_s: float) -> list[GpuMemory | None]:
        """One round, in the thread: what there is for each occupant."""
        cards = self._reader.read(tuple(dict.fromkeys(occupant.gpu_uuid for occupant in self._occupants)))
        return [self._seen_by(occupant, cards.get(occupant.gpu_uuid), asked_at_s) for occupant in self._occupants]

    def _seen_by(self, occupant: Occupant, card: Card | None, asked_at_s: float) -> GpuMemory | None:
        if card is None:
            return None
        used = used_bytes(card.processes, lambda pid: self._carries(pid, occupant.marker))
        return GpuMemory(card.memory.total_bytes, card.memory.free_bytes, used, asked_at_s)

    def _tell(self, event: GpuReported) -> None:
        """Tell the listener. That it fails is its trouble: the next sample is taken all the same."""
        try:
            self._feed(event)
        except Exception as error:
            log.error("fact not taken in", backend=event.backend_id, fact=type(event).__name__, exc_info=error)
