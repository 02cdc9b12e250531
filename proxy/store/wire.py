"""One connection to the store on which calls are pipelined. Knows no key and no script, and never reconnects.

Calls made in the same turn of the event loop leave as one write; the answers come back in the order of the calls.
Each call has a deadline; a late answer breaks the connection, because what follows on it would be late too.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from proxy.store.trouble import StoreSlow
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

GRACE_S = 0.02
"""After a deadline the answer gets this much more: if our own event loop was held up, it lies in the socket already."""

CONNECT_TIMEOUT_MIN_S = 1.0
"""Name lookup, TCP, TLS and login take several round trips; a call takes one."""

Command = tuple[str | int | bytes, ...]


class WireBroken(Exception):
    """The connection broke; whether the call was carried out is unknown. `__cause__` tells why."""


class Wire:
    """A connection; `open` it first, then `call`. Once broken it stays broken."""

    def __init__(self, url: str, *, call_timeout_s: float, on_broken: Callable[[Exception], None]) -> None:
        """Read the URL; connects to nothing yet.

        Raises:
            ValueError: not a redis://, rediss:// or unix:// URL.
        """
        connect_timeout_s = max(CONNECT_TIMEOUT_MIN_S, call_timeout_s)
        pool: Any = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=connect_timeout_s,
            socket_connect_timeout=connect_timeout_s,
            driver_info=None,
        )
        self._connection: Any = pool.make_connection()  # redis-py's own annotations are partial
        self._call_timeout_s = call_timeout_s
        self._on_broken = on_broken
        self._unsent: list[Command] = []
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._closing = Tasks()
        self._loop = asyncio.get_running_loop()
        self.broken: Exception | None = None
        self.writes = 0
        """Pipelines written so far."""

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            RedisError, OSError: as redis-py tells it; see `trouble.trouble_of`.
        """
        await self._connection.connect()
        self._connection.socket_timeout = None  # from here on our own deadlines hold, at a fraction of the cost
        self._tasks.start(self._write(), "store writer")
        self._tasks.start(self._read(), "store reader")

    def call(self, command: Command) -> "asyncio.Future[Any]":
        """Send a command; the future brings its answer, or WireBroken, or the ResponseError of the store."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.broken is not None:
            answer.set_exception(_broken(self.broken))
            return answer
        deadline = self._loop.time() + self._call_timeout_s
        self._unsent.append(command)
        self._waiting.append((deadline, answer))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadline)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return answer

    async def close(self) -> None:
        """Close the connection; calls still waiting get WireBroken."""
        self._break(ConnectionAbortedError("closed by us"), tell=False)
        try:
            await self._tasks.close()
        finally:
            with suppress(RedisError, OSError):
                await self._connection.disconnect(nowait=True)
            await self._closing.close()

    async def _write(self) -> None:
        try:
            while True:
                if not self._unsent:
                    self._wake = self._loop.create_future()
                    await self._wake
                batch, self._unsent = self._unsent, []
                self.writes += 1
                packed = b"".join(map(pack_command, batch))  # type: ignore[arg-type] # the stub means any length
                await self._connection.send_packed_command(packed, check_health=False)
        except (RedisError, OSError) as error:
            self._break(error)

    async def _read(self) -> None:
        try:
            while True:
                answer: Any
                try:
                    answer = await self._connection.read_response(timeout=math.inf, disconnect_on_error=False)
                except ResponseError as error:
                    answer = error
                _, future = self._waiting.popleft()
                if future.done():  # its caller was cancelled
                    continue
                if isinstance(answer, ResponseError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except (RedisError, OSError, IndexError) as error:
            self._break(error)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting or self.broken is not None:
            return
        deadline, _ = self._waiting[0]
        late_s = self._loop.time() - deadline
        if late_s < 0:
            self._timer = self._loop.call_at(deadline, self._check_deadline)
        else:
            self._timer = self._loop.call_later(GRACE_S, self._give_up, self._waiting[0][1])

    def _give_up(self, late: "asyncio.Future[Any]") -> None:
        self._timer = None
        if self._waiting and self._waiting[0][1] is late:
            self._break(StoreSlow(f"no answer within {self._call_timeout_s:g} s"))
        else:
            self._check_deadline()

    def _break(self, error: Exception, *, tell: bool = True) -> None:
        if self.broken is not None:
            return
        self.broken = error
        if self._timer is not None:
            self._timer.cancel()
        if tell:
            self._on_broken(error)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(_broken(error))
        self._waiting.clear()
        self._unsent.clear()
        if tell:
            self._closing.start(self._shut(), "store connection close")

    async def _shut(self) -> None:
        await self._tasks.close()
        with suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


def _broken(error: Exception) -> WireBroken:
    broken = WireBroken(str(error))
    broken.__cause__ = error
    return broken
