"""What operators want of models: pins, which stay loaded, and single loads and unloads. Plans nothing for requests.

How much others are asked for does not matter here, but nothing that is in use goes for a pin, and nothing pinned goes.
"""

import msgspec

from scheduler.demand import Wish
from scheduler.domain import BackendView
from scheduler.effects import Effect, Unload
from scheduler.events import LoadWanted, Pin, PinsChanged, UnloadWanted
from scheduler.load_start import LoadStart
from scheduler.loading import Loading
from scheduler.planning import Scene, Want
from scheduler.replica import Replica
from scheduler.residencies import holding, loads
from scheduler.runner import shares

WANTED_S = 300.0
"""What an operator wants is forgotten when it could not be done for so long."""
MOST_WANTED = 64
"""Wishes of operators that are remembered: the latest."""
EVER_S = -1.0
"""Keep-alive of what is pinned."""


class Asked(msgspec.Struct, eq=False):
    """What an operator wants loaded."""

    wanted: LoadWanted
    at_s: float
    nonce: str = ""
    """Of the load that was decided for it; empty: none was yet."""


class Operators:
    """Pins, and what is wanted once."""

    def __init__(self, replica: Replica, loading: Loading, start: LoadStart, effects: list[Effect]) -> None:
        self.pins: tuple[Pin, ...] = ()
        self.urgent = False
        """Something new is wanted."""
        self._replica = replica
        self._loading = loading
        self._start = start
        self._effects = effects
        self._wanted: list[Asked] = []
        self._unloads: dict[tuple[str, str], float] = {}
        """Backend and model that are to be unloaded, and since when."""
        self._stay: dict[tuple[str, str], float] = {}
        """Backend and model that was told to stay, and since when it was loaded there then."""

    @property
    def any(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.pins or self._wanted)

    def pins_changed(self, event: PinsChanged) -> None:
        """Other models are pinned."""
        self.pins = event.pins
        self._stay.clear()  # what was let go meanwhile is told anew
        self.urgent = True

    def load_wanted(self, event: LoadWanted, now_s: float) -> None:
        """An operator wants a model loaded. What is said again counts anew."""
        self._wanted = [asked for asked in self._wanted if asked.wanted != event][1 - MOST_WANTED :]
        self._wanted.append(Asked(event, now_s))
        self.urgent = True

    def unload_wanted(self, event: UnloadWanted, now_s: float) -> None:
        """An operator wants a model unloaded: it gets nothing new, and goes once nothing runs on it.

        A pin of it stays, and will load it again.
        """
        for view in self._replica.views():
            if not loads(view.backend) or event.backend_id not in (None, view.backend.id):
                continue
            for residency in view.residencies:
                if shares(event.model, residency, view.backend):
                    self._unloads[view.backend.id, residency.model] = now_s
        self._wanted = [
            asked
            for asked in self._wanted
            if asked.wanted.model != event.model or event.backend_id not in (None, asked.wanted.backend_id)
        ]
        self._mark_unloads()
        self.urgent = True

    def void(self, backend_id: str) -> None:
        """The engine is gone."""
        self._unloads = {key: at_s for key, at_s in self._unloads.items() if key[0] != backend_id}
        self._stay = {key: since_s for key, since_s in self._stay.items() if key[0] != backend_id}

    def wishes(self) -> set[Wish]:
        """All that is to be loaded."""
        pinned = {Wish(pin.model, pin.runner) for pin in self.pins}
        return pinned.union(Wish(asked.wanted.model, asked.wanted.runner) for asked in self._wanted)

    def serve(self, scene: Scene) -> bool:
        """Load what is to be loaded; returns whether to look again soon."""
        soon = [self._serve_once(asked, scene) for asked in list(self._wanted)]
        soon += [self._serve_pin(pin, scene) for pin in self.pins]
        return any(soon)

    def _serve_once(self, asked: Asked, scene: Scene) -> bool:
        """Load what an operator wants; returns whether to look again soon."""
        wanted, now_s = asked.wanted, scene.now_s
        wish = Wish(wanted.model, wanted.runner)
        views = _having(wanted.model, wanted.backend_id or "", scene)
        there = [view for view in views if holding(view, wish.model, wish.runner) is not None]
        failed = [self._start.failed(view, wish, now_s) for view in views]
        is_tried = bool(views) and all(each is not None and each.at_s >= asked.at_s for each in failed)
        is_done = self._loading.went_well(asked.nonce) or (bool(there) and wanted.keep_alive_s is None)
        if is_done or is_tried or now_s >= asked.at_s + WANTED_S:
            self._wanted.remove(asked)
            return False
        if self._start.is_unseen(views, wish.model, now_s) or self._start.under_way(wish, views):
            return True
        want = Want(wish, wanted.keep_alive_s, wanted.backend_id or "", forced=True, drains=not there)
        load = self._start.begin(want, there or views, scene, f"{wish.model}@{now_s:.6f}")
        asked.nonce = load.nonce if load is not None else ""
        return bool(views)

    def _serve_pin(self, pin: Pin, scene: Scene) -> bool:
        """Load a pinned model that is not there, have one stay that would go; returns whether to look again soon."""
        wish, now_s = Wish(pin.model, pin.runner), scene.now_s
        views = _having(pin.model, pin.backend_id, scene)
        if not views or self._start.is_unseen(views, pin.model, now_s):
            return bool(views)
        there = [view for view in views if holding(view, wish.model, wish.runner) is not None]
        if self._start.under_way(wish, views):
            return False
        if not there:
            want = Want(wish, EVER_S, pin.backend_id, forced=True)
            return not self._start.begin(want, views, scene, f"{wish.model}@{now_s:.6f}")
        soon = False
        for view in there:
            residency = holding(view, wish.model, wish.runner)
            if residency is None or residency.expires_at_unix_s is None:
                continue
            key, since_s = (view.backend.id, residency.model), scene.since_s(view.backend.id, residency.model)
            if self._stay.get(key) == since_s:
                continue
            want = Want(wish, EVER_S, view.backend.id, forced=True)
            if self._start.begin(want, [view], scene, f"{wish.model}@{now_s:.6f}") is not None:
                self._stay[key] = since_s
            else:
                soon = True
        return soon

    def unload(self, now_s: float) -> None:
        """Unload what is to be unloaded, where nothing runs on it any more."""
        for (backend_id, model), at_s in list(self._unloads.items()):
            state = self._replica.get(backend_id)
            view = self._replica.view(backend_id) if state is not None else None
            there = view is not None and any(residency.model == model for residency in view.residencies)
            if state is None or view is None or not there or now_s >= at_s + WANTED_S:
                del self._unloads[backend_id, model]
            elif not self._loading.is_used(state, (model,)) and not self._loading.at(backend_id):
                del self._unloads[backend_id, model]
                state.book.unloaded([model], now_s)
                self._effects.append(Unload(backend_id, model))
        self._mark_unloads()

    def _mark_unloads(self) -> None:
        self._loading.unload(set(self._unloads))


def _having(model: str, backend_id: str, scene: Scene) -> list[BackendView]:
    return [
        view
        for view in scene.views
        if loads(view.backend) and model in view.backend.models and backend_id in ("", view.backend.id)
    ]
