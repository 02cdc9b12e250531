"""Keeps the store within reach: connects, checks, notices trouble, reconnects. Knows no lease.

States: *up*; *recovering* (the connection just broke: calls wait for the new one, at most one call timeout, and are
said again, which the scripts allow); *down* (calls fail at once: no request waits for a store that is gone).
Trouble is logged when it begins, when its kind changes and when it ends, never per call.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import structlog
from redis.exceptions import NoScriptError, ResponseError

from proxy.endpoint import shown_url
from proxy.store.scripts import SCRIPTS, Script
from proxy.store.trouble import StoreDown, StoreSlow, Trouble, trouble_of, version_trouble
from proxy.store.wire import Command, Wire, WireBroken
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
"""Wait between two attempts to connect: doubles from the first to the longest, with a fifth of jitter so that the
proxies of a fleet do not come back all at once."""


class State(Enum):
    """Whether calls reach the store."""

    UP = "up"
    RECOVERING = "recovering"
    DOWN = "down"


class Link:
    """The way to the store. `join` runs on each new connection before it is used (scripts are loaded already),
    `rejoined` in the same turn as the link comes up: what it sends goes before everybody else's calls.
    """

    def __init__(
        self,
        url: str,
        *,
        call_timeout_s: float,
        join: Callable[[Wire], Awaitable[None]],
        rejoined: Callable[[], None],
        on_change: Callable[[bool], None],
    ) -> None:
        """Keep the URL; `start` connects."""
        self.url = url
        self.state = State.DOWN
        self.trouble: Trouble | None = None
        self.attempts = 0
        """Connections tried so far."""
        self.backoff_s = BACKOFF_FIRST_S
        """Wait before the next attempt after a failed or short-lived one."""
        self._call_timeout_s = call_timeout_s
        self._join = join
        self._rejoined = rejoined
        self._on_change = on_change
        self._wire: Wire | None = None
        self._settled: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._recovery_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._closed = False

    async def start(self) -> None:
        """Connect; returns when the store is up or the first attempt has failed. Goes on trying in the background.

        Raises:
            ValueError: the URL is none that redis-py knows.
        """
        Wire(self.url, call_timeout_s=self._call_timeout_s, on_broken=lambda _: None)  # the URL is checked here
        first = asyncio.get_running_loop().create_future()
        self._tasks.start(self._keep_connected(first), "store link")
        await first

    async def close(self) -> None:
        """Stop connecting and close the connection. Calls that wait get StoreDown."""
        self._closed = True
        await self._tasks.close()
        wire, self._wire = self._wire, None
        self._settle(State.DOWN)
        if wire is not None:
            await wire.close()

    async def run(self, script: Script, keys: tuple[str, ...], arguments: tuple[str | int, ...]) -> Any:
        """Run a script; says it again if the connection breaks before the answer.

        Raises:
            StoreDown: no answer within the deadline, or the store is in trouble.
        """
        return await self.call(script.command(keys, arguments))

    async def call(self, command: Command) -> Any:
        """Send a command and return its answer.

        Raises:
            StoreDown: as for `run`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._call_timeout_s
        while True:
            wire = self._wire if self.state is State.UP else await self._recovered()
            if wire is None:
                raise StoreDown(self.trouble.detail if self.trouble else "not connected")
            try:
                return await wire.call(command)
            except NoScriptError:  # SCRIPT FLUSH; EVAL also keeps the script for the next time
                command = ("EVAL", SCRIPTS[str(command[1])].text, *command[2:])
            except ResponseError as error:
                self._fail(trouble_of(error))
                raise StoreDown(str(error)) from error
            except WireBroken as error:
                if loop.time() >= deadline:
                    raise StoreDown(str(error)) from error

    def post(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[str | int, ...]
    ) -> "asyncio.Future[Any] | None":
        """Run a script once, before all later calls, without waiting; None if the store is not up.

        For what must not be said again later, and for what a rejoin tells anyway. Errors of the store count as trouble.
        """
        if self.state is not State.UP or self._wire is None:
            return None
        answer = self._wire.call(script.command(keys, arguments))
        answer.add_done_callback(self._posted)
        return answer

    def _posted(self, answer: "asyncio.Future[Any]") -> None:
        if answer.cancelled() or not isinstance(error := answer.exception(), ResponseError):
            return
        if isinstance(error, NoScriptError):
            self._broken(error)  # a new connection loads the scripts and tells everything again
        else:
            self._fail(trouble_of(error))

    async def _recovered(self) -> Wire | None:
        if self.state is State.RECOVERING and self._settled is not None:
            await asyncio.shield(self._settled)
        return self._wire if self.state is State.UP else None

    def _broken(self, error: Exception) -> None:
        """The connection broke by itself."""
        if self.state is not State.UP or self._closed:
            return
        if isinstance(error, StoreSlow):  # the deadline has passed already: nothing to wait for
            self._fail(trouble_of(error))
            return
        loop = asyncio.get_running_loop()
        self.state = State.RECOVERING
        self._settled = loop.create_future()
        self._recovery_timer = loop.call_later(self._call_timeout_s, self._fail, trouble_of(error))
        self._lost.set()

    def _fail(self, trouble: Trouble) -> None:
        """The store is of no use for now."""
        if self.trouble is None or self.trouble.kind is not trouble.kind:
            log.warning(
                "store in trouble, going on with this proxy's share of each backend",
                store=shown_url(self.url),
                trouble=trouble.kind.value,
                detail=trouble.detail,
                advice=trouble.advice,
            )
        self.trouble = trouble
        if self.state is not State.DOWN:
            self._settle(State.DOWN)
            self._lost.set()
            self._on_change(False)

    def _settle(self, state: State) -> None:
        self.state = state
        if self._recovery_timer is not None:
            self._recovery_timer.cancel()
            self._recovery_timer = None
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._settled = None

    async def _keep_connected(self, first: "asyncio.Future[None]") -> None:
        while True:
            old, self._wire = self._wire, None
            if old is not None:
                await old.close()
            self._lost.clear()
            connected = await self._connect()
            if not first.done():
                first.set_result(None)
            if connected:
                up_since_s = asyncio.get_running_loop().time()
                await self._lost.wait()
                if asyncio.get_running_loop().time() - up_since_s > BACKOFF_MAX_S:
                    self.backoff_s = BACKOFF_FIRST_S
                    if self.state is State.RECOVERING:
                        continue  # a first break after a good time: calls wait, so try at once
            if not self._closed:
                await asyncio.sleep(self.backoff_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret
                self.backoff_s = min(2 * self.backoff_s, BACKOFF_MAX_S)

    async def _connect(self) -> bool:
        """One attempt. True: the link is up."""
        self.attempts += 1
        wire = Wire(self.url, call_timeout_s=self._call_timeout_s, on_broken=self._broken)
        try:
            await wire.open()
            await self._check_version(wire)
            await asyncio.gather(*(wire.call(("SCRIPT", "LOAD", script.text)) for script in SCRIPTS.values()))
            await self._join(wire)
            if wire.broken is not None:
                raise wire.broken
        except _Unfit as unfit:
            await self._turn_away(wire, unfit.trouble)
            return False
        except WireBroken as error:
            await self._turn_away(wire, trouble_of(error.__cause__ or error))
            return False
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the next attempt must come
            await self._turn_away(wire, trouble_of(error))
            return False
        self._wire = wire
        was_down, trouble, self.trouble = self.state is State.DOWN, self.trouble, None
        self._settle(State.UP)
        self._rejoined()
        if was_down:
            self._on_change(True)
        log.info("store connected", store=shown_url(self.url), after=trouble.kind.value if trouble else None)
        return True

    async def _turn_away(self, wire: Wire, trouble: Trouble) -> None:
        await wire.close()
        if self.state is State.RECOVERING and _passing(trouble):
            return  # may still come back in time; the timer decides
        self._fail(trouble)

    async def _check_version(self, wire: Wire) -> None:
        try:
            info = await wire.call(("INFO", "server"))
        except ResponseError:
            return  # not allowed to look: the scripts will tell
        if (trouble := version_trouble(info.decode(errors="replace"))) is not None:
            raise _Unfit(trouble)


class _Unfit(Exception):
    """The store can never serve as it is."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.detail)
        self.trouble = trouble


def _passing(trouble: Trouble) -> bool:
    return trouble.kind.value in {"unreachable", "busy"}
