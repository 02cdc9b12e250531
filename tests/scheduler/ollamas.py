"""Ollamas in virtual time, with least-connections before them; `scheduled_ollamas` puts the real scheduler there.

An engine here serves every request at the same pace; what it is true to is when models are loaded and unloaded: one
load at a time, in order, each waiting until what it evicts is idle.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

from scheduler.names import canonical
from tests.bench.residency_figures import Served, Stay
from tests.bench.residency_traffic import Ask

TOKEN_S, PREFILL_S = 0.008, 0.06


class Timeline:
    """What is to happen when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._orders = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, call)

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        self._orders += 1
        heappush(self._due, (at_s, self._orders, call))

    def run(self, until: Callable[[], bool]) -> None:
        """Until the condition holds; what is due at the same time happens in the order in which it was asked for."""
        while not until():
            at_s, _, call = heappop(self._due)
            self.now_s = max(self.now_s, at_s)
            call()


class Loaded:
    """One model in memory."""

    def __init__(self, model: str, context: int, at_s: float) -> None:
        self.model = model
        self.context = context
        self.at_s = at_s
        self.running = 0
        self.queue: deque[Job] = deque()

    @property
    def idle(self) -> bool:
        return not self.running and not self.queue


class Job:
    """A request at an engine."""

    def __init__(self, ask: Ask, context: int, at_s: float, ended: Callable[["Job"], None]) -> None:
        self.ask = ask
        self.context = context
        """What the engine must have its model loaded with."""
        self.sent_s = at_s
        self.held_s = inf
        """When the engine had its model loaded."""
        self.first_s = inf
        self.ended = ended


class Ollama:
    """One engine on one card."""

    def __init__(self, timeline: Timeline, number: int, slots: int, load_s: float, max_loaded: int = 1) -> None:
        self.number = number
        self.slots = slots
        self.loaded: dict[str, Loaded] = {}
        self.stays: list[Stay] = []
        self.loading = ""
        self._timeline = timeline
        self._load_s = load_s
        self._max_loaded = max_loaded
        self._pending: deque[tuple[str, int, Job | None, Callable[[], None]]] = deque()
        """Loads to come, in order: model, context, for whom, and what happens then."""
        self._leaving: Loaded | None = None

    @property
    def open_stays(self) -> list[Stay]:
        return [Stay(self.number, one.model, one.context, one.at_s) for one in self.loaded.values()]

    def fits(self, job: Job) -> Loaded | None:
        """What the job can run on as it is: with exactly the context that it says."""
        one = self.loaded.get(canonical(job.ask.model))
        return one if one is not None and one.context == job.context else None

    def submit(self, job: Job) -> None:
        """As a client's request: it makes the engine load what it needs."""
        if (one := self.fits(job)) is not None:
            self._hold(job, one)
        else:
            self._pending.append((canonical(job.ask.model), job.context, job, lambda: None))
            self._work()

    def preload(self, model: str, context: int, unload: Sequence[str], done: Callable[[], None]) -> None:
        """As an empty request, after some models were unloaded."""
        for name in unload:
            self.unload(name)
        self._pending.append((model, context, None, done))
        self._work()

    def unload(self, model: str) -> None:
        if (one := self.loaded.get(model)) is not None and one.idle:
            self._forget(one)

    def _hold(self, job: Job, one: Loaded) -> None:
        job.held_s = self._timeline.now_s
        one.queue.append(job)
        self._serve(one)

    def _serve(self, one: Loaded) -> None:
        while one.queue and one.running < self.slots:
            job = one.queue.popleft()
            one.running += 1
            job.first_s = self._timeline.now_s + PREFILL_S
            self._timeline.after(PREFILL_S + job.ask.tokens * TOKEN_S, lambda job=job: self._end(one, job))  # type: ignore[misc]

    def _end(self, one: Loaded, job: Job) -> None:
        one.running -= 1
        job.ended(job)
        self._serve(one)
        if self._leaving is one and one.idle:
            self._leaving = None
            self._work()

    def _work(self) -> None:
        """Begin the next load, unless one goes on or waits for a model that is still in use."""
        if self.loading or self._leaving is not None or not self._pending:
            return
        model, context, job, done = self._pending[0]
        one = self.loaded.get(model)
        if one is not None and one.context == context:
            self._pending.popleft()
            if job is not None:
                self._hold(job, one)
            done()
            self._work()
            return
        victim = one
        if victim is None and len(self.loaded) >= self._max_loaded:
            order = sorted(self.loaded.values(), key=lambda each: each.model)
            victim = next((each for each in order if each.idle), order[0])
        if victim is not None and not victim.idle:
            self._leaving = victim
            return
        if victim is not None:
            self._forget(victim)
        self.loading = model
        self._timeline.after(self._load_s, lambda: self._has_loaded(model, context))

    def _has_loaded(self, model: str, context: int) -> None:
        self.loading = ""
        self.loaded[model] = Loaded(model, context, self._timeline.now_s)
        self._work()

    def _forget(self, one: Loaded) -> None:
        del self.loaded[one.model]
        self.stays.append(Stay(self.number, one.model, one.context, one.at_s, self._timeline.now_s))


class Ollamas(ABC):
    """Four of them, and clients. What is before them is said by who inherits.

    Args:
        load_s: of any model.
        context: the engines' own default, in tokens.
    """

    def __init__(self, *, load_s: float = 5.0, slots: int = 4, count: int = 4, context: int = 4096) -> None:
        self.timeline = Timeline()
        self.engines = [Ollama(self.timeline, number, slots, load_s) for number in range(count)]
        self.context = context
        self.served: list[Served] = []

    def run(self, asks: Sequence[Ask]) -> None:
        """Until all are answered."""
        for ask in asks:
            self.timeline.at(ask.at_s, lambda ask=ask: self.arrive(ask))  # type: ignore[misc]
        self.timeline.run(lambda: len(self.served) == len(asks))

    @abstractmethod
    def arrive(self, ask: Ask) -> None:
        """A client asks: place it, now or later."""

    def stays(self) -> list[Stay]:
        return [stay for engine in self.engines for stay in (*engine.stays, *engine.open_stays)]

    def note(self, job: Job, backend: int) -> None:
        """A request was answered."""
        kind = job.ask.kind
        self.served.append(
            Served(
                job.ask.number,
                canonical(job.ask.model),
                kind.num_ctx or self.context,
                kind.path.startswith("/v1/"),
                job.ask.at_s,
                backend,
                job.held_s,
                job.first_s,
                self.timeline.now_s,
            )
        )


class LeastConnections(Ollamas):
    """As nginx does it: where the fewest requests are open, in turns where there are several."""

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._open = [0] * len(self.engines)
        self._last = 0

    def arrive(self, ask: Ask) -> None:
        count = len(self.engines)
        order = [(self._last + 1 + step) % count for step in range(count)]
        self._last = chosen = min(order, key=lambda number: self._open[number])
        self._open[chosen] += 1

        def ended(job: Job) -> None:
            self._open[chosen] -= 1
            self.note(job, chosen)

        context = ask.kind.num_ctx or self.context
        self.engines[chosen].submit(Job(ask, context, self.timeline.now_s, ended))
