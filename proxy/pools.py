"""The connections to all backends: one pool per backend, thrown away when its engine is another one."""

from typing import Protocol

from proxy.endpoint import Endpoint
from proxy.gate_client import GateClient
from proxy.relay import AttemptError, ConnectionPool
from scheduler.domain import Failure


class Addresses(Protocol):
    """Who knows where backends are."""

    def endpoint(self, backend_id: str) -> Endpoint:
        """The backend's address; LookupError if it has none."""
        ...


class Pools:
    """Connection pools by backend."""

    def __init__(self, fleet: Addresses, gates: GateClient | None = None) -> None:
        self._fleet = fleet
        self.gates = gates or GateClient()
        """Dials the gates of other boxes."""
        self._pools: dict[str, ConnectionPool] = {}

    def of(self, backend_id: str) -> ConnectionPool:
        """The backend's pool.

        Raises:
            AttemptError: the backend has no address now.
        """
        try:
            endpoint = self._fleet.endpoint(backend_id)
        except LookupError:
            raise self.gone(backend_id) from None
        pool = self._pools.get(backend_id)
        if pool is None or pool.endpoint != endpoint:
            if pool is not None:
                pool.close()
            pool = self._pools[backend_id] = ConnectionPool(endpoint, self.gates)
        return pool

    @staticmethod
    def gone(backend_id: str) -> AttemptError:
        """The failure of an attempt at a backend that is not there (any more)."""
        return AttemptError(Failure.CONNECT, f"backend {backend_id} is not there")

    def flush(self, backend_id: str) -> None:
        """Close the backend's connections, also those with requests: its engine stops or was replaced."""
        pool = self._pools.pop(backend_id, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close everything."""
        for backend_id in list(self._pools):
            self.flush(backend_id)
