"""Has Ollamas load and unload models, apart from any client's request. Decides nothing: the scheduler asks for it.

An Ollama gives a load up when the client leaves that caused it, and everybody else's wait with it; so models are loaded
by empty requests of slotgate's own. One load at a time per backend, in all proxies of the fleet: a lock in the store
sees to that, and without the store each proxy goes on by itself. What the scheduler wants out of the way is unloaded
first, since the engine itself would choose others. Each load ends in exactly one `events.LoadEnded`.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import msgspec
import structlog

from proxy.backends.control import Control, ControlAnswer, ProbeError
from proxy.backends.probes.ollama import Ps
from proxy.dialects.errors import refusal_text
from proxy.dialects.runner import LOAD_OPTIONS, keep_alive_word
from proxy.endpoint import Endpoint
from proxy.gate_client import GateClient
from proxy.store.locks import Lock, Refused
from proxy.store.trouble import StoreDown
from proxy.tasks import Tasks
from scheduler import effects, events
from scheduler.names import canonical, short

log = structlog.get_logger("slotgate.loads")

LOAD_TIMEOUT_S = 600.0
"""Ollama itself gives a load up after five minutes without progress; a large model from a slow disk makes some."""
UNLOAD_TIMEOUT_S = 10.0
"""Ollama answers an unload at once, whatever still runs."""
GONE_WITHIN_S = 60.0
"""A model that was unloaded to make room is gone by then, or something still runs on it."""
GONE_POLL_S = 0.1
PS_TIMEOUT_S = 15.0
"""/api/ps takes some seconds while Ollama loads or unloads."""
KEPT = 64
"""Loads that are remembered after their end."""


class NotLoaded(Exception):
    """A load that came to nothing; the message says why, in the engine's words where it has some."""


class Elsewhere(NotLoaded):
    """Another proxy of the fleet loads a model there."""


class Engines(Protocol):
    """What is needed of the fleet."""

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where a backend is reached now; LookupError: nowhere."""
        ...

    def look(self, backend_id: str, at_s: float) -> None:
        """Take an extra look at a backend."""
        ...

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend."""
        ...

    def loaded_by_default(self, backend_id: str, model: str) -> None:
        """A model was loaded without a word on its context: looks from now on show the engine's default."""
        ...


class LoadLocks(Protocol):
    """Locks of the fleet; see `store.locks`."""

    async def take(self, name: str, note: str = "") -> Lock:
        """Take one. Raises Refused, StoreDown."""
        ...

    async def drop(self, lock: Lock) -> None:
        """Give it back."""
        ...


class LoadRecord(msgspec.Struct):
    """A load that is under way, or was."""

    nonce: str
    backend_id: str
    model: str
    began_s: float
    loaded: bool | None = None
    """None: it is under way."""
    detail: str = ""
    """Why it was not loaded."""
    took_ms: float | None = None
    """Milliseconds that the engine took; None: not known, or it was loaded already."""
    elsewhere: bool = False
    """It was left to another proxy, which loads a model there."""


class Loads:
    """Performs loads and unloads."""

    def __init__(
        self,
        engines: Engines,
        locks: LoadLocks,
        feed: Callable[[events.Event], None],
        gates: GateClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing runs yet.

        Args:
            engines: the backends.
            locks: of the fleet.
            feed: told when a load is over.
            gates: dials the gates of other boxes.
            clock: seconds, monotonic.
        """
        self.records: deque[LoadRecord] = deque(maxlen=KEPT)
        """The last loads, newest last."""
        self._engines = engines
        self._locks = locks
        self._feed = feed
        self._gates = gates
        self._clock = clock
        self._tasks = Tasks()
        self._closed = False

    async def close(self) -> None:
        """End what runs: an Ollama gives a load up with it."""
        self._closed = True
        await self._tasks.close()

    def load(self, effect: effects.Load) -> None:
        """Begin a load; its end is told by `events.LoadEnded`."""
        record = LoadRecord(effect.nonce, effect.backend_id, effect.model, self._clock())
        self.records.append(record)
        task = self._tasks.start(self._try(effect, record), f"load of {effect.model} at {effect.backend_id}")
        # Not in a `finally` of the task: one that is cancelled before its first step runs none.
        task.add_done_callback(lambda done: self._over(record, done))
        if self._closed:
            task.cancel()

    def unload(self, effect: effects.Unload) -> None:
        """Have a model unloaded as soon as nothing runs on it, without waiting for that."""
        self._tasks.start(self._tell_unload(effect.backend_id, effect.model), f"unload of {effect.model}")

    async def _tell_unload(self, backend_id: str, model: str) -> None:
        try:
            async with self._control(backend_id) as control:
                await _unload(control, model)
        except (NotLoaded, ProbeError) as error:
            log.warning("model not unloaded", backend=backend_id, model=model, error=str(error))
        else:
            log.info("model unloaded", backend=backend_id, model=model)
        self._engines.look(backend_id, self._clock())

    def _over(self, record: LoadRecord, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            record.detail = "slotgate stops"
        elif task.exception() is not None:
            record.detail = "loading failed inside slotgate; its log says how"
        record.loaded = not record.detail
        if record.loaded:
            log.info("model loaded", backend=record.backend_id, model=record.model, took_ms=record.took_ms)
        elif not record.elsewhere:
            log.warning("model not loaded", backend=record.backend_id, model=record.model, reason=record.detail)
        self._feed(
            events.LoadEnded(
                record.backend_id,
                record.model,
                record.nonce,
                record.loaded,
                record.detail,
                record.took_ms,
                refused=record.elsewhere,
            )
        )
        if not self._closed:
            self._engines.look(record.backend_id, self._clock())

    async def _try(self, effect: effects.Load, record: LoadRecord) -> None:
        """Load, and note why that came to nothing."""
        try:
            await self._load(effect, record)
        except (NotLoaded, ProbeError) as error:
            record.detail = str(error)
            record.elsewhere = isinstance(error, Elsewhere)

    async def _load(self, effect: effects.Load, record: LoadRecord) -> None:
        async with self._alone(effect), self._control(effect.backend_id) as control:
            context = effect.runner.num_ctx
            text = "loads a model"
            log.info(text, backend=effect.backend_id, model=effect.model, context=context, first_unload=effect.unload)
            if effect.unload:
                await self._make_room(control, effect.unload)
            there = await self._is_there(control, effect)
            began_s = self._clock()
            path = "/api/embed" if effect.embeds else "/api/generate"
            answer = await control.post(path, load_body(effect), LOAD_TIMEOUT_S)
            _check(answer)
            record.took_ms = None if there else (self._clock() - began_s) * 1000.0
            if context is None:
                self._engines.loaded_by_default(effect.backend_id, effect.model)

    async def _is_there(self, control: Control, effect: effects.Load) -> bool:
        """Whether it is loaded already, so that the load tells nothing but how long it shall stay."""
        try:
            shown = await _shown(control)
        except ProbeError:
            return False
        return effect.model in shown and effect.runner.num_ctx in (None, shown[effect.model])

    async def _make_room(self, control: Control, models: tuple[str, ...]) -> None:
        for model in models:
            await _unload(control, model)
        deadline_s = self._clock() + GONE_WITHIN_S
        while left := sorted(set(models) & (await _shown(control)).keys()):
            if self._clock() >= deadline_s:
                names = ", ".join(map(short, left))
                raise NotLoaded(f"{names}: still loaded after {GONE_WITHIN_S:g} s, something may run on it")
            await asyncio.sleep(GONE_POLL_S)

    @contextlib.asynccontextmanager
    async def _alone(self, effect: effects.Load) -> AsyncIterator[None]:
        """Hold the lock on loads at a backend."""
        lock: Lock | None = None
        try:
            lock = await self._locks.take(f"load:{self._engines.store_id(effect.backend_id)}", short(effect.model))
        except Refused as error:
            raise Elsewhere(f"another proxy of the fleet loads {error or 'a model'} there") from None
        except StoreDown:
            log.warning("loads without the store's lock", backend=effect.backend_id, model=effect.model)
        try:
            yield
        finally:
            if lock is not None:
                await self._locks.drop(lock)

    @contextlib.asynccontextmanager
    async def _control(self, backend_id: str) -> AsyncIterator[Control]:
        try:
            endpoint = self._engines.endpoint(backend_id)
        except LookupError as error:
            raise NotLoaded(f"the backend cannot be reached: {error}") from None
        control = Control(endpoint, UNLOAD_TIMEOUT_S, self._gates)
        try:
            yield control
        finally:
            await control.close()


def load_body(effect: effects.Load) -> Mapping[str, Any]:
    """The request that makes an Ollama load a model and do nothing else."""
    said = {name: getattr(effect.runner, name) for name in LOAD_OPTIONS}
    body: dict[str, Any] = {"model": short(effect.model)}
    if effect.embeds:
        body["input"] = []
    else:
        body["stream"] = False
    if options := {name: value for name, value in said.items() if value is not None}:
        body["options"] = options
    if effect.runner.shift is not None and not effect.embeds:
        body["shift"] = effect.runner.shift
    if effect.keep_alive_s:  # 0 would unload it
        body["keep_alive"] = keep_alive_word(effect.keep_alive_s)
    return body


async def _unload(control: Control, model: str) -> None:
    answer = await control.post("/api/generate", {"model": short(model), "keep_alive": 0})
    _check(answer)


async def _shown(control: Control) -> dict[str, int | None]:
    """Loaded models by canonical name, with their context."""
    answer = await control.get("/api/ps", PS_TIMEOUT_S)
    _check(answer)
    return {canonical(each.name): each.context_length for each in answer.json(Ps).models or ()}


def _check(answer: ControlAnswer) -> None:
    if answer.status != 200:
        raise NotLoaded(refusal_text(answer.body) or f"{answer.path} was answered with status {answer.status}")
