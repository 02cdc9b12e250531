"""Where a model is best loaded: tables of examples."""

from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from scheduler.demand import Wish
from scheduler.domain import BackendView, Health, Residency, SlotState
from scheduler.events import Pin
from scheduler.planning import Place, Scene, Want, best_place, place_at, residence_s
from scheduler.policy import Policy
from scheduler.residencies import holding
from scheduler.runner import Runner
from tests.scheduler.cards import THIRD, ollama
from tests.scheduler.world import MODEL, OTHER_MODEL

NOW_S = 1000.0
POLICY = Policy(residence_s=10.0, residence_loads=4.0, idle_residence_s=2.0, copy_gain=2.0)
LOAD_MS = 2000.0
FIRST = Want(Wish(MODEL, None), drains=True)
MORE = msgspec.structs.replace(FIRST, copies=1, wait_ms=60_000.0)
PIN = msgspec.structs.replace(FIRST, forced=True, drains=False)
WANTED = msgspec.structs.replace(FIRST, forced=True)


def view(name: str, *models: str, most: int = 1, busy: Mapping[str, int] | None = None, **more: Any) -> BackendView:
    seats = dict(busy or {})
    residencies = tuple(Residency(model, 4096) for model in models)
    settings = {"health": Health.READY, "residencies": residencies, "max_loaded": most, **more}
    return BackendView(
        ollama(name, max_loaded=most), seats_leased=sum(seats.values()), seats_by_model=seats, **settings
    )


def scene(
    *views: BackendView,
    demand: Mapping[str, float] | None = None,
    since_s: float = -1000.0,
    idle_s: float = 100.0,
    pins: tuple[Pin, ...] = (),
    refusal: str | None = None,
    room: int = 0,
    memory: bool = True,
) -> Scene:
    """`since_s`: for how long all is loaded; `idle_s`: for how long nothing has run; `room`: bytes that must go."""
    wishes = tuple((Wish(model, None), work_ms) for model, work_ms in (demand or {}).items())
    copies = {wish: sum(holding(each, wish.model, None) is not None for each in views) for wish, _ in wishes}

    def refuses(_view: BackendView, _model: str, unload: tuple[Residency, ...], _context: int | None) -> str | None:
        return refusal if sum(one.gpu_bytes or 0 for one in unload) < room else None

    return Scene(
        NOW_S, POLICY, views, wishes, copies, pins, lambda _b, _m: NOW_S + since_s, lambda _b, _m: NOW_S - idle_s,
        lambda _b: NOW_S, lambda _b, _m: LOAD_MS, refuses, lambda _v: memory,
    )  # fmt: skip


def outcome(want: Want, seen: Scene) -> tuple[str, ...] | dict[str, str]:
    place, obstacles = best_place(want, list(seen.views), seen)
    return obstacles if place is None else (place.backend_id, *(one.model for one in place.unload))


NEW, OLD = -5.0, -60.0
HOT = {OTHER_MODEL: 1000.0, MODEL: 9000.0}
WARM = {OTHER_MODEL: 8000.0, MODEL: 9000.0}


@pytest.mark.parametrize(
    ("want", "seen", "expected"),
    [
        # A first copy
        pytest.param(FIRST, scene(view("a", OTHER_MODEL), view("b")), ("b",), id="where-nothing-goes"),
        pytest.param(FIRST, scene(view("a", OTHER_MODEL, most=2)), ("a",), id="it-may-hold-two"),
        pytest.param(FIRST, scene(view("a", OTHER_MODEL, most=0)), ("a",), id="nobody-knows-how-many"),
        pytest.param(FIRST, scene(view("a", OTHER_MODEL)), ("a", OTHER_MODEL), id="what-nobody-asks-for-goes"),
        pytest.param(FIRST, scene(view("a", OTHER_MODEL), since_s=0.0), ("a", OTHER_MODEL), id="however-new-it-is"),
        pytest.param(
            FIRST, scene(view("a", OTHER_MODEL), view("b", THIRD), demand=HOT), ("b", THIRD), id="the-least-demand"
        ),
        pytest.param(
            FIRST,
            scene(
                view("a", OTHER_MODEL),
                view("b", THIRD),
                view("c", OTHER_MODEL),
                demand={OTHER_MODEL: 5000.0, THIRD: 900.0},
            ),
            ("a", OTHER_MODEL),
            id="one-of-two-rather-than-the-only-one",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), demand=HOT, since_s=NEW, idle_s=1.0),
            {"a": "llama3 is asked for, and was loaded 5 s ago"},
            id="what-is-new-and-asked-for-stays-a-while",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), demand=HOT, since_s=NEW, idle_s=3.0),
            ("a", OTHER_MODEL),
            id="not-if-idle",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), demand=HOT, since_s=OLD, idle_s=0.1),
            ("a", OTHER_MODEL),
            id="nor-for-long",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), view("b", OTHER_MODEL), demand=HOT, since_s=NEW, idle_s=0.1),
            ("a", OTHER_MODEL),
            id="nor-if-there-is-another",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL, busy={OTHER_MODEL: 1}), view("b", OTHER_MODEL), demand=HOT),
            ("b", OTHER_MODEL),
            id="an-idle-one-before-one-in-use",
        ),
        pytest.param(
            FIRST,
            scene(
                view("a", OTHER_MODEL, busy={OTHER_MODEL: 1}),
                view("b", THIRD, busy={THIRD: 2}),
                demand=WARM | {THIRD: 8000.0},
            ),
            {"a": "llama3 is in use, and loaded nowhere else", "b": "third is in use, and loaded nowhere else"},
            id="the-only-one-in-use-may-be-idle-soon",
        ),
        pytest.param(
            msgspec.structs.replace(FIRST, wait_ms=LOAD_MS),
            scene(view("a", OTHER_MODEL, busy={OTHER_MODEL: 1}), demand=WARM),
            ("a", OTHER_MODEL),
            id="but-is-drained-once-that-took-as-long-as-a-load",
        ),
        pytest.param(
            FIRST,
            scene(
                view("a", OTHER_MODEL, busy={OTHER_MODEL: 1}),
                view("b", OTHER_MODEL, busy={OTHER_MODEL: 1}),
                demand=HOT,
                since_s=NEW,
            ),
            dict.fromkeys("ab", "llama3 is in use, and was loaded 5 s ago"),
            id="what-is-in-use-and-new-stays",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), pins=(Pin(OTHER_MODEL, "a"),)),
            {"a": "llama3 is pinned"},
            id="what-is-pinned-stays",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), view("b", OTHER_MODEL), pins=(Pin(OTHER_MODEL),)),
            ("a", OTHER_MODEL),
            id="pinned-anywhere-is-one-copy",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), pins=(Pin(OTHER_MODEL),)),
            {"a": "llama3 is pinned"},
            id="the-last-stays",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL), pins=(Pin(OTHER_MODEL, "b"),)),
            ("a", OTHER_MODEL),
            id="pinned-elsewhere",
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL, THIRD, most=2), demand={OTHER_MODEL: 100.0, THIRD: 50.0}),
            ("a", THIRD),
            id="of-two-the-one-that-is-asked-for-less",
        ),
        # Memory
        pytest.param(FIRST, scene(view("a", most=0), refusal="too large", room=1), {"a": "too large"}, id="no-memory"),
        pytest.param(
            FIRST,
            scene(
                view("a", most=0, residencies=(Residency(OTHER_MODEL, gpu_bytes=5), Residency(THIRD, gpu_bytes=5))),
                refusal="too large",
                room=6,
            ),
            ("a", OTHER_MODEL, THIRD),
            id="as-many-go-as-memory-needs",
        ),
        pytest.param(
            FIRST,
            scene(
                view("a", most=0, residencies=(Residency(OTHER_MODEL, gpu_bytes=5), Residency(THIRD, gpu_bytes=5))),
                refusal="too large",
                room=6,
                pins=(Pin(THIRD, "a"),),
            ),
            {"a": "third is pinned"},
            id="but-none-that-is-pinned",
        ),
        pytest.param(FIRST, scene(view("a", OTHER_MODEL, most=0)), ("a",), id="where-memory-is-known-it-counts"),
        pytest.param(
            FIRST, scene(view("a", OTHER_MODEL, most=0), memory=False), ("a", OTHER_MODEL), id="else-one-at-a-time"
        ),
        pytest.param(
            FIRST,
            scene(view("a", OTHER_MODEL, THIRD, most=0), demand={THIRD: 50.0}, memory=False),
            ("a", OTHER_MODEL),
            id="or-as-many-as-it-was-seen-to-hold",
        ),
        # A further copy
        pytest.param(MORE, scene(view("b")), ("b",), id="where-nothing-goes-for-it"),
        pytest.param(
            msgspec.structs.replace(MORE, wait_ms=0.1 * LOAD_MS),
            scene(view("b")),
            {"b": "a further copy does not pay for so short a wait"},
            id="not-for-a-short-wait",
        ),
        pytest.param(
            msgspec.structs.replace(MORE, wait_ms=4.0 * LOAD_MS),
            scene(view("b", OTHER_MODEL), demand=HOT),
            {"b": "llama3 is asked for, and loaded nowhere else"},
            id="not-for-the-only-one-of-another",
        ),
        pytest.param(
            msgspec.structs.replace(MORE, wait_ms=4.1 * LOAD_MS),
            scene(view("b", OTHER_MODEL), demand={MODEL: 1e6, OTHER_MODEL: 1.0}),
            ("b", OTHER_MODEL),
            id="but-where-the-line-is-long",
        ),
        pytest.param(
            MORE, scene(view("b", OTHER_MODEL), view("c", OTHER_MODEL), demand=HOT), ("b", OTHER_MODEL), id="it-pays"
        ),
        pytest.param(
            MORE,
            scene(view("b", OTHER_MODEL), view("c", OTHER_MODEL), demand=WARM),
            dict.fromkeys("bc", "llama3 is asked for as much"),
            id="it-does-not-pay",
        ),
        pytest.param(
            msgspec.structs.replace(MORE, wait_ms=1.5 * LOAD_MS),
            scene(view("b", OTHER_MODEL), view("c", OTHER_MODEL), demand=HOT),
            dict.fromkeys("bc", "a further copy does not pay for so short a wait"),
            id="what-goes-makes-it-dearer",
        ),
        # Operators
        pytest.param(
            PIN, scene(view("a", OTHER_MODEL), demand=HOT, since_s=NEW), ("a", OTHER_MODEL), id="a-pin-goes-first"
        ),
        pytest.param(
            PIN,
            scene(view("a", OTHER_MODEL, busy={OTHER_MODEL: 1})),
            {"a": "llama3 is in use"},
            id="but-drains-nothing",
        ),
        pytest.param(
            WANTED,
            scene(view("a", OTHER_MODEL, busy={OTHER_MODEL: 1}), demand=HOT),
            ("a", OTHER_MODEL),
            id="wanted-drains",
        ),
        # Use that no lease of known models tells
        pytest.param(
            PIN,
            scene(view("a", OTHER_MODEL, seats_elsewhere=1)),
            {"a": "llama3 is in use"},
            id="somebody-s-seat-is-unknown",
        ),
        pytest.param(
            PIN,
            scene(view("a", residencies=(Residency(OTHER_MODEL, slots=(SlotState(0, True),)),))),
            {"a": "llama3 is in use"},
            id="the-engine-shows-use",
        ),
        # The same weights
        pytest.param(
            msgspec.structs.replace(FIRST, wish=Wish(MODEL, Runner(8192))),
            scene(view("a", MODEL, busy={MODEL: 1})),
            ("a", MODEL),
            id="other-options-replace-it-once-idle",
        ),
        pytest.param(
            msgspec.structs.replace(FIRST, wish=Wish(MODEL, Runner(8192)), drains=False),
            scene(view("a", MODEL, busy={MODEL: 1})),
            {"a": "qwen3 is in use"},
            id="not-while-in-use",
        ),
        # What else decides
        pytest.param(
            FIRST,
            scene(view("a", health=Health.SUSPECT), view("b", OTHER_MODEL)),
            ("b", OTHER_MODEL),
            id="not-a-suspect",
        ),
        pytest.param(
            FIRST,
            scene(
                view("a", OTHER_MODEL, most=2, busy={OTHER_MODEL: 2}),
                view("b", OTHER_MODEL, most=2, busy={OTHER_MODEL: 1}),
            ),
            ("b",),
            id="where-there-is-a-seat",
        ),
        pytest.param(
            FIRST, scene(view("a", last_used_s=9.0), view("b", last_used_s=8.0)), ("b",), id="the-least-lately-used"
        ),
    ],
)
def test_where(want: Want, seen: Scene, expected: tuple[str, ...] | dict[str, str]) -> None:
    assert outcome(want, seen) == expected


def test_where_it_is_loaded_only_its_time_changes() -> None:
    seen = scene(view("a", MODEL, busy={MODEL: 2}))
    assert place_at(FIRST, seen.views[0], seen) == Place("a", Runner(4096))


def test_a_model_stays_in_proportion_to_its_load() -> None:
    seen = scene(view("a"))
    assert residence_s("a", MODEL, seen) == 10.0
    slow = msgspec.structs.replace(seen, load_ms=lambda _b, _m: 60_000.0)
    assert residence_s("a", MODEL, slow) == 240.0


MODELS = st.sampled_from([MODEL, OTHER_MODEL, THIRD])
VIEWS = st.builds(
    lambda name, models, most, busy: view(name, *models, most=most, busy=busy),
    st.sampled_from("abc"),
    st.lists(MODELS, unique=True),
    st.integers(0, 3),
    st.dictionaries(MODELS, st.integers(1, 2), max_size=2),
)


@given(
    views=st.lists(VIEWS, unique_by=lambda each: each.backend.id, max_size=3),
    demand=st.dictionaries(MODELS, st.floats(1.0, 1e5)),
    since_s=st.floats(-100.0, 0.0),
    idle_s=st.floats(0.0, 100.0),
    pins=st.lists(st.builds(Pin, MODELS, st.sampled_from(["", "a", "b"])), max_size=2),
    want=st.builds(
        Want,
        st.builds(Wish, MODELS, st.sampled_from([None, Runner(), Runner(8192)])),
        drains=st.booleans(),
        forced=st.booleans(),
        copies=st.integers(0, 2),
        wait_ms=st.floats(0.0, 1e5),
    ),
)
def test_nothing_pinned_goes_nothing_in_use_without_leave_and_no_more_stay_than_may(
    views: list[BackendView], demand: dict[str, float], since_s: float, idle_s: float, pins: list[Pin], want: Want
) -> None:
    seen = scene(*views, demand=demand, since_s=since_s, idle_s=idle_s, pins=tuple(pins))

    place, obstacles = best_place(want, views, seen)

    if place is None:
        assert obstacles.keys() == {each.backend.id for each in views}
        return
    chosen = next(each for each in views if each.backend.id == place.backend_id)
    gone = {one.model for one in place.unload}
    assert not any(pin.backend_id == place.backend_id and pin.model in gone for pin in pins)
    assert want.drains or not any(chosen.seats_by_model.get(model) for model in gone)
    left = [one.model for one in chosen.residencies if one.model not in gone and one.model != want.wish.model]
    if chosen.backend.max_loaded and holding(chosen, want.wish.model, want.wish.runner) is None:
        assert len(left) < chosen.backend.max_loaded
    assert best_place(want, views, seen)[0] == place
