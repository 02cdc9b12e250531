"""Owns what NVML is asked of NVIDIA GPUs: which there are, their memory, who holds it. Knows nothing of engines."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import structlog

from scheduler.domain import Gpu

log = structlog.get_logger("slotgate.gpus")


class Discovery(msgspec.Struct, frozen=True):
    """What NVML found, or why it found nothing."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """For the person who expected GPUs; empty where NVML answered."""


class CardMemory(NamedTuple):
    """One card's memory, in bytes."""

    total_bytes: int
    """What programs can use."""
    free_bytes: int


class ProcessMemory(NamedTuple):
    """What one process holds on a card."""

    pid: int
    """In the driver's name space: in a container it may be the host's."""
    used_bytes: int | None
    """None: the driver does not tell."""


def binding() -> Any:
    """The module that speaks to NVML; it loads no driver yet.

    Raises:
        ImportError: nvidia-ml-py is not installed.
    """
    import pynvml

    return pynvml


def _text(value: str | bytes) -> str:
    """NVML strings: bytes in older bindings."""
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def _session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def card_memory(nvml: Any, handle: Any) -> CardMemory:
    """Memory of a card. The first version of the call counts the driver's reserve in the total, see gpu notes.

    Raises:
        NVMLError: neither version of the call works.
    """
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):  # older driver, or older binding
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return CardMemory(int(info.total), int(info.free))
    return CardMemory(int(info.total - info.reserved), int(info.free))


def process_memory(nvml: Any, handle: Any) -> tuple[ProcessMemory, ...] | None:
    """Who computes on a card, and what each holds of its memory; None: the driver does not tell.

    An empty answer is no proof that nobody does: inside a container the driver may hide the processes of the host.
    """
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        try:
            found = getattr(nvml, name)(handle)
        except (nvml.NVMLError, AttributeError):  # not supported, not allowed; older driver, or older binding
            continue
        return tuple(ProcessMemory(one.pid, one.usedGpuMemory) for one in found)
    return None


def discover(nvml: Any = None) -> Discovery:
    """Ask NVML for all GPUs, in PCI order; never raises. Blocks for seconds on a cold driver: see `discover_async`.

    Args:
        nvml: a module with pynvml's names; default: pynvml itself.
    """
    try:
        nvml = nvml or binding()
    except ImportError:
        return Discovery(problem="nvidia-ml-py is not installed")
    found: list[Gpu] = []
    lost: list[str] = []
    try:
        with _session(nvml):
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
                    total_bytes = card_memory(nvml, handle).total_bytes
                    found.append(Gpu(uuid=uuid, index=index, name=name, memory_bytes=total_bytes))
                except nvml.NVMLError as error:  # one card that fell off the bus must not hide the others
                    lost.append(f"GPU {index}: {error}")
    except nvml.NVMLError as error:
        return Discovery(problem=f"NVML: {error}")
    except (OSError, AttributeError) as error:
        return Discovery(problem=f"NVML does not work here: {error}")
    if not found and not lost:
        return Discovery(problem="NVML finds no GPU")
    return Discovery(gpus=tuple(found), problem="; ".join(lost))


async def discover_async(nvml: Any = None) -> Discovery:
    """`discover` beside the event loop."""
    discovery = await asyncio.to_thread(discover, nvml)
    log.info("looked for gpus", found=len(discovery.gpus), problem=discovery.problem or None)
    return discovery
