"""Owns the discovery of NVIDIA GPUs through NVML. Knows nothing of engines; never raises, never imports a driver."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import structlog

from scheduler.domain import Gpu

log = structlog.get_logger("slotgate.gpus")


class Discovery(msgspec.Struct, frozen=True):
    """What NVML found, or why it found nothing."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """For the person who expected GPUs; empty where NVML answered."""


def _nvml() -> Any:
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


def memory_bytes(nvml: Any, handle: Any) -> int:
    """Memory that programs can use. The first version of the call counts the driver's reserve in, see gpu notes.

    Raises:
        NVMLError: neither version of the call works.
    """
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):  # older driver, or older binding
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return int(info.total - info.reserved)


def discover(nvml: Any = None) -> Discovery:
    """Ask NVML for all GPUs, in PCI order. Blocks for up to seconds on a cold driver: see `discover_async`.

    Args:
        nvml: a module with pynvml's names; default: pynvml itself.
    """
    try:
        nvml = nvml or _nvml()
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
                    found.append(Gpu(uuid=uuid, index=index, name=name, memory_bytes=memory_bytes(nvml, handle)))
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
