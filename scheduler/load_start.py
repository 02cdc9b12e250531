"""Beginning loads: the best backend that may take one now. Owns what stands in the way elsewhere, for people to read.

Beside what `planning` weighs, nothing is begun at a backend that failed just now, that loads something already, or that
failed to load the same lately; nor before a backend was looked at that may have the model loaded.
"""

from collections.abc import Iterable
from math import inf

from scheduler.demand import Demand, Wish
from scheduler.domain import BackendView
from scheduler.events import Pin
from scheduler.loading import Failed, Loading, UnderWay
from scheduler.outlook import Outlook
from scheduler.planning import Scene, Want, best_place
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.residencies import coming, holding, loads
from scheduler.runner import load_with, suits

FIRST_LOOK_S = 5.0
"""How long nothing is planned for a model while a backend that may have it loaded was not looked at yet."""


class LoadStart:
    """Where loads can begin."""

    def __init__(self, policy: Policy, replica: Replica, outlook: Outlook, loading: Loading, demand: Demand) -> None:
        self.policy = policy
        self.obstacles: dict[str, dict[str, str]] = {}
        """By model and backend: why what is wanted is not loaded there, as of the last look."""
        self._replica = replica
        self._outlook = outlook
        self._loading = loading
        self._demand = demand
        self._unseen_s: dict[str, float] = {}
        """Backends that were not looked at yet, and since when they could have been."""

    def scene(self, pins: tuple[Pin, ...], now_s: float) -> Scene:
        """The fleet as it is now: all backends that take requests."""
        views = tuple([view for view in self._replica.views() if self._is_usable(view)])
        demand = tuple(self._demand.wishes(now_s))
        copies = _copies([wish for wish, _ in demand], views)
        times, prior_ms, load_book = self._outlook.load_times, self.policy.load_ms, self._outlook.loads

        def since_s(backend_id: str, model: str) -> float:
            state = self._replica.get(backend_id)
            return state.book.since_s(model) if state is not None else -inf

        def looked_s(backend_id: str) -> float:
            state = self._replica.get(backend_id)
            return state.report_asked_s if state is not None else -inf

        return Scene(
            now_s, self.policy, views, demand, copies, pins, since_s, self._outlook.uses.ended_s, looked_s,
            lambda backend_id, model: times.ms(backend_id, model, prior_ms),
            lambda view, model, unload, context: load_book.refusal(
                view, model, now_s, views, evicting=unload, context_tokens=context
            ),
            lambda view: load_book.memory(view.backend.id, now_s) is not None,
        )  # fmt: skip

    def begin(self, want: Want, views: list[BackendView], scene: Scene, about: str) -> UnderWay | None:
        """Decide a load at the best of these backends; returns it, if there was one.

        `about`: something that no other proxy decides about at the same time.
        """
        obstacles: dict[str, str] = {}
        free: list[BackendView] = []
        for view in views:
            backend_id = view.backend.id
            if scene.now_s < view.cooling_until_s:
                obstacles[backend_id] = "it failed just now"
            elif self._loading.at(backend_id) or self._loading.is_paused(backend_id, scene.now_s):
                obstacles[backend_id] = "another model is being loaded there"
            elif (failed := self.failed(view, want.wish, scene.now_s)) is not None:
                obstacles[backend_id] = failed.detail
            else:
                free.append(view)
        place, others = best_place(want, free, scene)
        if place is not None:
            if want.forced and want.drains:  # not for a pin, but for an operator who asks once: it stays for a while
                self._demand.asked(want.wish, 1.0, scene.now_s)
            return self._loading.begin(want, place, about, scene.now_s)
        self.obstacles.setdefault(want.wish.model, {}).update({**obstacles, **others})
        return None

    def failed(self, view: BackendView, wish: Wish, now_s: float) -> Failed | None:
        """The load of this that failed there lately."""
        runner = load_with(wish.runner, wish.model, view.backend)
        return self._loading.failed(view.backend.id, wish.model, runner, now_s)

    def under_way(self, wish: Wish, views: list[BackendView]) -> list[BackendView]:
        """Backends where a load is under way that will do."""
        return [
            view
            for view in views
            if any(
                suits(wish.model, wish.runner, coming(load.model, load.runner, view.backend), view.backend)
                for load in self._loading.at(view.backend.id)
            )
        ]

    def is_unseen(self, views: list[BackendView], model: str, now_s: float) -> bool:
        """Whether a backend that may have the model loaded was not looked at yet."""
        unseen = False
        for view in views:
            backend_id = view.backend.id
            state = self._replica.get(backend_id)
            if not loads(view.backend) or model not in view.backend.models:
                continue
            if state is None or state.book.told:
                self._unseen_s.pop(backend_id, None)
            elif now_s < self._unseen_s.setdefault(backend_id, now_s) + FIRST_LOOK_S:
                unseen = True
        return unseen

    def void(self, backend_id: str) -> None:
        """Another engine runs there: it was not looked at yet."""
        self._unseen_s.pop(backend_id, None)

    def _is_usable(self, view: BackendView) -> bool:
        state = self._replica.get(view.backend.id)
        return state is not None and state.usable


def _copies(wishes: Iterable[Wish], views: Iterable[BackendView]) -> dict[Wish, int]:
    """How many backends have what is wished for. Nearly all are ruled out by the name: there can be many of both."""
    copies = dict.fromkeys(wishes, 0)
    by_model: dict[str, list[Wish]] = {}
    for wish in copies:
        by_model.setdefault(wish.model, []).append(wish)
    for view in views:
        backend = view.backend
        names = {residency.model for residency in view.residencies}
        weights = {residency.weights or backend.weights.get(residency.model) for residency in view.residencies} - {None}
        for model, alike in by_model.items():
            if not loads(backend):
                there = alike if model in backend.models else []
            elif model in names or backend.weights.get(model) in weights:
                there = [wish for wish in alike if holding(view, model, wish.runner) is not None]
            else:
                continue
            for wish in there:
                copies[wish] += 1
    return copies
