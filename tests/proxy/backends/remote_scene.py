"""A proxy that announces a backend, and another one that hears of it: both without a store and without a clock."""

from collections.abc import Collection
from typing import Any

import msgspec

from proxy.backends.announce import Announcer
from proxy.backends.boxes import Box
from proxy.backends.remote import RemoteFleet
from proxy.backends.remote_member import Outside
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.endpoint import Endpoint, Gate
from proxy.store.records import BackendListing, BackendRecord
from scheduler.domain import Backend, Engine, Report, SlotState
from scheduler.events import BackendChanged, BackendReported, BackendSignalled, Event
from scheduler.health import Signal
from scheduler.news import News

HERE, THERE = Box("here", "here-1"), Box("there", "there-1")
NETWORK = Endpoint("10.0.0.7:8080", 8080, "10.0.0.7")
LOOPBACK = Endpoint("127.0.0.1:8080", 8080, "127.0.0.1")
GATE = Gate("10.0.0.7", 7000, "")


def engine_facts(**changes: Any) -> EngineFacts:
    return EngineFacts(Engine.LLAMA_SERVER, models=(ModelFacts("m"),), slots=4, **changes)


class Announcing:
    """A proxy with backends of its own. Implements `announce.Engines`."""

    def __init__(self, owner: str = "p1", box: Box = HERE, gate: Gate | None = None) -> None:
        self.owner = owner
        self.now_s = 1000.0
        self.endpoints: dict[str, Endpoint] = {}
        self.known: dict[str, EngineFacts] = {}
        self.key_files: dict[str, str] = {}
        self.announcer = Announcer(self, box, gate, lambda: self.now_s)
        self.news: list[News] = []

    def endpoint(self, backend_id: str) -> Endpoint:
        return self.endpoints[backend_id]

    def facts(self, backend_id: str) -> EngineFacts | None:
        return self.known.get(backend_id)

    def key_file(self, backend_id: str) -> str:
        return self.key_files.get(backend_id, "")

    def take(self, *events: Event) -> list[News]:
        """Something happens; what is told of it."""
        news = [each for event in events for each in self.announcer.take(event)]
        self.news += news
        return news

    def add(self, name: str = "gpu", endpoint: Endpoint = LOOPBACK, **fields: Any) -> Backend:
        """A backend joins; its engine has not answered yet."""
        self.endpoints[name] = endpoint
        backend = Backend(name, Engine.LLAMA_SERVER, **{"slots": 4, "running_limit": 2, "epoch": 1} | fields)
        self.take(BackendChanged(backend), BackendSignalled(name, Signal.STARTED))
        return backend

    def ready(self, name: str = "gpu") -> list[News]:
        """Its engine answers, and says what it is."""
        self.known[name] = engine_facts()
        return self.take(BackendSignalled(name, Signal.ANSWERED))

    def restart(self, backend: Backend) -> Backend:
        """Its engine is another process."""
        again = msgspec.structs.replace(backend, epoch=backend.epoch + 1)
        self.take(BackendChanged(again), BackendSignalled(again.id, Signal.STARTED))
        return again

    def report(self, name: str = "gpu", epoch: int = 1, began_s_ago: float = 0.0) -> list[News]:
        """A look came back."""
        slots = (SlotState(0, busy=True),)
        return self.take(BackendReported(Report(name, epoch, self.now_s - began_s_ago, busy_slots=1, slots=slots)))

    def listing(self, age_s: float = 0.0) -> list[BackendListing]:
        """What the registry would hold."""
        return [listed(record, self.owner, age_s) for record in self.announcer.records()]


def listed(record: BackendRecord, owner: str, age_s: float = 0.0) -> BackendListing:
    return BackendListing(record, age_s, owner, draining=False, seats_total=0)


class Hearing:
    """A proxy that learns of backends."""

    def __init__(self, box: Box = HERE, **more: Any) -> None:
        self.now_s = 50.0
        self.events: list[Event] = []
        self.told: list[News] = []
        self.flushed: list[str] = []
        self.joined: list[str] = []
        self.wishes = 0
        self.outside = Outside(
            box,
            self.events.append,
            self.flushed.append,
            self.told.append,
            self._wish,
            self.joined.append,
            more.pop("keys", {}),
            lambda: self.now_s,
        )
        self.fleet = RemoteFleet(self.outside, **more)

    def _wish(self) -> None:
        self.wishes += 1

    def refresh(self, *proxies: Announcing, present: Collection[str] | None = None, age_s: float = 0.0) -> None:
        """Read a registry in which these proxies stand."""
        rows = {row.record.backend_id: row for proxy in proxies for row in proxy.listing(age_s)}
        owners = present if present is not None else [proxy.owner for proxy in proxies]
        self.fleet.refresh(rows.values(), owners)

    def hear(self, proxy: Announcing, news: list[News] | None = None) -> None:
        """Hear all that a proxy has told so far, or some of it."""
        heard = proxy.news if news is None else news
        for each in list(heard):
            self.fleet.hear(proxy.owner, each)  # type: ignore[arg-type]
        if news is None:
            proxy.news.clear()

    def took(self) -> list[Event]:
        """What the scheduler was told since last asked."""
        taken, self.events[:] = list(self.events), []
        return taken

    def short(self) -> list[str]:
        """The same in words."""
        return [in_words(event) for event in self.took()]


def in_words(event: Event) -> str:
    match event:
        case BackendChanged():
            return f"{event.backend.id} epoch {event.backend.epoch}"
        case BackendSignalled():
            return f"{event.backend_id} {event.signal.value}"
        case _:
            return f"{getattr(event, 'backend_id', '')} {type(event).__name__}".strip()
