"""Loads under way, of this proxy and of others. Owns what is being loaded where; `planner` decides what shall be.

A load is decided, told to the other proxies, and asked for (`effects.Load`) once nothing runs any more on what it takes
the place of; meanwhile that gets nothing new. At most one of ours is under way per backend, and none is decided where
another proxy's is. Where two proxies decide at the same time, the one with the smaller nonce goes on, and if both have
asked for it already, the store lets one have it. It is over by `LoadEnded`; then the model counts as loaded at once.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

import msgspec

from scheduler.deadlines import Deadlines
from scheduler.effects import Effect, Load, Look
from scheduler.events import LoadEnded
from scheduler.learning import keep
from scheduler.matching import Matching
from scheduler.news import LoadBegun, LoadOver
from scheduler.outlook import Outlook
from scheduler.planning import Place, Want
from scheduler.policy import Policy
from scheduler.replica import BackendState, Replica
from scheduler.residencies import coming, seats_in_use
from scheduler.runner import Runner, shares
from scheduler.telling import Telling

FORGOTTEN_S = 900.0
"""Another proxy's load of which nothing was heard for so long is over: no engine takes that long."""
REFUSED_S = 1.0
"""Pause after another proxy had the store's lock for a backend: by then its load was heard of."""
UNSEEN_S = 5.0
"""Pause after a load failed: by then a look showed what is loaded there now."""
KEPT = 256
"""Failed loads that are remembered: the latest."""
LONGEST_PAUSE = 16.0
"""Times the policy's pause that a load which failed again and again is not tried."""
SOON_OVER_S = 10.0
"""A model that shall stay for less than this is loaded for the engine's own time: its request follows and says so."""


class UnderWay(msgspec.Struct):
    """A load that was decided and is not over."""

    backend_id: str
    epoch: int
    model: str
    runner: Runner
    nonce: str
    owner: str
    """The proxy that decided it; empty: this one."""
    since_s: float
    unload: tuple[str, ...] = ()
    """Models that go for it."""
    closing: bool = False
    """It waits until nothing runs on them any more."""
    keep_alive_s: float | None = None


class Failed(msgspec.Struct, frozen=True):
    """A load that failed lately."""

    until_s: float
    """It is not tried again before."""
    times: int
    detail: str
    """What the engine said."""
    at_s: float


Target = tuple[str, str, Runner]
"""Backend, model and options of a load."""


class Loading:
    """All loads under way, and those that failed lately."""

    def __init__(
        self,
        policy: Policy,
        replica: Replica,
        matching: Matching,
        deadlines: Deadlines,
        outlook: Outlook,
        telling: Telling,
        effects: list[Effect],
    ) -> None:
        self.policy = policy
        self.news = False
        """Something ended or was heard since the planner looked last."""
        self._replica = replica
        self._matching = matching
        self._deadlines = deadlines
        self._outlook = outlook
        self._telling = telling
        self._effects = effects
        self._loads: dict[str, UnderWay] = {}
        self._unloads: set[tuple[str, str]] = set()
        """Backends and models that operators want unloaded."""
        self._failed: OrderedDict[Target, Failed] = OrderedDict()
        self._went_well: OrderedDict[str, bool] = OrderedDict()
        """Nonces of our loads that are over: the latest."""
        self._paused_s: dict[str, tuple[float, float]] = {}
        """Since and until when nothing is decided for a backend, unless a look began since then."""
        self._count = 0

    def __iter__(self) -> Iterator[UnderWay]:
        return iter(self._loads.values())

    @property
    def busy(self) -> bool:
        """Whether any load is under way."""
        return bool(self._loads)

    def at(self, backend_id: str) -> list[UnderWay]:
        """Loads under way at a backend."""
        return [load for load in self._loads.values() if load.backend_id == backend_id]

    def went_well(self, nonce: str) -> bool:
        """Whether a load of ours is over, and its model loaded."""
        return self._went_well.get(nonce, False)

    def is_paused(self, backend_id: str, now_s: float) -> bool:
        """Whether nothing is to be decided for a backend just now: a load ended in a way that leaves its state open."""
        state = self._replica.get(backend_id)
        since_s, until_s = self._paused_s.get(backend_id, (inf, -inf))
        return now_s < until_s and state is not None and state.report_asked_s <= since_s

    def failed(self, backend_id: str, model: str, runner: Runner, now_s: float) -> Failed | None:
        """The load that failed lately, as long as it is not to be tried again."""
        failed = self._failed.get((backend_id, model, runner))
        return failed if failed is not None and now_s < failed.until_s else None

    @property
    def reactions(self) -> dict[type, Callable[[str, Any, float], None]]:
        """What becomes of other proxies' news, by their kind."""
        return {LoadBegun: self.heard, LoadOver: self.heard_over}

    # Ours

    def begin(self, want: Want, place: Place, about: str, now_s: float) -> UnderWay:
        """Decide a load; `about`: something that no other proxy decides about at the same time."""
        self._count += 1
        state = self._replica.get(place.backend_id)
        assert state is not None  # noqa: S101 - it was chosen among those
        load = UnderWay(
            place.backend_id, state.backend.epoch, want.wish.model, place.runner, f"{about}.load{self._count}", "",
            now_s, tuple([residency.model for residency in place.unload]), closing=True, keep_alive_s=want.keep_alive_s,
        )  # fmt: skip
        self._loads[load.nonce] = load
        self._telling.tell(_begun(load, now_s))
        self._mark(load.backend_id)
        self.proceed(now_s)
        return load

    def proceed(self, now_s: float) -> None:
        """Ask for what was decided and has nothing in its way any more."""
        for load in list(self._loads.values()):
            if load.owner or not load.closing or any(other.nonce < load.nonce for other in self.at(load.backend_id)):
                continue
            state = self._replica.get(load.backend_id)
            if state is None or not state.usable or self.is_used(state, load.unload):
                continue
            backend = state.backend
            load.closing = False
            load.since_s = now_s
            view = self._replica.view(load.backend_id)
            context = coming(load.model, load.runner, backend).context_tokens
            self._outlook.loads.begun(view, load.model, now_s, self._replica.views(), context)
            others = [
                residency.model
                for residency in state.book.residencies
                if residency.model in load.unload and not shares(load.model, residency, backend)
            ]
            stays_s = load.keep_alive_s
            if stays_s is not None and 0.0 <= stays_s < SOON_OVER_S:
                stays_s = None
            embeds = load.model in backend.embeds_only
            self._effects.append(
                Load(load.backend_id, load.model, load.nonce, load.runner, stays_s, embeds, tuple(others))
            )

    def ended(self, event: LoadEnded, now_s: float) -> None:
        """A load that was asked for is over. One that is void already changes nothing."""
        load = self._loads.get(event.nonce)
        if load is None or load.owner or load.closing:
            return
        is_new = self._over(load, now_s, loaded=event.loaded, tried=not event.refused)
        keep(self._went_well, load.nonce, event.loaded, KEPT)
        target = load.backend_id, load.model, load.runner
        if event.loaded:
            self._failed.pop(target, None)
            took_ms = event.took_ms if event.took_ms is not None else (now_s - load.since_s) * 1000.0
            if is_new:
                self._outlook.load_times.learn(load.backend_id, load.model, took_ms)
        elif event.refused:
            self._paused_s[load.backend_id] = now_s, now_s + REFUSED_S
        else:
            self._paused_s[load.backend_id] = now_s, now_s + UNSEEN_S
            self._fail(target, event.detail or "the engine did not say why", now_s)
        detail = "" if event.loaded or event.refused else event.detail
        self._telling.tell(LoadOver(load.backend_id, load.nonce, event.loaded, detail))

    def give_up(self, load: UnderWay) -> None:
        """A load of ours that is only decided yet is not wanted any more, or not there."""
        self._remove(load)
        self._telling.tell(LoadOver(load.backend_id, load.nonce, loaded=False))
        self._mark(load.backend_id)

    def unload(self, pairs: Iterable[tuple[str, str]]) -> None:
        """These models at these backends get nothing new from now on, and all others do again."""
        before, self._unloads = self._unloads, set(pairs)
        for backend_id in sorted({backend_id for backend_id, _ in before ^ self._unloads}):
            self._mark(backend_id)

    # Others'

    def heard(self, owner: str, news: LoadBegun, now_s: float) -> None:
        """Another proxy decided a load."""
        state = self._replica.get(news.backend_id)
        if news.nonce in self._loads or (state is not None and news.epoch < state.backend.epoch):
            return
        self._loads[news.nonce] = UnderWay(
            news.backend_id, news.epoch, news.model, news.runner, news.nonce, owner, now_s - news.began_s_ago,
            news.unload,
        )  # fmt: skip
        self._deadlines.set(("load", news.nonce), now_s + FORGOTTEN_S)
        for load in self.at(news.backend_id):
            if not load.owner and load.closing and news.nonce < load.nonce:
                self.give_up(load)
        self._mark(news.backend_id)

    def heard_over(self, owner: str, news: LoadOver, now_s: float) -> None:
        """Another proxy's load is over."""
        load = self._loads.get(news.nonce)
        if load is None or load.owner != owner:
            return
        self._over(load, now_s, loaded=news.loaded)
        if news.detail and not news.loaded:
            self._fail((load.backend_id, load.model, load.runner), news.detail, now_s)

    def stands(self, owner: str, loads: Iterable[LoadBegun], now_s: float) -> None:
        """All that another proxy has under way."""
        loads = list(loads)
        nonces = {news.nonce for news in loads}
        self.forget(owner, now_s, but=nonces)
        for news in loads:
            self.heard(owner, news, now_s)

    def forget(self, owner: str, now_s: float, but: Iterable[str] = ()) -> None:
        """Another proxy is gone, or has these loads no more."""
        kept = set(but)
        for load in [load for load in self._loads.values() if load.owner == owner and load.nonce not in kept]:
            self._over(load, now_s, loaded=False)

    def overdue(self, nonce: str, now_s: float) -> None:
        """Nothing was heard of another proxy's load for long."""
        load = self._loads.get(nonce)
        if load is not None:
            self._over(load, now_s, loaded=False)

    def standing(self, now_s: float) -> tuple[LoadBegun, ...]:
        """Ours, to be told with all that we hold."""
        return tuple([_begun(load, now_s) for load in self._loads.values() if not load.owner])

    # What becomes of backends

    def void(self, backend_id: str, epoch: int | None = None) -> None:
        """The engine is gone, and its loads with it; but those that were decided for the new `epoch`."""
        for load in self.at(backend_id):
            if epoch is not None and load.epoch >= epoch:
                continue
            self._remove(load)
            if not load.owner:
                self._telling.tell(LoadOver(load.backend_id, load.nonce, loaded=False))
        self._unloads = {pair for pair in self._unloads if pair[0] != backend_id}
        self._paused_s.pop(backend_id, None)
        for target in [target for target in self._failed if target[0] == backend_id]:
            del self._failed[target]
        self._mark(backend_id)

    def shown(self, backend_id: str) -> None:
        """A backend joined: what is under way there shows."""
        if self.at(backend_id):
            self._mark(backend_id)

    # Pieces

    def _over(self, load: UnderWay, now_s: float, *, loaded: bool, tried: bool = True) -> bool:
        """A load is over; `tried`: its engine was asked for it. Returns whether that brought a model."""
        self._remove(load)
        backend_id, is_new = load.backend_id, False
        state = self._replica.get(backend_id)
        if state is not None and state.backend.epoch == load.epoch and not load.closing:
            if loaded:
                is_new = self._is_new(state, load)
                if is_new:
                    residency = coming(load.model, load.runner, state.backend)
                    state.book.unloaded(load.unload, now_s)
                    state.book.loaded(residency, state.backend, now_s)
                    self._outlook.reloaded(state.backend, residency)
            elif tried and not load.owner:
                state.book.unloaded(load.unload, now_s, 0.0)  # they may be, or not
                self._effects.append(Look(backend_id, now_s))
        if not loaded:
            self._outlook.loads.release(backend_id, load.model)
        self._mark(backend_id)
        return is_new

    def _is_new(self, state: BackendState, load: UnderWay) -> bool:
        """Whether a load that ended well brought something: else the model was there, and only stays for longer."""
        return not any(
            shares(load.model, residency, state.backend)
            and residency.model not in load.unload
            and state.book.since_s(residency.model) <= load.since_s
            for residency in state.book.residencies
        )

    def _remove(self, load: UnderWay) -> None:
        del self._loads[load.nonce]
        self.news = True
        if load.owner:
            self._deadlines.cancel(("load", load.nonce))

    def _fail(self, target: Target, detail: str, now_s: float) -> None:
        before = self._failed.get(target)
        times = before.times + 1 if before is not None else 1
        pause_s = self.policy.load_retry_s * min(LONGEST_PAUSE, 2.0 ** min(times - 1, 30))
        keep(self._failed, target, Failed(now_s + pause_s, times, detail, now_s), KEPT)

    def is_used(self, state: BackendState, models: tuple[str, ...]) -> bool:
        """Whether anything runs on loaded models (their own names), or may run, as far as anybody knows."""
        view = self._replica.view(state.backend.id)
        ended_s = self._outlook.uses.ended_s
        return any(
            residency.model in models
            and seats_in_use(view, residency, ended_s(state.backend.id, residency.model), state.report_asked_s)
            for residency in view.residencies
        )

    def _mark(self, backend_id: str) -> None:
        """Let the backend's view show what is under way there."""
        state = self._replica.get(backend_id)
        if state is None:
            return
        loads = self.at(backend_id)
        closing = frozenset(model for other, model in self._unloads if other == backend_id)
        closing = closing.union(*(load.unload for load in loads))
        state.loading = loads[0].model if loads else ""
        state.closing = closing
        self._replica.touch(backend_id)
        self._matching.free_all()  # with one less that may have the model, those that failed may be tried again


def _begun(load: UnderWay, now_s: float) -> LoadBegun:
    return LoadBegun(
        load.backend_id, load.epoch, load.model, load.runner, load.nonce, load.unload, max(0.0, now_s - load.since_s)
    )
