"""Open connections to one backend, kept for the next request. Owns their ages; must not know what they carry."""

import asyncio
import contextlib
from typing import Final

from proxy.endpoint import Endpoint
from proxy.gate_client import GateClient
from proxy.relay.connection import EngineConnection
from proxy.relay.contract import AttemptError
from scheduler.domain import Failure

IDLE_EXPIRY_S: Final = 4.0
"""llama-server closes a kept connection after 5 s (reference: cpp-httplib's keep-alive timeout) and 100 requests."""
STALL_TIMEOUT_S: Final = 600.0


class ConnectionPool:
    """Keep-alive connections of one endpoint, the warmest first, and one timer for all their limits."""

    def __init__(
        self,
        endpoint: Endpoint,
        gates: GateClient | None = None,
        *,
        idle_expiry_s: float = IDLE_EXPIRY_S,
        max_idle: int = 64,
        connect_timeout_s: float = 5.0,
        sweep_interval_s: float = 1.0,
    ) -> None:
        """Set it up; connects to nobody.

        Args:
            endpoint: the backend's.
            gates: dials those of other boxes; None: an endpoint behind one cannot be reached.
            idle_expiry_s: a kept connection is used again until it has been idle for so long.
            max_idle: kept connections.
            connect_timeout_s: longest wait for a new one; the gate's answer is part of it.
            sweep_interval_s: how often limits are looked at.
        """
        self.endpoint = endpoint
        self._gates = gates or GateClient()
        self._idle_expiry_s = idle_expiry_s
        self._max_idle = max_idle
        self._connect_timeout_s = connect_timeout_s
        self._sweep_interval_s = sweep_interval_s
        self._loop = asyncio.get_running_loop()
        self._idle: list[EngineConnection] = []
        self._active: dict[EngineConnection, float] = {}
        """Connections with a request, and how long it may stay without any byte, in seconds."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.opened = 0
        """Connections opened so far."""

    @property
    def active(self) -> int:
        """Connections that carry a request now."""
        return len(self._active)

    @property
    def idle(self) -> int:
        """Connections kept for a next request."""
        return len(self._idle)

    def take(self) -> EngineConnection | None:
        """The kept connection that was used last, if one is young enough."""
        oldest_s = self._loop.time() - self._idle_expiry_s
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s > oldest_s:
                return connection
            connection.abort()
        return None

    async def open(self) -> EngineConnection:
        """Connect.

        Raises:
            AttemptError: refused (also by a gate), unreachable, not within the connect timeout, or this pool is
                closed: CONNECT.
        """
        self._check_open()
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if endpoint.gate is not None:
                    connection = EngineConnection(self)
                    _, connection.engine = await self._gates.connect(endpoint.gate, connection)
                elif endpoint.unix_path is not None:
                    _, connection = await self._loop.create_unix_connection(
                        lambda: EngineConnection(self), endpoint.unix_path
                    )
                else:
                    _, connection = await self._loop.create_connection(
                        lambda: EngineConnection(self), endpoint.address, endpoint.port
                    )
        except TimeoutError:
            gate = f" through the gate {endpoint.gate.host}:{endpoint.gate.port}" if endpoint.gate else ""
            detail = f"no connection{gate} within {self._connect_timeout_s:g} s"
            raise AttemptError(Failure.CONNECT, detail) from None
        except OSError as error:
            raise AttemptError(Failure.CONNECT, error.strerror or str(error)) from None
        try:
            self._check_open()
        except AttemptError:
            connection.abort()
            raise
        self.opened += 1
        return connection

    def lend(self, connection: EngineConnection, stall_timeout_s: float) -> None:
        """A request is about to be written: watch its limit until the connection is given back or gone."""
        self._active[connection] = stall_timeout_s
        self._wind()

    def give(self, connection: EngineConnection) -> None:
        """Keep a connection whose answer is complete."""
        self._active.pop(connection, None)
        if self._closed or len(self._idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        self._wind()

    def forget(self, connection: EngineConnection) -> None:
        """The connection is closed."""
        self._active.pop(connection, None)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close everything for good: the engine restarted, moved or was removed.

        Running answers fail as if the engine had reset the connection; connections being opened are not lent any more.
        """
        self._closed = True
        for connection in tuple(self._idle):
            connection.abort()
        for connection in tuple(self._active):
            connection.drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_open(self) -> None:
        if self._closed:
            raise AttemptError(Failure.CONNECT, "the backend was removed")

    def _wind(self) -> None:
        """Have the timer run while there is anything to watch, and only then: an idle proxy sleeps."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(self._sweep_interval_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for connection, stall_timeout_s in tuple(self._active.items()):
            connection.sweep(now_s, stall_timeout_s)
        oldest_s = now_s - self._idle_expiry_s
        for connection in [each for each in self._idle if each.idle_since_s <= oldest_s]:
            connection.abort()
        if self._active or self._idle:
            self._wind()
