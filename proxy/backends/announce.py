"""Tells the fleet of the backends that this proxy looks after: news of what happens to them, records of what they are.

Speaks to nobody itself: facts go in, news and records come out. Backends have the store's names in both.
"""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from proxy.backends.announced import Announced, to_facts
from proxy.backends.boxes import Box
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, Gate, identity
from proxy.store.records import BackendRecord
from scheduler.domain import Backend, Engine, Report
from scheduler.events import (
    BackendChanged,
    BackendLeft,
    BackendReported,
    BackendSignalled,
    Event,
    GpuReported,
)
from scheduler.health import Signal
from scheduler.news import BackendGone, BackendMoved, BackendSeen, BackendTold, MemorySeen, News

_OF_THE_ENGINE = frozenset({Signal.STARTED, Signal.ANSWERED, Signal.MISSED, Signal.EXITED})
"""What is seen by looking; attempts are each proxy's own, and draining is the store's to tell."""


class Engines(Protocol):
    """What must be known of this proxy's own backends."""

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where it is reached; LookupError if that is not known."""
        ...

    def facts(self, backend_id: str) -> EngineFacts | None:
        """What the engine said of itself."""
        ...

    def key_file(self, backend_id: str) -> str:
        """The file with its API key; empty: there is none."""
        ...


class _Own:
    """One backend of this proxy, as told last."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store_id = ""
        self.signal: Signal | None = None
        self.report: Report | None = None
        self.facts: EngineFacts | None = None
        self.facts_epoch = 0


class Announcer:
    """The backends of this proxy as the fleet is told of them."""

    def __init__(
        self, engines: Engines, box: Box, gate: Gate | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`gate` is where other boxes get in; its backend's name is filled in here."""
        self.gate = gate
        self._engines = engines
        self._box = box
        self._clock = clock
        self._own: dict[str, _Own] = {}
        self._names: dict[str, str] = {}
        self._announced: dict[str, Announced] = {}
        self._told: dict[str, Announced] = {}

    def store_id(self, backend_id: str) -> str | None:
        """The store's name of a backend of this proxy; None: it has none of that name."""
        own = self._own.get(backend_id)
        return own.store_id if own else None

    def local_id(self, store_id: str) -> str | None:
        """The name of a backend of this proxy; None: it is another's."""
        return self._names.get(store_id)

    def take(self, event: Event) -> list[News]:
        """Something happened to a backend of this proxy: what the others are told."""
        match event:
            case BackendChanged():
                return self._changed(event.backend)
            case BackendLeft():
                own = self._own.pop(event.backend_id, None)
                return [] if own is None else [self._gone(own)]
            case BackendSignalled() if event.signal in _OF_THE_ENGINE:
                return self._signalled(event)
            case BackendReported():
                if (own := self._own.get(event.report.backend_id)) is None:
                    return []
                own.report = event.report
                self._describe(own)
                return [self._seen(own, event.report)]
            case GpuReported():
                return self._sampled(event)
        return []

    def retold(self) -> list[News]:
        """All of it, for who knows nothing (any more)."""
        news: list[News] = []
        for own in self._own.values():
            told = msgspec.structs.replace(own.backend, id=own.store_id)
            news.append(BackendTold(told))
            if own.signal is not None:
                news.append(BackendMoved(own.store_id, own.backend.epoch, own.signal))
            if own.report is not None and own.report.epoch == own.backend.epoch:
                news.append(self._seen(own, own.report))
        return news

    def records(self) -> list[BackendRecord]:
        """What the registry holds of them."""
        # Epochs of managed backends are shared truth; those of external ones are what each proxy happened to see.
        return [
            BackendRecord(
                store_id,
                announced.backend.epoch if announced.backend.managed else 0,
                announced.backend.running_limit,
                to_facts(announced),
            )
            for store_id, announced in self._announced.items()
        ]

    def changed_records(self) -> list[BackendRecord] | None:
        """The same if they are not what this call or the last one gave; None: nothing new."""
        if self._announced == self._told:
            return None
        self._told = dict(self._announced)
        return self.records()

    def _changed(self, backend: Backend) -> list[News]:
        news: list[News] = []
        own = self._own.setdefault(backend.id, _Own(backend))
        own.backend = backend
        try:
            store_id = identity(self._engines.endpoint(backend.id), self._box.id)
        except LookupError:
            store_id = own.store_id or f"{self._box.id}/{backend.id}"
        if own.store_id and own.store_id != store_id:
            news.append(self._gone(own))
        own.store_id = store_id
        self._names[store_id] = backend.id
        self._describe(own)
        return [*news, BackendTold(msgspec.structs.replace(backend, id=store_id))]

    def _signalled(self, event: BackendSignalled) -> list[News]:
        if (own := self._own.get(event.backend_id)) is None:
            return []
        own.signal = event.signal
        self._describe(own)
        return [BackendMoved(own.store_id, own.backend.epoch, event.signal)]

    def _gone(self, own: _Own) -> News:
        self._names.pop(own.store_id, None)
        self._announced.pop(own.store_id, None)
        return BackendGone(own.store_id)

    def _seen(self, own: _Own, report: Report) -> News:
        ago_s = max(0.0, self._clock() - report.asked_at_s)
        return BackendSeen(msgspec.structs.replace(report, backend_id=own.store_id), ago_s)

    def _sampled(self, event: GpuReported) -> list[News]:
        own = self._own.get(event.backend_id)
        if own is None or own.backend.engine is not Engine.OLLAMA:  # the others never load anything when asked
            return []
        ago_s = max(0.0, self._clock() - event.asked_at_s)
        memory = None if event.memory is None else msgspec.structs.replace(event.memory, sampled_s=0.0)
        return [MemorySeen(own.store_id, memory, ago_s)]

    def _describe(self, own: _Own) -> None:
        facts = self._engines.facts(own.backend.id)
        if facts is not own.facts:
            own.facts, own.facts_epoch = facts, own.backend.epoch
        try:
            endpoint = self._engines.endpoint(own.backend.id)
        except LookupError:
            self._announced.pop(own.store_id, None)
            return
        gate = self.gate and msgspec.structs.replace(self.gate, backend=own.backend.id)
        self._announced[own.store_id] = Announced(
            name=own.backend.id,
            box=self._box,
            endpoint=msgspec.structs.replace(endpoint, headers=()),
            backend=msgspec.structs.replace(own.backend, id=own.store_id),
            guarded=bool(endpoint.headers),
            key_file=self._engines.key_file(own.backend.id) if endpoint.headers else "",
            gate=gate,
            ready=own.signal is Signal.ANSWERED,
            facts=own.facts,
            facts_epoch=own.facts_epoch,
        )
