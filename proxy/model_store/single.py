"""One change on one model store: its lock, one of its backends, another one when that dies. Owns the failover.

A lock of the fleet's store stands before every change: Ollamas that share a directory write parts of the same blob
under the same names, and would destroy each other's. Without the store nothing is changed. A change whose lock is lost
is ended at once, before anybody else can have it.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from proxy.model_store.asking import STALL_S, Answered, ask
from proxy.model_store.grouping import ModelStore
from proxy.model_store.progress import error_of, is_success
from proxy.model_store.wishes import STREAMS, Wish
from proxy.relay import AttemptError, ConnectionPool
from proxy.store import Lock, Locks, Refused, StoreDown
from scheduler.names import short

log = structlog.get_logger("slotgate.model-store")

POLL_S = 0.5
"""How often a lock that another proxy holds is tried."""
WAITING_EVERY_S = 5.0
"""How often a change that waits says so."""
AT_ONCE_S = 120.0
"""An Ollama that has not copied or deleted a model by then hangs: all other changes of the model store wait for it."""
AWAY = (
    "models cannot be changed now: slotgate's store is away, and without it two proxies could write to one directory "
    "of models at once; see `slotgate status`"
)


class Outcome(msgspec.Struct, frozen=True):
    """How a change ended on one model store."""

    status: int = 200
    """Of HTTP. An error in the middle of a stream counts as 500, as in Ollama's whole answers."""
    error: str = ""
    """As Ollama worded it."""
    backend: str = ""
    """The one that did it, or failed last."""
    raw: bytes = b""
    """The answer with the error, as it came; empty: the words are ours."""

    @property
    def ok(self) -> bool:
        """Whether it is done."""
        return self.status < 400


class Connections(Protocol):
    """The way to backends."""

    def of(self, backend_id: str) -> ConnectionPool:
        """A backend's pool; AttemptError if it is not there."""
        ...


class Singles:
    """Changes on single model stores, in their turns."""

    def __init__(
        self, locks: Locks, connections: Connections, usable: Callable[[ModelStore], Sequence[str]], proxy: str
    ) -> None:
        """`usable`: the backends of a model store that can be asked at this moment; `proxy`: what others read of us."""
        self._locks = locks
        self._connections = connections
        self._usable = usable
        self._proxy = proxy
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Of this process's changes on each model store: they go in the order in which they came. Kept by those."""

    async def run(
        self,
        store: ModelStore,
        wish: Wish,
        on_line: Callable[[bytes], None],
        on_waiting: Callable[[], None],
        patience_s: float | None,
    ) -> Outcome:
        """Do it. `on_line` hears what the Ollama says, `on_waiting` that it is not this one's turn, again and again.

        `patience_s` bounds the wait for the turn; None: as long as it takes.
        """
        turn = self._turns.setdefault(store.id, asyncio.Lock())
        loop = asyncio.get_running_loop()
        until_s = float("inf") if patience_s is None else loop.time() + patience_s
        busy = Outcome(503, f"another change of the models of {store.shown} is under way; try again later")
        if not await self._wait(turn, on_waiting, until_s):
            return busy
        try:
            try:
                lock = await self._lock(store, wish, on_waiting, until_s)
            except StoreDown:
                return Outcome(503, AWAY)
            if lock is None:
                return busy
            try:
                return await self._under(lock, store, wish, on_line)
            finally:
                await self._locks.drop(lock)
        finally:
            turn.release()

    async def _wait(self, turn: asyncio.Lock, on_waiting: Callable[[], None], until_s: float) -> bool:
        """Wait for the changes of this process that came before. False: in vain."""
        loop = asyncio.get_running_loop()
        if turn.locked():
            on_waiting()
        while True:
            try:
                async with asyncio.timeout_at(min(loop.time() + WAITING_EVERY_S, until_s)):
                    await turn.acquire()
            except TimeoutError:
                if loop.time() >= until_s:
                    return False
                on_waiting()
            else:
                return True

    async def _lock(self, store: ModelStore, wish: Wish, on_waiting: Callable[[], None], until_s: float) -> Lock | None:
        loop = asyncio.get_running_loop()
        note = f"{wish.change} {short(wish.model)} by {self._proxy}"
        said_s = float("-inf")
        while True:
            try:
                return await self._locks.take(f"models:{store.id}", note)
            except Refused as refused:
                if loop.time() >= until_s:
                    return None
                if loop.time() - said_s >= WAITING_EVERY_S:
                    said_s = loop.time()
                    log.info("waits for another change of the model store", backends=store.shown, other=str(refused))
                    on_waiting()
            await asyncio.sleep(min(POLL_S, max(0.0, until_s - loop.time())))

    async def _under(self, lock: Lock, store: ModelStore, wish: Wish, on_line: Callable[[bytes], None]) -> Outcome:
        """With the lock, until it is done or the lock is lost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as scope:
                lock.on_lost = lambda: scope.reschedule(loop.time())
                return await self._anywhere(store, wish, on_line)
        except TimeoutError:
            return Outcome(503, AWAY)
        finally:
            lock.on_lost = _ignore

    async def _anywhere(self, store: ModelStore, wish: Wish, on_line: Callable[[bytes], None]) -> Outcome:
        """On the first backend that answers."""
        tried: set[str] = set()
        failed = Outcome(503, f"no backend of the model store answers: {store.shown}", store.backends[0])
        while True:
            backend = next((each for each in self._usable(store) if each not in tried), None)
            if backend is None:
                return failed
            try:
                outcome = await self._at(backend, wish, on_line)
            except AttemptError as error:
                log.warning("backend failed a change of models", backend=backend, change=wish.change, error=str(error))
                tried.add(backend)
                failed = Outcome(502, f"backend {backend} did not finish it: {error.detail or error}", backend)
                continue
            if outcome.status == 404 and tried and wish.method == "DELETE":
                return Outcome(backend=backend)  # done by one that died before it could say so
            return outcome

    async def _at(self, backend: str, wish: Wish, on_line: Callable[[bytes], None]) -> Outcome:
        ends: list[Outcome] = []

        def hear(raw: bytes) -> None:
            if (error := error_of(raw)) is not None:
                ends.append(Outcome(500, error, backend, raw))
            elif is_success(raw):
                ends.append(Outcome(backend=backend))
            else:
                on_line(raw)

        heard = hear if wish.change in STREAMS else None
        stall_s = STALL_S if heard else AT_ONCE_S
        answered = await ask(self._connections.of(backend), wish.method, wish.path, wish.encoded(), heard, stall_s)
        if answered.status >= 300:
            return _refusal(answered, backend)
        if heard is None:
            return Outcome(backend=backend)
        return ends[0] if ends else Outcome(500, "the progress ended without success", backend)


def _refusal(answered: Answered, backend: str) -> Outcome:
    error = error_of(answered.body)
    if error is None:
        text = answered.body[:200].decode(errors="replace").strip()
        return Outcome(502, f"status {answered.status}: {text}", backend)
    return Outcome(answered.status, error, backend, answered.body)


def _ignore() -> None:
    """Nobody is told any more."""
