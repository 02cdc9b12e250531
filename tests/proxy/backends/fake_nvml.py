"""A stand-in for pynvml with the parts that discovery uses, failing as the real one fails."""

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As in pynvml: the base of all."""


class NVMLErrorLibraryNotFound(NVMLError):
    """No driver on this machine."""

    def __str__(self) -> str:
        return "NVML Shared Library Not Found"


class NVMLErrorFunctionNotFound(NVMLError):
    """The driver is older than the call."""

    def __str__(self) -> str:
        return "Function Not Found"


class NVMLErrorGpuIsLost(NVMLError):
    """A card fell off the bus."""

    def __str__(self) -> str:
        return "GPU is lost"


class FakeNvml:
    """Some cards of 24 GiB, of which the driver keeps 512 MiB. `uuids` may hold None for a card that is lost."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(
        self,
        uuids: tuple[str | None, ...] = ("GPU-aaaa", "GPU-bbbb"),
        *,
        driver: bool = True,
        memory_v2: bool = True,
        old_binding: bool = False,
    ) -> None:
        self.uuids = uuids
        self.driver = driver
        self.memory_v2 = memory_v2
        self.old_binding = old_binding
        self.open_sessions = 0

    def _needs_session(self) -> None:
        if not self.open_sessions:
            raise NVMLError("Uninitialized")

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLErrorLibraryNotFound
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self._needs_session()
        self.open_sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._needs_session()
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._needs_session()
        if self.uuids[index] is None:
            raise NVMLErrorGpuIsLost
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        self._needs_session()
        uuid = self.uuids[handle]
        assert uuid is not None
        return uuid.encode() if self.old_binding else uuid

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        self._needs_session()
        assert handle < len(self.uuids)
        name = "NVIDIA GeForce RTX 4090"
        return name.encode() if self.old_binding else name

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        self._needs_session()
        assert handle < len(self.uuids)
        total, reserved = 24 * 2**30, 512 * 2**20
        if version is None:
            return SimpleNamespace(total=total, used=reserved, free=total - reserved)
        if self.old_binding:
            raise TypeError("nvmlDeviceGetMemoryInfo() got an unexpected keyword argument 'version'")
        if not self.memory_v2:
            raise NVMLErrorFunctionNotFound
        return SimpleNamespace(total=total, reserved=reserved, used=0, free=total - reserved)
