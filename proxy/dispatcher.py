"""The run loop: feeds events to the scheduler and performs its effects. Nothing here decides anything.

A request's task asks `submit` for a `Ticketed` and waits for its assignments; every other part of the proxy calls
`feed`. All of it runs on one event loop, so there are no locks, and an effect is performed before the next event.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from proxy.journal import Journal
from proxy.sharing import Sharing
from proxy.store import BackendRecord, Store
from proxy.tasks import Tasks
from proxy.ticketed import Ticketed, predicted_tokens
from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Request
from scheduler.effects import Effect
from scheduler.events import Event
from scheduler.news import News

log = structlog.get_logger("slotgate.dispatcher")

OCCUPANCY_EVERY_S = 1.0
"""How often the store is asked what other proxies hold. Only advice: a claim is checked by the store itself."""


class Engines(Protocol):
    """What the dispatcher needs of the fleet."""

    def look(self, backend_id: str, at_s: float) -> None:
        """Take an extra look at a backend."""
        ...

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend."""
        ...

    def local_id(self, store_id: str) -> str | None:
        """The name here of a backend that the store names so."""
        ...


class Loader(Protocol):
    """Who has Ollamas load and unload models."""

    def load(self, effect: effects.Load) -> None:
        """Begin; told back by `events.LoadEnded`."""
        ...

    def unload(self, effect: effects.Unload) -> None:
        """Begin."""
        ...


class Dispatcher:
    """Events in, effects performed."""

    def __init__(
        self, scheduler: Scheduler, store: Store, journal: Journal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self.journal = journal
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.fleet: Engines | None = None
        self.loads: Loader | None = None
        self.on_idle: Callable[[], None] | None = None
        self.sharing: Sharing | None = None
        """What other proxies are told and tell; None: there are none, and never will be."""
        self.backends: dict[str, Backend] = {}
        """What is known of each backend, as last told to the scheduler."""
        self._store = store
        self._leased_at: dict[str, str] = {}
        """Nonce of each claim -> the store's name of its backend."""
        self._ticketed: dict[str, Ticketed] = {}
        self._tasks = Tasks()
        self._occupancy_wanted = asyncio.Event()
        self._wake: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to ask the store what others hold."""
        self._tasks.start(self._watch_occupancy(), "watch occupancy")

    async def close(self) -> None:
        """Stop; requests in flight are the caller's business."""
        if self._wake is not None:
            self._wake.cancel()
        await self._tasks.close()

    def submit(self, request: Request) -> Ticketed:
        """Hand the current task's request to the scheduler."""
        ticketed = Ticketed(self, request)
        self._ticketed[request.id] = ticketed
        try:
            self.feed(events.RequestArrived(request))
        except BaseException:
            self.forget(request.id)
            raise
        self._note_wait(request)
        return ticketed

    def end_all(self) -> None:
        """End all requests now; each client is told."""
        for ticketed in list(self._ticketed.values()):
            ticketed.end()

    def forget(self, request_id: str) -> None:
        """The request's task is over."""
        self._ticketed.pop(request_id, None)
        if not self._ticketed and self.on_idle is not None:
            self.on_idle()

    def live(self) -> list[Request]:
        """Requests waiting or running here, in order of arrival."""
        return [ticketed.request for ticketed in self._ticketed.values()]

    @property
    def requests(self) -> int:
        """Requests waiting or running here."""
        return len(self._ticketed)

    def feed(self, event: Event) -> None:
        """Tell the scheduler, and do what it asks for."""
        match event:
            case events.BackendChanged():
                self.backends[event.backend.id] = event.backend
            case events.BackendLeft():
                self.backends.pop(event.backend_id, None)
            case events.BackendReported() if self.sharing is not None and not self.scheduler.alone:
                self._tasks.start(self._report(event, self.sharing), "report")
                return
        self._handle(event)

    async def _report(self, event: events.BackendReported, sharing: Sharing) -> None:
        """What the look saw of other proxies' requests must have been heard before."""
        await sharing.caught_up()
        self._handle(event)

    def _handle(self, event: Event) -> None:
        for effect in self.scheduler.handle(event, self.clock()):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.Dispatch() | effects.Reject():
                if (ticketed := self._ticketed.get(effect.request_id)) is not None:
                    self._note(effect, ticketed.request)
                    ticketed.settle(effect)
            case effects.Claim():
                self._tasks.start(self._claim(effect), "claim")
            case effects.Release():
                self._release(effect)
            case effects.Tell() if self.sharing is not None:
                self.sharing.tell(effect.news)
            case effects.WakeAt():
                self._wake_at(effect.at_s)
            case effects.Look() if self.fleet is not None:
                self.fleet.look(effect.backend_id, effect.at_s)
            case effects.Load() | effects.Unload():
                self._load(effect)
            case effects.HealthChanged() | effects.SlotChoice():
                _log(effect)
            case effects.Cancel():
                # Of a client that left nothing is known here any more: its exchange was cancelled with its task.
                if (ticketed := self._ticketed.get(effect.request_id)) is not None:
                    ticketed.call_back()

    def _load(self, effect: effects.Load | effects.Unload) -> None:
        assert self.loads is not None  # noqa: S101 - there are no backends before it is there
        if isinstance(effect, effects.Load):
            self.loads.load(effect)
        else:
            self.loads.unload(effect)

    def _note(self, effect: effects.Dispatch | effects.Reject, request: Request) -> None:
        """Pieces of a batch have ids of their own; their client knows one."""
        if effect.decision is None:
            return
        slot = effect.slot if isinstance(effect, effects.Dispatch) else None
        predicted = predicted_tokens(request, effect.decision)
        self.journal.decided(request.id.partition("/")[0], effect.decision, slot, predicted)

    def _note_wait(self, request: Request) -> None:
        """If it waits, why."""
        ticket = self.scheduler.ticket_of(request.id)
        if ticket is None or ticket.decision is None:
            return
        now_s = self.clock()
        holds_s = None if ticket.hold_until_s is None else max(0.0, ticket.hold_until_s - now_s)
        snapshot = self.scheduler.snapshot(now_s)
        self.journal.waits(request.id.partition("/")[0], ticket.decision, holds_s, request, snapshot)

    def announce(self, records: list[BackendRecord]) -> None:
        """Tell the store which backends this proxy looks after; it repeats that by itself."""
        self._tasks.start(self._store.heartbeat(records), "announce backends")

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend: the same for all proxies that reach the same engine."""
        return backend_id if self.fleet is None else self.fleet.store_id(backend_id)

    def local_id(self, store_id: str) -> str | None:
        """The name here of a backend that the store names so; None: it is not known here."""
        name = store_id if self.fleet is None else self.fleet.local_id(store_id)
        return name if name in self.backends else None

    def store_epoch(self, backend_id: str) -> int:
        """Epochs of managed backends are shared truth; those of external ones are what each proxy happened to see."""
        backend = self.backends.get(backend_id)
        return backend.epoch if backend is not None and backend.managed else 0

    def local_epoch(self, backend_id: str) -> int:
        """The epoch as counted here."""
        backend = self.backends.get(backend_id)
        return 0 if backend is None else backend.epoch

    async def _claim(self, effect: effects.Claim) -> None:
        backend_id = effect.backend_id
        # Remembered: a restart may give the backend another address before the lease is given back.
        store_id = self._leased_at[effect.nonce] = self.store_id(backend_id)
        try:
            reply = await self._store.claim(
                store_id,
                effect.nonce,
                effect.seats,
                effect.running_limit,
                self.store_epoch(backend_id),
                effect.slot,
                self._enclosed(effect.news),
            )
        except Exception:
            log.exception("claim failed", backend=backend_id, request=effect.request_id)
            self._store.give_back(self._leased_at.pop(effect.nonce), effect.nonce)
            self.feed(events.ClaimRefused(effect.request_id, effect.nonce, seats_elsewhere=0, unsure=True))
            return
        if reply.granted:
            self.feed(events.ClaimGranted(effect.request_id, effect.nonce))
            return
        self._leased_at.pop(effect.nonce, None)
        elsewhere = max(0, reply.seats_elsewhere)
        self.feed(
            events.ClaimRefused(
                effect.request_id,
                effect.nonce,
                elsewhere,
                reply.draining,
                reply.epoch,
                reply.slot_refused,
                unsure=reply.local,  # decided here: the store may yet have granted it
                kept=reply.kept,
            )
        )

    def _release(self, effect: effects.Release) -> None:
        store_id = self._leased_at.pop(effect.nonce, None) or self.store_id(effect.backend_id)
        self._store.give_back(store_id, effect.nonce, self._enclosed(effect.news))

    def _enclosed(self, news: News | None) -> bytes:
        return b"" if self.sharing is None else self.sharing.enclosed(news)

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self.loop.call_later(max(0.0, at_s - self.clock()), self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.feed(events.TimePassed())

    def ask_occupancy(self) -> None:
        """Ask the store now what others hold: it is another one that answers."""
        self._occupancy_wanted.set()

    async def _watch_occupancy(self) -> None:
        while True:
            try:
                await self._ask_occupancy()
            except Exception:
                log.exception("occupancy not read")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OCCUPANCY_EVERY_S):
                    await self._occupancy_wanted.wait()
            self._occupancy_wanted.clear()

    async def _ask_occupancy(self) -> None:
        asked_at_s = self.clock()
        ids = {self.store_id(backend_id): backend_id for backend_id in self.backends}
        found = await self._store.occupancy(ids)
        if self.sharing is not None:
            await self.sharing.caught_up()  # what the numbers count must have been heard of
        for store_id, seats in found.items():
            elsewhere = max(0, seats.seats_elsewhere)
            self.feed(events.OccupancyReported(ids[store_id], elsewhere, asked_at_s, seats.draining, seats.kept))

    async def drain(self, backend_id: str, *, drain: bool) -> None:
        """Drain a backend, or give it work again, in all proxies of the fleet."""
        # The store first: an occupancy answer asked in between would say the contrary.
        await self._store.set_draining(self.store_id(backend_id), drain)
        self.feed(events.DrainRequested(backend_id) if drain else events.UndrainRequested(backend_id))


def _log(effect: effects.HealthChanged | effects.SlotChoice) -> None:
    if isinstance(effect, effects.SlotChoice):
        text = "slots named by slotgate" if effect.ours else "slots left to the engine"
        log.info(text, backend=effect.backend_id, because=effect.because)
        return
    log.info(
        "backend health",
        backend=effect.backend_id,
        before=effect.before.value,
        after=effect.after.value,
        because=effect.because,
    )
