"""Owns one backend that another proxy looks after: what it is, how it is reached from here, how it stands.

Turns what its owner tells into the events that a `Member` would emit. Asks the engine nothing.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from proxy.backends.announced import Announced, reach
from proxy.backends.boxes import Box
from proxy.backends.member import MemberStatus
from proxy.backends.statedir import engine_key
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, is_local
from scheduler.domain import Backend, Report
from scheduler.events import BackendChanged, BackendLeft, BackendReported, BackendSignalled, Event, GpuReported
from scheduler.health import Signal
from scheduler.news import BackendMoved, BackendSeen, BackendTold, ListWanted, LookWanted, MemorySeen, News

log = structlog.get_logger("slotgate.remote")

MARGIN_S = 0.02
"""The fastest news take less. A look must not be taken for later than it was: it would speak of leases that it did not
see. For much earlier neither: it would show leases that are not known to be in it."""
UNSURE_S = 0.25
"""The same while too few were heard to know which are fast."""
SURE = 3
LAGS_KEPT = 50
"""News of the last minutes: clocks of two boxes drift."""
LOOK_WISH_S = 3.0
"""A look that was wished for and not heard of so long after its time is wished for again."""

Headers = tuple[tuple[str, str], ...]


def _ignore(*_arguments: object) -> None:
    """Nobody listens."""


class Outside(msgspec.Struct):
    """What is around all remote backends, and who listens to them."""

    box: Box
    """Where this proxy runs."""
    emit: Callable[[Event], None]
    """Called with each fact for the scheduler, in the event loop."""
    flush: Callable[[str], None] = _ignore
    """Called with a backend's name when connections to it must be closed."""
    tell: Callable[[News], None] = _ignore
    """Called with what the rest of the fleet shall hear."""
    want_refresh: Callable[[], None] = _ignore
    """Called when the registry should be read soon: it knows more than the news."""
    joined: Callable[[str], None] = _ignore
    """Called with a backend's name when the scheduler was just told of it: who runs there is not known yet."""
    keys: Mapping[str, Headers] = {}
    """What engines want with each request, by the store's names, as configured here."""
    clock: Callable[[], float] = time.monotonic


class RemoteMember:
    """One backend of another proxy, by its name here."""

    def __init__(self, name: str, owner: str, heard_at_s: float, announced: Announced, outside: Outside) -> None:
        """`apply` brings it into the fleet."""
        self.name = name
        self.announced = announced
        self._owner = owner
        self.heard_at_s = heard_at_s
        """When its owner last spoke for it."""
        self.absent_at_s: float | None = None
        """Since when its owner is not among the proxies."""
        self.silent = False
        self.missed_at_s = float("-inf")
        """When its silence was last passed on."""
        self.others: dict[str, float] = {}
        """Other proxies that look after it too, and when they were last heard."""
        self.raw: dict[str, Any] = {}
        """Its record as last read."""
        self.endpoint: Endpoint | None = None
        self.problem = "not announced yet"
        """Why it has no endpoint."""
        self._outside = outside
        self._backend: Backend | None = None
        """As the scheduler knows it; None: it does not."""
        self._signal: Signal | None = None
        self._started_epoch: int | None = None
        """Of which the scheduler was told that it started."""
        self._is_held_back = False
        """It answers, but what it is has not come yet."""
        self._report: Report | None = None
        self._looked_at_s: float | None = None
        self._look_wanted_s: float | None = None
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        """Between the owner's clock when it told of a look and ours when that was heard."""

    @property
    def owner(self) -> str:
        """The proxy that looks after it."""
        return self._owner

    @owner.setter
    def owner(self, owner: str) -> None:
        self._owner, self.absent_at_s = owner, None
        self._lags_s.clear()  # another clock

    @property
    def is_known(self) -> bool:
        """Whether the scheduler knows it."""
        return self._backend is not None

    @property
    def facts(self) -> EngineFacts | None:
        """What the engine said of itself; None before that is known here."""
        return self.announced.facts

    def apply(self, announced: Announced) -> None:
        """What it is, as announced last. Of an earlier epoch than known: stale, dropped."""
        if announced.backend.epoch < self.announced.backend.epoch:
            return
        self.announced = announced
        endpoint, problem = reach(announced, self._outside.box, self._headers(announced))
        if self.endpoint is not None and endpoint != self.endpoint:
            self._outside.flush(self.name)
        if problem and problem != self.problem:
            log.warning("backend cannot be reached from here", backend=self.name, reason=problem)
        self.endpoint, self.problem = endpoint, problem
        if endpoint is None:
            self._forget()
        else:
            self._introduce(announced)

    def hear(self, news: BackendTold | BackendMoved | BackendSeen | MemorySeen) -> None:
        """What its owner tells of it."""
        now_s = self._outside.clock()
        self.heard_at_s = now_s
        epoch = self.announced.backend.epoch
        match news:
            case BackendTold():
                is_ready = self.announced.ready and news.backend.epoch == epoch
                self.apply(msgspec.structs.replace(self.announced, backend=news.backend, ready=is_ready))
                if news.backend.epoch > epoch:
                    self._outside.want_refresh()  # what the engine says of itself comes with its record
            case BackendMoved():
                if news.epoch > epoch:
                    self._outside.want_refresh()
                elif news.epoch == epoch:
                    self.signal(news.signal)
            case BackendSeen():
                asked_at_s = self._asked_at_s(news, now_s)
                self._report = msgspec.structs.replace(news.report, backend_id=self.name, asked_at_s=asked_at_s)
                self._looked_at_s, self._look_wanted_s = now_s, None
                if self.is_known:
                    self._outside.emit(BackendReported(self._report))
            case MemorySeen():
                asked_at_s = now_s - news.began_s_ago
                memory = None if news.memory is None else msgspec.structs.replace(news.memory, sampled_s=asked_at_s)
                if self.is_known:
                    self._outside.emit(GpuReported(self.name, memory, asked_at_s))

    def signal(self, signal: Signal) -> None:
        """How it stands. That it answers is passed on once what it is is known: nothing could be sent there before."""
        if not self.is_known:
            return
        announced, epoch = self.announced, self.announced.backend.epoch
        if signal is Signal.STARTED:
            if self._started_epoch == epoch:
                return  # its news and its record both say so
            self._started_epoch = epoch
        self._is_held_back = signal is Signal.ANSWERED and (announced.facts is None or announced.facts_epoch != epoch)
        if self._is_held_back:
            self._outside.want_refresh()
            return
        self._signal = signal
        self._outside.emit(BackendSignalled(self.name, signal))
        if signal is Signal.EXITED:
            self._outside.flush(self.name)

    def look(self, at_s: float) -> None:
        """Ask the owner to look at the given time of the clock. A wish that stands already is not said again."""
        now_s = self._outside.clock()
        at_s, wanted_s = max(at_s, now_s), self._look_wanted_s
        if wanted_s is not None and wanted_s <= at_s and now_s < wanted_s + LOOK_WISH_S:
            return
        self._look_wanted_s = at_s
        self._outside.tell(LookWanted(self.announced.backend.id, at_s - now_s))

    def list_models(self) -> None:
        """Ask the owner to read its list of models; what it finds comes with its record."""
        self._outside.tell(ListWanted(self.announced.backend.id))

    def leave(self) -> None:
        """It is gone for good."""
        self._outside.flush(self.name)
        self._forget()

    def status(self) -> MemberStatus:
        """Everything that an operator may want to see and that is known here."""
        announced, report, now_s = self.announced, self._report, self._outside.clock()
        facts, backend = announced.facts, announced.backend
        silent_s = now_s - self.heard_at_s
        error = f"nothing heard of it for {silent_s:.0f} s: is its proxy {self.owner} running?" if self.silent else ""
        return MemberStatus(
            name=self.name,
            engine=backend.engine.value,
            managed=False,
            state=self._state(),
            endpoint=str(self.endpoint or announced.endpoint),
            epoch=backend.epoch,
            gpu=backend.gpu.uuid if backend.gpu else None,
            gpu_name=backend.gpu.name if backend.gpu else backend.gpu_name,
            version=facts.version if facts else "",
            models=tuple(model.name for model in facts.models) if facts else (),
            slots=backend.slots,
            running_limit=backend.running_limit,
            slot_context_tokens=facts.slot_context_tokens if facts else None,
            slot_source=backend.slot_source,
            slot_source_why=facts.slot_source_why if facts else "",
            busy_slots=report.busy_slots if report else None,
            deferred=report.deferred if report else None,
            last_error=error or self.problem,
            looked_s_ago=None if self._looked_at_s is None else now_s - self._looked_at_s,
            box=announced.box.name,
            owner=self.owner,
        )

    def _asked_at_s(self, news: BackendSeen, now_s: float) -> float:
        """When a look began, by our clock: never later than it did, however long the news took."""
        lag_s = now_s - (news.report.asked_at_s + news.began_s_ago)
        self._lags_s.append(lag_s)
        late_s = lag_s - min(self._lags_s)
        return now_s - news.began_s_ago - late_s - (MARGIN_S if len(self._lags_s) >= SURE else UNSURE_S)

    def _introduce(self, announced: Announced) -> None:
        before, backend = self._backend, msgspec.structs.replace(announced.backend, id=self.name)
        is_another = before is None or backend.epoch != before.epoch
        self._backend = backend
        if before is not None and is_another:
            self._outside.flush(self.name)
        if backend != before:
            self._outside.emit(BackendChanged(backend))
        if is_another:
            self.signal(Signal.STARTED)
        if self._is_held_back or (is_another and announced.ready):
            self.signal(Signal.ANSWERED)
        if before is None:
            self._outside.joined(self.name)

    def _forget(self) -> None:
        if self._backend is not None:
            self._backend = self._signal = self._started_epoch = None
            self._outside.emit(BackendLeft(self.name))

    def _headers(self, announced: Announced) -> Headers | None:
        """What the engine wants with each request, as far as this process may know."""
        if not announced.guarded:
            return ()
        if configured := self._outside.keys.get(announced.backend.id):
            return configured
        if announced.box.id == self._outside.box.id and announced.key_file and is_local(announced.endpoint):
            key = engine_key(announced.key_file)
            return (("Authorization", f"Bearer {key}"),) if key else None
        return None

    def _state(self) -> str:
        if self.endpoint is None:
            return "unreachable"
        if self.silent or self._signal is Signal.MISSED:
            return "not-answering"
        if self._signal is Signal.EXITED:
            return "stopped"
        return "ready" if self._signal is Signal.ANSWERED else "starting"
