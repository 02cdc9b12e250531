"""Where a model is best loaded, and what would have to go for it. Pure: one look at the fleet, no memory, no effects.

What goes is never in use, unless it may be drained first, and never pinned. Of the backends the one is chosen where the
least demand loses its place. Two rules keep models from taking each other's places all the time: a model that is asked
for stays for a while (`Policy.residence_s` and its neighbours), and a further copy takes the place of something that is
asked for only where that pays several times over (`Policy.copy_gain`), and the place of its only copy only where the
line is long. A copy that takes nobody's place is loaded as soon as something has to wait: an empty card is of no use.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from scheduler.demand import Wish
from scheduler.domain import BackendView, Health, Residency
from scheduler.events import Pin
from scheduler.names import short
from scheduler.policy import Policy
from scheduler.residencies import coming, holding, seats_in_use
from scheduler.runner import Runner, load_with, shares, suits, told

LAST_COPY_LOADS = 4.0
"""A further copy takes the place of the only copy of something else only where its requests wait for longer than so
many loads: then those of the other model, who will wait for a load now and then, are the lesser evil."""
EMPTY_CARD_LOADS = 0.1
"""A further copy that takes nobody's place is loaded once its requests wait for this part of a load."""
DRAIN_MS = 1000.0
"""Cost of each seat that must fall free first: answers take some seconds, and are at their middle on average."""


class Want(msgspec.Struct, frozen=True):
    """Something to be loaded."""

    wish: Wish
    keep_alive_s: float | None = None
    backend_id: str = ""
    """Only there; empty: where it suits best."""
    tried: frozenset[str] = frozenset()
    """Not there."""
    forced: bool = False
    """An operator wants it: how much others are asked for does not matter."""
    drains: bool = False
    """What takes its place may be in use: it gets nothing new, and goes once nothing runs on it."""
    copies: int = 0
    """Backends that have it already, or will soon."""
    wait_ms: float = 0.0
    """What its requests are expected to wait if nothing is loaded; where there are no copies, what they waited yet."""


class Place(msgspec.Struct, frozen=True):
    """A backend that can load something now."""

    backend_id: str
    runner: Runner
    unload: tuple[Residency, ...] = ()
    """What goes for it."""
    loss_ms: float = 0.0
    """Demand that loses its place, in milliseconds of work within the window, and loads that this will cause."""
    seats: int = 0
    """In use on what goes."""


class Scene(msgspec.Struct, frozen=True):
    """What planning looks at."""

    now_s: float
    policy: Policy
    views: tuple[BackendView, ...]
    """All backends that may take requests."""
    demand: tuple[tuple[Wish, float], ...]
    """What was asked for within the window, in milliseconds of work."""
    copies: dict[Wish, int]
    """Backends that have each of these."""
    pins: tuple[Pin, ...]
    since_s: Callable[[str, str], float]
    """Since when a backend has a model."""
    idle_since_s: Callable[[str, str], float]
    """Since when nothing runs on a model there, unless something does."""
    looked_s: Callable[[str], float]
    """When the last look at a backend began."""
    load_ms: Callable[[str, str], float]
    """How long a backend takes to load a model."""
    refusal: Callable[[BackendView, str, tuple[Residency, ...], int | None], str | None]
    """Why a model with that context has no room on a card once these are unloaded."""
    knows_memory: Callable[[BackendView], bool]
    """Whether that can be told."""
    runs_on: dict[tuple[str, str], list[tuple[Wish, float, int]]] = {}
    """By backend and loaded model: what is asked for and runs on it. Filled in as it is needed."""
    worth_ms: dict[tuple[str, Wish], float] = {}
    """By backend and what may come there: work that could run on it. Filled in as it is needed."""


def place_at(want: Want, view: BackendView, scene: Scene) -> Place | str:
    """How a backend could load what is wanted; or why it cannot now, for people."""
    backend, model = view.backend, want.wish.model
    new = coming(model, load_with(want.wish.runner, model, backend), backend)
    assert new.asked is not None  # noqa: S101 - `coming` says what it was asked with
    if (there := holding(view, model, want.wish.runner)) is not None:
        if there.model in view.closing:
            return f"{short(there.model)} is about to be unloaded"
        return Place(backend.id, told(there, backend) or new.asked)  # only its time to stay changes
    unload: list[Residency] = []
    options: list[tuple[float, int, Residency]] = []
    stuck: list[str] = []
    for number, residency in enumerate(view.residencies):
        why = why_it_stays(want, view, residency, new, scene)
        if why is None and shares(model, residency, backend):
            unload.append(residency)
        elif why is None:
            cost_ms = loss_ms(view, residency, new, scene) + DRAIN_MS * _seats(view, residency, scene)
            options.append((cost_ms, number, residency))
        elif shares(model, residency, backend):
            return why
        else:
            stuck.append(why)
    options.sort(key=lambda option: option[:2])
    rest = len(options) + len(stuck)
    most = view.max_loaded
    if not most and not scene.knows_memory(view):
        most = max(1, len(view.residencies))  # the engine would make room by itself, of whatever it likes
    while True:
        too_many = 0 < most <= rest
        short_of = scene.refusal(view, model, tuple(unload), new.context_tokens)
        if not (too_many or short_of):
            break
        if not options:
            return stuck[0] if stuck else short_of or "it may hold no model"
        unload.append(options.pop(0)[2])
        rest -= 1
    loss = sum(loss_ms(view, residency, new, scene) for residency in unload)
    if want.copies and not want.forced and want.wait_ms <= scene.load_ms(backend.id, model) * _patience(loss, scene):
        return "a further copy does not pay for so short a wait"
    seats = sum(_seats(view, residency, scene) for residency in unload)
    return Place(backend.id, new.asked, tuple(unload), loss, seats)


def best_place(want: Want, views: list[BackendView], scene: Scene) -> tuple[Place | None, dict[str, str]]:
    """The backend of these that loads what is wanted at the least cost; and what stands in the way at the others."""
    obstacles: dict[str, str] = {}
    found: list[tuple[float, int, int, int, float, str, Place]] = []
    for view in views:
        place = place_at(want, view, scene)
        if isinstance(place, str):
            obstacles[view.backend.id] = place
            continue
        cost_ms = place.loss_ms + DRAIN_MS * place.seats
        if not view.room and not place.seats:
            cost_ms += DRAIN_MS  # once loaded it waits for a seat of another model
        if view.health is Health.SUSPECT:
            cost_ms += scene.policy.suspect_ms
        found.append(
            (
                cost_ms, len(place.unload), len(view.residencies), view.taken, view.last_used_s, view.backend.id,
                place,
            )
        )  # fmt: skip
    return (min(found, key=lambda entry: entry[:6])[6] if found else None), obstacles


def why_it_stays(want: Want, view: BackendView, residency: Residency, new: Residency, scene: Scene) -> str | None:
    """Why a loaded model must not go now for what is wanted; None: it may."""
    name, backend_id = short(residency.model), view.backend.id
    if is_pinned(view, residency, scene):
        return f"{name} is pinned"
    seats = _seats(view, residency, scene)
    if seats and not want.drains:
        return f"{name} is in use"
    if want.forced:
        return None
    hot, is_last = _asked_for(view, residency, new, scene)
    if not hot:
        return None
    if want.copies:
        if is_last and want.wait_ms <= LAST_COPY_LOADS * scene.load_ms(backend_id, want.wish.model):
            return f"{name} is asked for, and loaded nowhere else"
        gain_ms = _worth_ms(want.wish, new, view, scene) / (want.copies + 1)
        if gain_ms < scene.policy.copy_gain * loss_ms(view, residency, new, scene):
            return f"{name} is asked for as much"
    elif seats and is_last and want.wait_ms < scene.load_ms(backend_id, want.wish.model):
        return f"{name} is in use, and loaded nowhere else"  # it may be idle soon
    resides_s = scene.now_s - scene.since_s(backend_id, residency.model)
    if resides_s >= residence_s(backend_id, residency.model, scene):
        return None
    if seats:
        return f"{name} is in use, and was loaded {resides_s:.0f} s ago"
    idle_s = scene.now_s - max(
        scene.idle_since_s(backend_id, residency.model), scene.since_s(backend_id, residency.model)
    )
    if idle_s >= scene.policy.idle_residence_s or not (is_last or want.copies):
        return None
    return f"{name} is asked for, and was loaded {resides_s:.0f} s ago"


def residence_s(backend_id: str, model: str, scene: Scene) -> float:
    """How long a model that is asked for stays at least."""
    load_s = scene.load_ms(backend_id, model) / 1000.0
    return max(scene.policy.residence_s, scene.policy.residence_loads * load_s)


def serves_pin(view: BackendView, residency: Residency, pins: Iterable[Pin]) -> bool:
    """Whether a loaded model is what a pin wants there: as long as it is, it stays for ever."""
    return any(
        pin.backend_id in ("", view.backend.id) and suits(pin.model, pin.runner, residency, view.backend)
        for pin in pins
    )


def only_copies(model: str, going: Collection[str], views: Sequence[BackendView], pins: Iterable[Pin]) -> list[str]:
    """Of the backends that a model is to be unloaded from: those without which a pin would have no copy left."""
    found: set[str] = set()
    for pin in pins:
        copies = [
            (view.backend, residency)
            for view in views
            if pin.backend_id in ("", view.backend.id)
            and (residency := holding(view, pin.model, pin.runner)) is not None
            and residency.model not in view.closing
        ]
        leaving = [one for one, residency in copies if one.id in going and shares(model, residency, one)]
        if len(leaving) == len(copies):
            found.update(one.id for one in leaving)
    return sorted(found)


def is_pinned(view: BackendView, residency: Residency, scene: Scene) -> bool:
    """Whether a loaded model shall stay. One that is pinned to no backend stays in one place, whichever."""
    backend = view.backend
    for pin in scene.pins:
        if pin.backend_id not in ("", backend.id) or not suits(pin.model, pin.runner, residency, backend):
            continue
        if pin.backend_id or not any(
            holding(other, pin.model, pin.runner) is not None for other in scene.views if other is not view
        ):
            return True
    return False


def loss_ms(view: BackendView, residency: Residency, new: Residency, scene: Scene) -> float:
    """Work that loses its place with a loaded model when another one comes: its share, and a load if it is the last."""
    lost, is_last = 0.0, False
    for _wish, work_ms, copies in _wishes(view, residency, new, scene):
        lost += work_ms / max(1, copies)
        is_last = is_last or copies <= 1
    return lost + scene.load_ms(view.backend.id, residency.model) if is_last else lost


def _seats(view: BackendView, residency: Residency, scene: Scene) -> int:
    backend_id = view.backend.id
    ended_s = scene.idle_since_s(backend_id, residency.model)
    return seats_in_use(view, residency, ended_s, scene.looked_s(backend_id))


def _asked_for(view: BackendView, residency: Residency, new: Residency, scene: Scene) -> tuple[bool, bool]:
    """Whether a loaded model is asked for, and whether for some of that it is the only one."""
    copies = [copies for _, _, copies in _wishes(view, residency, new, scene)]
    return bool(copies), any(number <= 1 for number in copies)


def _wishes(view: BackendView, residency: Residency, new: Residency, scene: Scene) -> list[tuple[Wish, float, int]]:
    """What is asked for and runs on a loaded model, but would not on the one that comes."""
    key = view.backend.id, residency.model
    known = scene.runs_on.get(key)
    if known is None:
        known = scene.runs_on[key] = [
            (wish, work_ms, scene.copies.get(wish, 0))
            for wish, work_ms in scene.demand
            if suits(wish.model, wish.runner, residency, view.backend)
        ]
    return [entry for entry in known if not suits(entry[0].model, entry[0].runner, new, view.backend)]


def _worth_ms(wanted: Wish, new: Residency, view: BackendView, scene: Scene) -> float:
    """Work that was asked for and could run on what comes."""
    key = view.backend.id, wanted
    known = scene.worth_ms.get(key)
    if known is None:
        known = scene.worth_ms[key] = sum(
            work_ms for wish, work_ms in scene.demand if suits(wish.model, wish.runner, new, view.backend)
        )
    return known


def _patience(loss: float, scene: Scene) -> float:
    """How many loads the wait must take before a further copy is loaded."""
    return max(1.0, scene.policy.copy_gain) if loss > 0.0 else EMPTY_CARD_LOADS
