"""The run loop: feeds events to the scheduler and performs its effects. Nothing here decides anything.

A request's task asks `submit` for a `Ticketed` and waits for its assignments; every other part of the proxy calls
`feed`. All of it runs on one event loop, so there are no locks, and an effect is performed before the next event.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from proxy.endpoint import Endpoint, identity
from proxy.journal import Journal
from proxy.store import BackendRecord, Store
from proxy.tasks import Tasks
from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Decision, Failure, Measured, Outcome, Rejection, Request
from scheduler.effects import Effect
from scheduler.events import Event

log = structlog.get_logger("slotgate.dispatcher")

OCCUPANCY_EVERY_S = 1.0
"""How often the store is asked what other proxies hold. Only advice: a claim is checked by the store itself."""


SHOWN = 3
"""Backends whose numbers a refusal tells."""


class Engines(Protocol):
    """What the dispatcher needs of the fleet."""

    def look(self, backend_id: str, at_s: float) -> None:
        """Take an extra look at a backend."""
        ...

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where it is reached; LookupError if it is not there."""
        ...


class Assignment(msgspec.Struct, frozen=True):
    """A backend that the request may be sent to now."""

    backend_id: str
    decision: Decision
    attempt: int
    seats: int
    """Inputs of a batch that it may take; otherwise what the request asked for."""
    slot: int | None = None
    """The slot that the engine shall use; None: its own choice."""
    predicted: int | None = None
    """Tokens of the prompt that should be cached there; None: nobody can tell."""


class Refused(Exception):
    """The scheduler refused the request."""

    def __init__(self, effect: effects.Reject) -> None:
        super().__init__(effect.detail)
        self.rejection: Rejection = effect.rejection
        numbers = [] if effect.decision is None else [f"{name}: {why}" for name, why in effect.decision.details.items()]
        self.detail = "; ".join(filter(None, [effect.detail, *numbers[:SHOWN]]))
        self.retry_after_s = effect.retry_after_s
        self.decision = effect.decision


class Withdrawn(Exception):
    """The request was taken out of the line because nobody needs it any more."""


class Ticketed:
    """One request's side of the dispatcher: its assignments, and what it tells back."""

    def __init__(self, dispatcher: "Dispatcher", request: Request) -> None:
        self.request = request
        self.cut = False
        """The proxy stops and ends the request: its task is cancelled although the client is still there."""
        self._dispatcher = dispatcher
        self._task = asyncio.current_task()
        self._next: asyncio.Future[Assignment] = dispatcher.loop.create_future()
        self._sent = False
        self._scope: asyncio.Timeout | None = None
        self._over = False

    async def assignment(self) -> Assignment:
        """Wait for a backend.

        Raises:
            Refused: there is none for it.
            Withdrawn: `withdraw` was called.
        """
        return await self._next

    def sending(self, scope: asyncio.Timeout) -> None:
        """The request is about to be sent, within a timeout: from here on the engine may work on it."""
        self._sent = True
        self._scope = scope

    def call_back(self) -> None:
        """End the attempt: its timeout expires now."""
        if self._scope is not None:
            self._scope.reschedule(self._dispatcher.loop.time())

    def started(self) -> None:
        """The first byte of the engine's answer is about to go out."""
        self._dispatcher.feed(events.AnswerStarted(self.request.id))

    def failed(self, failure: Failure, detail: str) -> None:
        """The attempt failed before its first byte; await `assignment` again."""
        self._next = self._dispatcher.loop.create_future()
        self._sent = False
        self._scope = None
        self._dispatcher.feed(events.AttemptFailed(self.request.id, failure, detail))

    def outlook(self) -> tuple[int, float | None] | None:
        """While it waits: its place in line, 1 for the next, and how many seconds it will probably wait, if known."""
        return self._dispatcher.scheduler.outlook_of(self.request.id, self._dispatcher.clock())

    def ended(self, outcome: Outcome, measured: Measured | None = None) -> None:
        """The exchange is over; `measured` is what an answer cost."""
        self._over = True
        self._dispatcher.feed(events.RequestEnded(self.request.id, outcome, measured))

    def withdraw(self) -> None:
        """Nobody needs a backend for it any more: whoever awaits `assignment` gets `Withdrawn`, unless one is there."""
        if self._over or self._next.done():
            return
        self.ended(Outcome.REJECTED)
        self._next.set_exception(Withdrawn())

    def close(self) -> None:
        """Whatever happened: if nobody said how it ended, the client left. Its seat is free if nothing was sent."""
        self._dispatcher.forget(self.request.id)
        if self._over:
            return
        self._over = True
        if self._sent:
            self._dispatcher.feed(events.ClientLeft(self.request.id))
        else:
            self._dispatcher.feed(events.RequestEnded(self.request.id, Outcome.REJECTED))

    def settle(self, effect: effects.Dispatch | effects.Reject) -> None:
        """Wake the waiting task (for the dispatcher)."""
        if isinstance(effect, effects.Reject):
            self._over = True
        if self._next.done():
            return
        if isinstance(effect, effects.Dispatch):
            predicted = predicted_tokens(self.request, effect.decision)
            self._next.set_result(
                Assignment(effect.backend_id, effect.decision, effect.attempt, effect.seats, effect.slot, predicted)
            )
        else:
            self._next.set_exception(Refused(effect))

    def end(self) -> None:
        """The proxy stops now: cancel the request's task, which then tells its client."""
        self.cut = True
        if self._task is not None:
            self._task.cancel()


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
        self.on_idle: Callable[[], None] | None = None
        self.backends: dict[str, Backend] = {}
        """What is known of each backend, as last told to the scheduler."""
        self._store = store
        self._store_ids: dict[str, str] = {}
        self._leased_at: dict[str, str] = {}
        """Nonce of each claim -> the store's name of its backend."""
        self._hostname = socket.gethostname()
        self._ticketed: dict[str, Ticketed] = {}
        self._tasks = Tasks()
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
                self._learn(event.backend)
            case events.BackendLeft():
                self.backends.pop(event.backend_id, None)
                self._announce()
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
            case effects.WakeAt():
                self._wake_at(effect.at_s)
            case effects.Look():
                if self.fleet is not None:
                    self.fleet.look(effect.backend_id, effect.at_s)
            case effects.HealthChanged():
                log.info(
                    "backend health",
                    backend=effect.backend_id,
                    before=effect.before.value,
                    after=effect.after.value,
                    because=effect.because,
                )
            case effects.SlotChoice():
                text = "slots named by slotgate" if effect.ours else "slots left to the engine"
                log.info(text, backend=effect.backend_id, because=effect.because)
            case effects.Cancel():
                # Of a client that left nothing is known here any more: its exchange was cancelled with its task.
                if (ticketed := self._ticketed.get(effect.request_id)) is not None:
                    ticketed.call_back()

    def _note(self, effect: effects.Dispatch | effects.Reject, request: Request) -> None:
        """Pieces of a batch have ids of their own; their client knows one."""
        if effect.decision is None:
            return
        slot = effect.slot if isinstance(effect, effects.Dispatch) else None
        predicted = predicted_tokens(request, effect.decision)
        self.journal.decided(request.id.partition("/")[0], effect.decision, slot, predicted)

    def _learn(self, backend: Backend) -> None:
        self.backends[backend.id] = backend
        if self.fleet is not None:
            with contextlib.suppress(LookupError):
                self._store_ids[backend.id] = identity(self.fleet.endpoint(backend.id), self._hostname)
        self._announce()

    def _announce(self) -> None:
        """Tell the store which backends there are; it repeats that by itself."""
        records = [
            BackendRecord(
                self._store_id(backend.id),
                self._store_epoch(backend.id),
                backend.running_limit,
                {"name": backend.id, "engine": backend.engine.value, "slots": backend.slots, "box": self._hostname},
            )
            for backend in self.backends.values()
        ]
        self._tasks.start(self._store.heartbeat(records), "announce backends")

    def _store_id(self, backend_id: str) -> str:
        return self._store_ids.get(backend_id, f"{self._hostname}/{backend_id}")

    def _store_epoch(self, backend_id: str) -> int:
        """Epochs of managed backends are shared truth; those of external ones are what each proxy happened to see."""
        backend = self.backends.get(backend_id)
        return backend.epoch if backend is not None and backend.managed else 0

    async def _claim(self, effect: effects.Claim) -> None:
        backend_id = effect.backend_id
        # Remembered: a restart may give the backend another address before the lease is given back.
        store_id = self._leased_at[effect.nonce] = self._store_id(backend_id)
        try:
            reply = await self._store.claim(
                store_id, effect.nonce, effect.seats, effect.running_limit, self._store_epoch(backend_id)
            )
        except Exception:
            log.exception("claim failed", backend=backend_id, request=effect.request_id)
            self._store.give_back(self._leased_at.pop(effect.nonce), effect.nonce)
            self.feed(events.ClaimRefused(effect.request_id, effect.nonce, seats_elsewhere=0))
            return
        if reply.granted:
            self.feed(events.ClaimGranted(effect.request_id, effect.nonce))
            return
        self._leased_at.pop(effect.nonce, None)
        elsewhere = max(0, reply.seats_elsewhere)
        self.feed(events.ClaimRefused(effect.request_id, effect.nonce, elsewhere, reply.draining, reply.epoch))

    def _release(self, effect: effects.Release) -> None:
        store_id = self._leased_at.pop(effect.nonce, None) or self._store_id(effect.backend_id)
        self._store.give_back(store_id, effect.nonce)

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self.loop.call_later(max(0.0, at_s - self.clock()), self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.feed(events.TimePassed())

    async def _watch_occupancy(self) -> None:
        while True:
            try:
                await self._ask_occupancy()
            except Exception:
                log.exception("occupancy not read")
            await asyncio.sleep(OCCUPANCY_EVERY_S)

    async def _ask_occupancy(self) -> None:
        asked_at_s = self.clock()
        ids = {self._store_id(backend_id): backend_id for backend_id in self.backends}
        for store_id, seats in (await self._store.occupancy(ids)).items():
            elsewhere = max(0, seats.seats_elsewhere)
            self.feed(events.OccupancyReported(ids[store_id], elsewhere, asked_at_s, seats.draining))

    async def drain(self, backend_id: str, *, drain: bool) -> None:
        """Drain a backend, or give it work again, in all proxies of the fleet."""
        # The store first: an occupancy answer asked in between would say the contrary.
        await self._store.set_draining(self._store_id(backend_id), drain)
        self.feed(events.DrainRequested(backend_id) if drain else events.UndrainRequested(backend_id))


def predicted_tokens(request: Request, decision: Decision) -> int | None:
    """Tokens of a prompt that should be cached at the best backend; None: nobody can tell."""
    best = decision.best
    return None if best is None or request.prompt is None else best.reused_tokens
