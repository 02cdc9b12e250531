"""Where a model is loaded."""

import pytest

from scheduler.domain import Backend, BackendView, Engine, Health, Operation, Residency, SlotState, Snapshot
from scheduler.residencies import (
    needs_residency,
    resident,
    room_for,
    runs_on,
    seats_in_use,
    seats_on,
    told_runner,
    unloadable,
    why_not_resident,
)
from scheduler.runner import Runner
from tests.scheduler.cards import ollama
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

SLOTS = (SlotState(0, False), SlotState(1, False))


def view(name: str, engine: Engine, *models: str) -> BackendView:
    residencies = tuple(Residency(model) for model in models)
    return BackendView(Backend(name, engine, 1, 1), Health.READY, residencies=residencies)


def test_only_ollamas_that_have_it_loaded() -> None:
    snapshot = Snapshot(
        0.0,
        (
            view("a", Engine.OLLAMA, "m:latest"),
            view("b", Engine.OLLAMA, "n:latest"),
            view("c", Engine.LLAMA_SERVER, "m:latest"),
            view("d", Engine.OLLAMA, "n:latest", "m:latest"),
        ),
    )

    assert unloadable(snapshot, "m:latest") == ("a", "d")


def seen(*residencies: Residency, limit: int = 4, **more: object) -> BackendView:
    known = ollama("a", limit=limit, weights={MODEL: "w", "copy:latest": "w"})
    return BackendView(known, Health.READY, residencies=residencies, **more)  # type: ignore[arg-type]


def test_who_needs_its_model_there() -> None:
    assert needs_residency(request(), ollama())
    assert needs_residency(request(operation=Operation.LOAD, seats=0), ollama())
    assert not needs_residency(request(), backend())
    assert not needs_residency(request(model=None), ollama())
    assert not needs_residency(request(cloud=True), ollama())
    assert not needs_residency(request(operation=Operation.UNLOAD, seats=0), ollama())


def test_what_closes_takes_nothing_new_and_finishes_what_it_has() -> None:
    one = Residency(MODEL, 4096)
    view = seen(one, closing=frozenset({MODEL}))
    assert resident(seen(one), request()) == one
    assert resident(view, request()) is None
    assert runs_on(view, request())
    assert told_runner(view, request(runner=Runner())) == Runner(4096)
    assert not runs_on(seen(), request())
    assert runs_on(seen(), request(model=None))


@pytest.mark.parametrize(
    ("view", "seats", "expected"),
    [
        pytest.param(seen(), 1, -1, id="not-resident"),
        pytest.param(seen(Residency(MODEL, 8192)), 1, -1, id="with-other-options"),
        pytest.param(seen(Residency(MODEL)), 1, 4, id="slots-not-known"),
        pytest.param(seen(Residency(MODEL, slots=SLOTS)), 1, 2, id="its-own-slots"),
        pytest.param(
            seen(Residency(MODEL, slots=SLOTS), seats_leased=1, seats_by_model={MODEL: 1}), 1, 1, id="one-taken"
        ),
        pytest.param(
            seen(Residency(MODEL, slots=SLOTS), seats_leased=2, seats_by_model={"copy:latest": 2}),
            1,
            0,
            id="by-another-name",
        ),
        pytest.param(
            seen(Residency(MODEL, slots=SLOTS), seats_leased=3, seats_by_model={OTHER_MODEL: 3}),
            1,
            1,
            id="the-running-limit",
        ),
        pytest.param(seen(Residency(MODEL, slots=SLOTS)), 3, 3, id="more-than-it-has-when-nothing-runs"),
        pytest.param(
            seen(Residency(MODEL, slots=SLOTS), seats_leased=1, seats_by_model={MODEL: 1}), 3, 1, id="not-beside"
        ),
    ],
)
def test_room(view: BackendView, seats: int, expected: int) -> None:
    assert room_for(view, request(seats=seats)) == expected


def test_room_elsewhere_is_the_running_limit_s() -> None:
    assert room_for(BackendView(backend("a", limit=3), Health.READY, 1), request()) == 2


def test_seats_in_use() -> None:
    one = Residency(MODEL, slots=(SlotState(0, True), SlotState(1, True)))
    assert seats_in_use(seen(one), one, ended_s=1.0, looked_s=2.0) == 2, "somebody goes around us"
    assert seats_in_use(seen(one), one, ended_s=2.0, looked_s=1.0) == 0, "the look may show what has ended since"
    ours = seen(one, seats_leased=1, seats_by_model={"copy:latest": 1})
    assert seats_on(ours, one) == seats_in_use(ours, one, 1.0, 2.0) == 1
    assert seats_in_use(seen(one, seats_elsewhere=2), one, 2.0, 1.0) == 2, "of whatever model"


def test_what_is_missing_is_said() -> None:
    assert why_not_resident(seen(), request()) == "its model is not in memory there"
    assert why_not_resident(seen(Residency(MODEL, 2048)), request(runner=Runner(8192))) == (
        "resident with context 2048, 8192 wanted"
    )
    wish = request(runner=Runner(shift=False))
    assert why_not_resident(seen(Residency(MODEL, 4096)), wish) == "resident with other options than are wanted"


def test_nothing_is_said_of_options_to_who_cannot_hear_it() -> None:
    view = seen(Residency(MODEL, 4096))
    assert told_runner(view, request(runner=Runner(2048))) == Runner(4096)
    assert told_runner(view, request()) is None
    assert told_runner(seen(), request(runner=Runner())) is None
    assert told_runner(BackendView(backend(), Health.READY), request(runner=Runner())) is None
