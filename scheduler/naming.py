"""Which slots of a backend must not be named now, beside those that are busy. Knows nothing of what slots hold."""

from collections.abc import Collection

from scheduler.leases import Lease


class Naming:
    """Slots that claims on their way name, and leases at engines that chose the slot themselves."""

    def __init__(self) -> None:
        self.reserved: dict[str, dict[str, int]] = {}
        """Slots that are named by claims on their way, or were refused just now, by backend and nonce."""
        self.unnamed: dict[str, set[str]] = {}
        """Nonces of leases at engines that chose the slot themselves, so that nobody knows it, by backend."""

    def reserve(self, lease: Lease, slot: int) -> None:
        """A claim names a slot: it is nobody else's from now on."""
        self.reserved.setdefault(lease.backend_id, {})[lease.nonce] = slot

    def unreserve(self, backend_id: str, nonce: str) -> None:
        """The claim was answered."""
        reserved = self.reserved.get(backend_id, {})
        if reserved.pop(nonce, None) is not None and not reserved:
            del self.reserved[backend_id]

    def refuse(self, backend_id: str, slot: int) -> str:
        """The store says that a slot is taken, by whom is to be heard; returns what it is reserved by until then."""
        nonce = f"refused {slot}"
        self.reserved.setdefault(backend_id, {})[nonce] = slot
        return nonce

    def slots_reserved(self, backend_id: str) -> Collection[int]:
        """Slots that are not for us to name although nothing runs there."""
        reserved = self.reserved.get(backend_id)
        return reserved.values() if reserved else ()

    def engine_chose(self, backend_id: str, nonce: str) -> None:
        """A request runs there, and nobody knows on which slot."""
        self.unnamed.setdefault(backend_id, set()).add(nonce)

    def engine_chooses(self, backend_id: str) -> bool:
        """Whether such a request runs there."""
        return backend_id in self.unnamed

    def gone(self, backend_id: str, nonce: str) -> None:
        """A lease is no more."""
        unnamed = self.unnamed.get(backend_id, set())
        unnamed.discard(nonce)
        if not unnamed:
            self.unnamed.pop(backend_id, None)

    def void(self, backend_id: str) -> None:
        """Another engine runs there, or none."""
        self.reserved.pop(backend_id, None)
        self.unnamed.pop(backend_id, None)
