"""A stand-in for pynvml with the parts that slotgate uses, failing as the real one fails."""

from collections.abc import Mapping, Sequence
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


class NVMLErrorNotFound(NVMLError):
    """No card has this UUID."""

    def __str__(self) -> str:
        return "Not Found"


class NVMLErrorNotSupported(NVMLError):
    """The card, or the mode that it is in, has no such thing."""

    def __str__(self) -> str:
        return "Not Supported"


TOTAL = 24 * 2**30
RESERVED = 512 * 2**20


class FakeNvml:
    """Some cards of 24 GiB, of which the driver keeps 512 MiB. `uuids` may hold None for a card that is lost.

    `processes` are pairs of process id and bytes by UUID; bytes None: the driver does not tell. What they hold is used.
    `process_calls` are the versions of the call for them that the driver has; none: the card does not support it.
    All of it may be changed while it is in use.
    """

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(
        self,
        uuids: tuple[str | None, ...] = ("GPU-aaaa", "GPU-bbbb"),
        *,
        driver: bool = True,
        memory_v2: bool = True,
        old_binding: bool = False,
        processes: Mapping[str, Sequence[tuple[int, int | None]]] | None = None,
        process_calls: Sequence[int] = (3, 2),
    ) -> None:
        self.uuids = uuids
        self.driver = driver
        self.memory_v2 = memory_v2
        self.old_binding = old_binding
        self.processes = dict(processes or {})
        self.process_calls = tuple(process_calls)
        self.other_bytes: dict[str, int] = {}
        """By UUID: used by processes that the driver does not list."""
        self.open_sessions = 0
        self.inits = 0

    def _needs_session(self) -> None:
        if not self.open_sessions:
            raise NVMLError("Uninitialized")

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLErrorLibraryNotFound
        self.open_sessions += 1
        self.inits += 1

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

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> int:
        """pynvml takes bytes in every version, text only in newer ones."""
        self._needs_session()
        assert isinstance(uuid, bytes)
        if uuid.decode() not in self.uuids:
            raise NVMLErrorNotFound
        return self.uuids.index(uuid.decode())

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
        uuid = self._uuid(handle)
        used = sum(size or 0 for _, size in self.processes.get(uuid, ())) + self.other_bytes.get(uuid, 0)
        free = TOTAL - RESERVED - used
        if version is None:
            return SimpleNamespace(total=TOTAL, used=RESERVED + used, free=free)
        if self.old_binding:
            raise TypeError("nvmlDeviceGetMemoryInfo() got an unexpected keyword argument 'version'")
        if not self.memory_v2:
            raise NVMLErrorFunctionNotFound
        return SimpleNamespace(total=TOTAL, reserved=RESERVED, used=used, free=free)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: int) -> list[Any]:
        return self._running(handle, 3)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: int) -> list[Any]:
        return self._running(handle, 2)

    def _running(self, handle: int, version: int) -> list[Any]:
        self._needs_session()
        uuid = self._uuid(handle)
        if not self.process_calls:
            raise NVMLErrorNotSupported
        if version not in self.process_calls:
            raise NVMLErrorFunctionNotFound
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.get(uuid, ())]

    def _uuid(self, handle: int) -> str:
        uuid = self.uuids[handle]
        if uuid is None:
            raise NVMLErrorGpuIsLost
        return uuid
