import msgspec
import pytest

from scheduler.case import Case
from scheduler.domain import BackendView, Engine, Health, Operation, Rejection, Request, Residency, SlotState
from scheduler.filters import FILTERS, LASTING, PASSING, could_ever, first_rejection
from scheduler.policy import Policy
from scheduler.runner import Runner
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

READY = BackendView(backend(limit=4), Health.READY)
OLLAMA = BackendView(
    backend(limit=4, engine=Engine.OLLAMA, contexts={MODEL: 4096}, cloud=True),
    Health.READY,
    residencies=(Residency(MODEL, 4096, slots=(SlotState(0, False),)),),
)
"""It has the model loaded, with one slot."""


def view(**changes: object) -> BackendView:
    return msgspec.structs.replace(READY, **changes)


def on(seen: BackendView, **changes: object) -> BackendView:
    return msgspec.structs.replace(seen, **changes)


def case(asked: Request, tried: frozenset[str] = frozenset()) -> Case:
    return Case(asked, Policy(), now_s=10.0, tried=tried)


PLAIN = case(request())


SILENT = view(backend=backend(models=()), health=Health.DOWN)
ALIVE = msgspec.structs.replace(PLAIN, alive=True)


@pytest.mark.parametrize(
    ("seen", "asked", "expected"),
    [
        pytest.param(READY, PLAIN, None, id="takes-it"),
        pytest.param(READY, case(request(model=OTHER_MODEL)), Rejection.UNKNOWN_MODEL, id="other-model"),
        pytest.param(READY, case(request(model=None)), None, id="any-model"),
        pytest.param(OLLAMA, PLAIN, None, id="resident"),
        pytest.param(OLLAMA, case(request(runner=Runner(2048))), None, id="resident-with-more"),
        pytest.param(OLLAMA, case(request(runner=Runner(8192))), Rejection.NOT_LOADED, id="resident-with-less"),
        pytest.param(on(OLLAMA, residencies=()), PLAIN, Rejection.NOT_LOADED, id="not-resident"),
        pytest.param(
            on(OLLAMA, residencies=()),
            case(request(seats=0, operation=Operation.LOAD)),
            Rejection.NOT_LOADED,
            id="load",
        ),
        pytest.param(on(OLLAMA, residencies=()), case(request(seats=0, operation=Operation.UNLOAD)), None, id="unload"),
        pytest.param(on(OLLAMA, residencies=()), case(request(model=None)), None, id="any-model-at-an-ollama"),
        pytest.param(on(OLLAMA, closing=frozenset({MODEL})), PLAIN, Rejection.NOT_LOADED, id="closing"),
        pytest.param(
            on(OLLAMA, seats_leased=1, seats_by_model={MODEL: 1}),
            PLAIN,
            Rejection.NO_ROOM,
            id="its-own-slots-are-taken",
        ),
        pytest.param(
            on(OLLAMA, residencies=(), seats_leased=4), PLAIN, Rejection.NOT_LOADED, id="resident-before-room"
        ),
        pytest.param(OLLAMA, case(request(model="big:cloud", cloud=True, seats=0)), None, id="cloud"),
        pytest.param(READY, case(request(cloud=True, seats=0)), Rejection.UNKNOWN_MODEL, id="cloud-goes-elsewhere"),
        pytest.param(
            view(backend=backend(models=()), health=Health.STARTING), PLAIN, Rejection.STARTING, id="models-not-told"
        ),
        pytest.param(view(backend=backend(models=())), PLAIN, Rejection.UNKNOWN_MODEL, id="ready-without-models"),
        pytest.param(SILENT, PLAIN, Rejection.DOWN, id="never-told-its-models-and-nothing-else-is-up"),
        pytest.param(SILENT, ALIVE, Rejection.UNKNOWN_MODEL, id="never-told-its-models-while-another-is-up"),
        pytest.param(READY, case(request(engines=frozenset({Engine.OLLAMA}))), Rejection.UNSUPPORTED, id="engine"),
        pytest.param(
            view(backend=backend(capabilities=[Operation.EMBED])), PLAIN, Rejection.UNSUPPORTED, id="cannot-do-that"
        ),
        pytest.param(READY, case(request(seats=5)), Rejection.TOO_MANY_SLOTS, id="too-large-even-when-idle"),
        pytest.param(view(health=Health.STARTING), PLAIN, Rejection.STARTING, id="starting"),
        pytest.param(view(health=Health.DOWN), PLAIN, Rejection.DOWN, id="down"),
        pytest.param(view(health=Health.DOWN, draining=True), PLAIN, Rejection.DOWN, id="down-and-drained"),
        pytest.param(view(health=Health.DRAINING, draining=True), PLAIN, Rejection.DRAINING, id="drained"),
        pytest.param(view(health=Health.SUSPECT), PLAIN, None, id="suspect-is-a-cost-not-a-bar"),
        pytest.param(READY, case(request(), frozenset({"a"})), Rejection.TRIED, id="tried"),
        pytest.param(view(cooling_until_s=10.1), PLAIN, Rejection.COOLING, id="cooling"),
        pytest.param(view(cooling_until_s=10.0), PLAIN, None, id="cooled"),
        pytest.param(view(seats_leased=4), PLAIN, Rejection.NO_ROOM, id="full-of-ours"),
        pytest.param(view(seats_leased=1, seats_elsewhere=2, foreign_busy=1), PLAIN, Rejection.NO_ROOM, id="full"),
        pytest.param(view(seats_leased=9), PLAIN, Rejection.NO_ROOM, id="more-than-full"),
        pytest.param(view(seats_leased=2), case(request(seats=3)), Rejection.NO_ROOM, id="too-little-room"),
        pytest.param(view(seats_leased=4), case(request(seats=0)), None, id="needs-no-slot"),
        pytest.param(view(held_for="r9"), PLAIN, Rejection.NO_ROOM, id="kept-for-another"),
        pytest.param(view(held_for="r1"), PLAIN, None, id="kept-for-this"),
        pytest.param(view(held_for="r9"), case(request(seats=0)), None, id="kept-seats-bar-only-seats"),
    ],
)
def test_first_rejection(seen: BackendView, asked: Case, expected: Rejection | None) -> None:
    assert first_rejection(seen, asked) is expected


def test_filters_can_be_left_out() -> None:
    cooling_and_full = view(cooling_until_s=11.0, seats_leased=4)

    assert first_rejection(cooling_and_full, PLAIN, frozenset({"cooling"})) is Rejection.NO_ROOM
    assert first_rejection(cooling_and_full, PLAIN, frozenset({"cooling", "room"})) is None


@pytest.mark.parametrize(
    ("seen", "asked", "expected"),
    [
        pytest.param(view(health=Health.DOWN, cooling_until_s=99.0, seats_leased=4), PLAIN, True, id="may-recover"),
        pytest.param(READY, case(request(), frozenset({"a"})), True, id="tried-may-be-tried-again"),
        pytest.param(READY, case(request(seats=5)), False, id="never-large-enough"),
        pytest.param(READY, case(request(model="x:latest")), False, id="never-has-it"),
    ],
)
def test_could_ever(seen: BackendView, asked: Case, expected: bool) -> None:
    assert could_ever(seen, asked) is expected


def test_every_reason_is_either_lasting_or_passing() -> None:
    lasting = {Rejection.UNKNOWN_MODEL, Rejection.UNSUPPORTED, Rejection.TOO_MANY_SLOTS}
    final = {Rejection.QUEUE_FULL, Rejection.WAITED_TOO_LONG, Rejection.RETRIES_SPENT, Rejection.SHUTTING_DOWN}
    final |= {Rejection.LOAD_FAILED}

    assert lasting | PASSING | final == set(Rejection)
    assert set(LASTING) < set(FILTERS)
    assert MODEL in READY.backend.models
