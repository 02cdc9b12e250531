"""Follows the log of the fleet on a connection of its own. Knows entries and their numbers, nothing of what they tell.

Entries are numbered without holes by a counter beside them. So whatever goes wrong is seen: a hole means that entries
were trimmed, a counter that is not where we are although nothing comes means that the store lost its data. When the
connection breaks, reading goes on where it was if the same process answers; another one (restarted, failed over) may
have lost the last entries and given their numbers anew, so then everything counts as missed.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.exceptions import MovedError, RedisError

from proxy.store.places import Places
from proxy.store.wire import Wire, WireBroken
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

BLOCK_S = 2.0
"""Longest silence before the counter is looked at."""
READ_MAX = 500
"""Entries per read: bounds how long one turn of the event loop takes."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0

Fields = dict[bytes, bytes]


class LogReader:
    """Delivers entries in order to `on_entry(number, fields)`; calls `on_gap` where some were missed."""

    def __init__(
        self,
        places: Places,
        keys: tuple[str, str],
        *,
        call_timeout_s: float,
        on_entry: Callable[[int, Fields], None],
        on_gap: Callable[[], None],
    ) -> None:
        """`keys`: of the log and of its counter. `start` begins."""
        self.position = 0
        """The last entry that was delivered, or after which delivery begins."""
        self.connected = False
        self.gaps = 0
        self._places = places
        self._log, self._count = keys
        self._call_timeout_s = call_timeout_s
        self._on_entry = on_entry
        self._on_gap = on_gap
        self._run_id: str | None = None
        self._doubtful = False
        self._hurried = asyncio.Event()
        self._wire: Wire | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks = Tasks()

    async def start(self, after: int | None) -> None:
        """Begin after a position, or at the end. Returns after the first attempt to connect."""
        await self.close()
        self._run_id, self._doubtful = None, False
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._keep_reading(after, first), "store log")
        task.add_done_callback(lambda _: settle(first))
        await first

    async def close(self) -> None:
        """Read no more."""
        await self._tasks.close()
        self._release_waiting(None)

    def doubt(self) -> None:
        """What was read may not be what others read: the store was away.

        Counts as a gap on a new connection, at once.
        """
        self._doubtful = True
        self._hurried.set()
        if self._wire is not None:
            self._tasks.start(self._wire.close(), "store log connection close")

    async def reached(self, position: int, timeout_s: float) -> None:
        """Return once an entry was delivered, at the latest after a time; at once while nothing is read."""
        if not self.connected or self.position >= position:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, reached))
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError:
            log.debug("log of the store is late", position=self.position, wanted=position)
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not reached]

    async def _keep_reading(self, after: int | None, first: "asyncio.Future[None]") -> None:
        """Connect, read until that breaks, again. `after`: the position to begin at until a connection was had."""
        backoff_s, told = BACKOFF_FIRST_S, False
        while True:
            self._hurried.clear()
            try:
                wire = await self._open()
                try:
                    await self._begin(wire, after, fresh=not first.done())
                    after, backoff_s, told = None, BACKOFF_FIRST_S, False
                    settle(first)
                    while True:
                        await self._read(wire)
                finally:
                    self.connected, self._wire = False, None
                    await wire.close()
            except MovedError as error:
                self._places.moved(error)
            except Exception as error:  # whatever a library raises, the next attempt must come
                foreseen = isinstance(error, (WireBroken, RedisError, OSError))
                if not told or not foreseen:
                    detail = str(error) or repr(error)
                    log.info("log of the store is not read", detail=detail, exc_info=None if foreseen else error)
                told = True
            settle(first)
            self._release_waiting(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff_s * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter, no secret
                    await self._hurried.wait()
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _open(self) -> Wire:
        url = await self._places.find()
        wire = Wire(url, call_timeout_s=BLOCK_S + self._call_timeout_s, on_broken=lambda _: None)
        try:
            await wire.open()
        except BaseException:
            await wire.close()
            raise
        self._wire = wire
        return wire

    async def _begin(self, wire: Wire, after: int | None, *, fresh: bool) -> None:
        """Decide where to begin on a new connection. `fresh`: the caller still waits for the first attempt."""
        run_id, count = await self._run_id_of(wire), await self._count_of(wire)
        known, self._run_id = self._run_id, run_id
        self.connected = True
        if known is None and after is not None:
            self.position = after
        elif known is None and fresh:
            self.position = count
            return
        if (known is None and not fresh) or known not in {None, run_id} or self._doubtful or count < self.position:
            self._doubtful = False
            self._gap(count)

    async def _read(self, wire: Wire) -> None:
        command = ("XREAD", "COUNT", READ_MAX, "BLOCK", round(BLOCK_S * 1000), "STREAMS", self._log)
        if self._deliver(await wire.call((*command, f"{self.position}-0"))):
            return
        count = await self._count_of(wire)
        if count != self.position and not self._deliver(
            await wire.call(("XREAD", "COUNT", READ_MAX, "STREAMS", self._log, f"{self.position}-0"))
        ):
            self._gap(count)

    def _deliver(self, reply: Any) -> bool:
        if not reply:
            return False
        for entry_id, values in reply[0][1]:
            number = int(entry_id.partition(b"-")[0])
            if number != self.position + 1:
                self._gap(number - 1)
            self.position = number
            try:
                self._on_entry(number, dict(zip(values[::2], values[1::2], strict=True)))
            except Exception as error:
                log.error("callback failed", callback="on_entry", error=repr(error), exc_info=error)
        self._release_waiting(self.position)
        return True

    def _gap(self, position: int) -> None:
        """Entries were missed; go on after `position`."""
        log.info("entries of the store's log were missed", after=self.position, go_on_after=position)
        self.position = position
        self.gaps += 1
        try:
            self._on_gap()
        except Exception as error:
            log.error("callback failed", callback="on_gap", error=repr(error), exc_info=error)
        self._release_waiting(position)

    def _release_waiting(self, position: int | None) -> None:
        for wanted, reached in self._waiting:
            if position is None or wanted <= position:
                settle(reached)

    async def _count_of(self, wire: Wire) -> int:
        return int(await wire.call(("GET", self._count)) or 0)

    async def _run_id_of(self, wire: Wire) -> str:
        try:
            return run_id_in((await wire.call(("INFO", "server"))).decode(errors="replace"))
        except RedisError:
            return ""  # not allowed to look


def settle(future: "asyncio.Future[None]") -> None:
    """Let those who wait for it go on."""
    if not future.done():
        future.set_result(None)


def run_id_in(info: str) -> str:
    """The name of a process of the store, from `INFO server`."""
    return next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("run_id:")), "")
