"""Open connections to one backend, kept for the next request. Owns their ages; must not know what they carry."""

import asyncio
import contextlib
from typing import Final

from proxy.endpoint import Endpoint
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
        *,
        idle_expiry_s: float = IDLE_EXPIRY_S,
        max_idle: int = 64,
        connect_timeout_s: float = 5.0,
        sweep_interval_s: float = 1.0,
    ) -> None:
        self.endpoint = endpoint
        self._idle_expiry_s = idle_expiry_s
        self._max_idle = max_idle
        self._connect_timeout_s = connect_timeout_s
        self._sweep_interval_s = sweep_interval_s
        self._loop = asyncio.get_running_loop()
        self._idle: list[EngineConnection] = []
        self._active: dict[EngineConnection, tuple[float | None, float]] = {}
        """Connections with a request, and its limits: to the head, and without any byte."""
        self._epoch = 0
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
            AttemptError: refused, unreachable, or not within the connect timeout: CONNECT.
        """
        if self._closed:
            raise AttemptError(Failure.CONNECT, "the backend was removed")
        endpoint = self.endpoint
        epoch = self._epoch
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if endpoint.unix_path is not None:
                    _, connection = await self._loop.create_unix_connection(
                        lambda: EngineConnection(self, epoch), endpoint.unix_path
                    )
                else:
                    _, connection = await self._loop.create_connection(
                        lambda: EngineConnection(self, epoch), endpoint.address, endpoint.port
                    )
        except TimeoutError:
            detail = f"no connection within {self._connect_timeout_s:g} s"
            raise AttemptError(Failure.CONNECT, detail) from None
        except OSError as error:
            raise AttemptError(Failure.CONNECT, error.strerror or str(error)) from None
        self.opened += 1
        return connection

    def lend(self, connection: EngineConnection, head_timeout_s: float | None, stall_timeout_s: float) -> None:
        """A request is about to be written: watch its limits until the connection is given back or gone."""
        self._active[connection] = (head_timeout_s, stall_timeout_s)
        self._wind()

    def give(self, connection: EngineConnection) -> None:
        """Keep a connection whose answer is complete, unless the pool was flushed since it was opened."""
        self._active.pop(connection, None)
        if self._closed or connection.epoch != self._epoch or len(self._idle) >= self._max_idle:
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

    def flush(self) -> None:
        """Close what is idle and reuse nothing opened before: the engine restarted, moved or was ejected."""
        self._epoch += 1
        for connection in tuple(self._idle):
            connection.abort()

    def close(self) -> None:
        """Close everything, running answers included; they fail as if the engine had reset the connection."""
        self._closed = True
        self.flush()
        for connection in tuple(self._active):
            connection.drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self) -> None:
        """Have the timer run while there is anything to watch, and only then: an idle proxy sleeps."""
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(self._sweep_interval_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for connection, (head_timeout_s, stall_timeout_s) in tuple(self._active.items()):
            connection.sweep(now_s, head_timeout_s, stall_timeout_s)
        oldest_s = now_s - self._idle_expiry_s
        for connection in [each for each in self._idle if each.idle_since_s <= oldest_s]:
            connection.abort()
        if self._active or self._idle:
            self._wind()
