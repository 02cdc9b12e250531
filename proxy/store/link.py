"""Keeps the store within reach: connects, checks, notices trouble, reconnects. Knows no lease.

States: *up*; *recovering* (the connection just broke: calls wait for the new one, at most one call timeout, and are
said again, which the scripts allow); *down* (calls fail at once: no request waits for a store that is gone).
Trouble is logged when it begins, when its kind changes and when it ends, never per call.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from math import inf
from typing import Any

import structlog
from redis.exceptions import MovedError, NoScriptError, ResponseError

from proxy.store.log import run_id_in, settle
from proxy.store.lua import Arguments, Script
from proxy.store.places import Places
from proxy.store.scripts import SCRIPTS
from proxy.store.trouble import StoreDown, StoreSlow, Trouble, trouble_of, version_trouble
from proxy.store.wire import GRACE_S, Command, Wire, WireBroken
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
"""Wait between two attempts to connect: doubles from the first to the longest, with a fifth of jitter so that the
proxies of a fleet do not come back all at once."""
MOVES_MAX = 4
"""How often a cluster may send us on in one attempt to connect."""


class State(Enum):
    """Whether calls reach the store."""

    UP = "up"
    RECOVERING = "recovering"
    DOWN = "down"


class Link:
    """The way to the store. `join` runs on each new connection before it is used (scripts are loaded already),
    `rejoined` in the same turn as the link comes up: what it sends goes before all other calls. `on_change` is told
    when the store goes (False) or is back (True).
    """

    join: Callable[[Wire], Awaitable[None]]
    rejoined: Callable[[], None]
    on_change: Callable[[bool], None]

    def __init__(self, places: Places, *, call_timeout_s: float) -> None:
        """Keep the places; set the three callables, then `start` connects."""
        self.places = places
        self.state = State.DOWN
        self.trouble: Trouble | None = None
        self.run_id = ""
        """The name that the process of the store has given itself; empty if it does not say."""
        self.attempts = 0
        """Connections tried so far."""
        self.backoff_s = BACKOFF_FIRST_S
        """Wait before the next attempt after a failed or short-lived one."""
        self._call_timeout_s = call_timeout_s
        self._wire: Wire | None = None
        self._settled: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._hurried = asyncio.Event()
        self._recovery_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._closed = False

    async def start(self) -> None:
        """Connect; returns when the store is up or the first attempt has failed. Goes on trying in the background."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._tasks.start(self._keep_connected(first), "store link")
        task.add_done_callback(lambda _: settle(first))  # if closed meanwhile
        await first

    def hurry(self) -> None:
        """The store may be there again: if it is not connected, try now."""
        self._hurried.set()

    async def close(self) -> None:
        """Stop connecting and close the connection. Calls that wait get StoreDown."""
        self._closed = True
        await self._tasks.close()
        wire, self._wire = self._wire, None
        self._settle(State.DOWN)
        if wire is not None:
            await wire.close()

    async def run(
        self,
        script: Script,
        keys: tuple[str, ...],
        arguments: Arguments | Callable[[], Arguments],
        *,
        until_s: float = inf,
    ) -> Any:
        """Run a script; says it again if the connection breaks before the answer, with `arguments` made anew if that is
        a function. Waits no longer than one call timeout, and until `until_s` by the clock of the event loop.

        Raises:
            StoreDown: no answer by then, or the store is in trouble.
        """

        def command() -> Command:
            return script.command(keys, arguments() if callable(arguments) else arguments)

        return await self._ask(command, until_s)

    async def call(self, command: Command) -> Any:
        """Send a command and return its answer.

        Raises:
            StoreDown: as for `run`.
        """
        return await self._ask(lambda: command, inf)

    async def _ask(self, command: Callable[[], Command], until_s: float) -> Any:
        latest_s = asyncio.get_running_loop().time() + self._call_timeout_s
        if self.state is State.UP and self._wire is not None and until_s > latest_s - GRACE_S:
            with suppress(_Broken):  # nearly always all there is: the connection has a deadline for each call
                return await self._once(self._wire, command())
        try:
            async with asyncio.timeout_at(min(until_s, latest_s) + GRACE_S):
                while True:
                    wire = await self._recovered()
                    if wire is None or wire.broken is not None:  # broken for good: we are being closed
                        raise StoreDown(self.trouble.detail if self.trouble else "not connected")
                    with suppress(_Broken):
                        return await self._once(wire, command())
        except TimeoutError:
            raise StoreDown(f"no answer within {self._call_timeout_s:g} s") from None

    async def _once(self, wire: Wire, command: Command) -> Any:
        try:
            try:
                return await wire.call(command)
            except NoScriptError as error:  # SCRIPT FLUSH; EVAL also keeps the script for the next time
                if self.state is not State.UP:
                    raise _Broken from error  # a new connection loads them
                return await wire.call(("EVAL", SCRIPTS[str(command[1])].text, *command[2:]))
        except MovedError as error:
            self._moved(error)
            raise _Broken from error
        except ResponseError as error:
            self._fail(trouble_of(error))
            raise StoreDown(str(error)) from error
        except WireBroken as error:
            raise _Broken from error

    def post(
        self,
        script: Script,
        keys: tuple[str, ...],
        arguments: Arguments,
        then: Callable[[Any], object] = lambda _answer: None,
    ) -> "asyncio.Future[Any] | None":
        """Run a script once, before all later calls, without waiting; None if the store is not up. `then` sees the
        answer if one comes.

        For what must not be said again later, and for what a rejoin tells anyway. Errors of the store count as trouble.
        """
        if self.state is not State.UP or self._wire is None:
            return None
        answer = self._wire.call(script.command(keys, arguments))
        answer.add_done_callback(partial(self._posted, then))
        return answer

    def _posted(self, then: Callable[[Any], object], answer: "asyncio.Future[Any]") -> None:
        if answer.cancelled():
            return
        if (error := answer.exception()) is None:
            then(answer.result())
            return
        if not isinstance(error, ResponseError):
            return
        if isinstance(error, MovedError):
            self._moved(error)
        elif isinstance(error, NoScriptError):
            self._broken(error)  # a new connection loads the scripts and tells everything again
        else:
            self._fail(trouble_of(error))

    def _moved(self, error: MovedError) -> None:
        """The keys were moved to another process of a cluster: as if the connection had broken."""
        if self.places.moved(error):
            self._broken(error)
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
                store=self.places.shown,
                trouble=trouble.kind.value,
                detail=trouble.detail,
                advice=trouble.advice,
            )
        self.trouble = trouble
        if self.state is not State.DOWN:
            self._settle(State.DOWN)
            self._lost.set()
            self.on_change(False)

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
            self._hurried.clear()
            connected = await self._connect()
            settle(first)
            if connected:
                up_since_s = asyncio.get_running_loop().time()
                await self._lost.wait()
                if asyncio.get_running_loop().time() - up_since_s > BACKOFF_MAX_S:
                    self.backoff_s = BACKOFF_FIRST_S
                    if self.state is State.RECOVERING:
                        continue  # a first break after a good time: calls wait, so try at once
            if not self._closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.backoff_s * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter
                        await self._hurried.wait()
                self.backoff_s = min(2 * self.backoff_s, BACKOFF_MAX_S)

    async def _connect(self, moves: int = MOVES_MAX) -> bool:
        """One attempt. True: the link is up."""
        self.attempts += 1
        try:
            url = await self.places.find()
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the next attempt must come
            self._note_failure(trouble_of(error))
            return False
        wire = Wire(url, call_timeout_s=self._call_timeout_s, on_broken=self._broken)
        try:
            await wire.open()
            await self._look_at(wire)
            await asyncio.gather(*(wire.call(("SCRIPT", "LOAD", script.text)) for script in SCRIPTS.values()))
            await self.join(wire)
            if wire.broken is not None:
                raise wire.broken
        except _Unfit as unfit:
            await self._turn_away(wire, unfit.trouble)
            return False
        except WireBroken as error:
            await self._turn_away(wire, trouble_of(error.__cause__ or error))
            return False
        except MovedError as error:
            if moves > 0 and self.places.moved(error):
                await wire.close()
                return await self._connect(moves - 1)
            await self._turn_away(wire, trouble_of(error))
            return False
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the next attempt must come
            await self._turn_away(wire, trouble_of(error))
            return False
        except BaseException:  # we are closed
            await wire.close()
            raise
        self._wire = wire
        was_down, trouble, self.trouble = self.state is State.DOWN, self.trouble, None
        self._settle(State.UP)
        self.rejoined()
        if was_down:
            self.on_change(True)
        log.info("store connected", store=self.places.shown, after=trouble.kind.value if trouble else None)
        return True

    async def _turn_away(self, wire: Wire, trouble: Trouble) -> None:
        await wire.close()
        self._note_failure(trouble)

    def _note_failure(self, trouble: Trouble) -> None:
        self.places.forget()
        if self.state is State.RECOVERING and _passing(trouble):
            return  # may still come back in time; the timer decides
        self._fail(trouble)

    async def _look_at(self, wire: Wire) -> None:
        """Which process this is, and whether its version will do."""
        try:
            info = (await wire.call(("INFO", "server"))).decode(errors="replace")
        except ResponseError:
            return  # not allowed to look: the scripts will tell
        if (trouble := version_trouble(info)) is not None:
            raise _Unfit(trouble)
        self.run_id = run_id_in(info)


class _Broken(Exception):
    """The connection broke before the answer."""


class _Unfit(Exception):
    """The store can never serve as it is."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.detail)
        self.trouble = trouble


def _passing(trouble: Trouble) -> bool:
    return trouble.kind.value in {"unreachable", "busy"}
