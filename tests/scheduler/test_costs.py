import msgspec
import pytest

from scheduler import costs
from scheduler.case import Case
from scheduler.domain import BackendView, Engine, Health, Residency
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

POLICY = Policy(active_ms=10.0, load_ms=500.0, suspect_ms=7000.0, cooling_ms=9000.0)
OLLAMA = BackendView(backend(engine=Engine.OLLAMA), Health.READY)
CASE = Case(request(), POLICY, now_s=10.0)


def view(**changes: object) -> BackendView:
    return msgspec.structs.replace(OLLAMA, **changes)


def test_each_busy_seat_costs_whoever_holds_it() -> None:
    assert costs.active(view(seats_leased=2, seats_elsewhere=1, foreign_busy=3), CASE) == 60.0


@pytest.mark.parametrize(
    ("seen", "model", "expected_ms"),
    [
        pytest.param(OLLAMA, MODEL, 500.0, id="not-loaded"),
        pytest.param(view(residencies=(Residency(OTHER_MODEL),)), MODEL, 500.0, id="another-loaded"),
        pytest.param(view(residencies=(Residency(OTHER_MODEL), Residency(MODEL))), MODEL, 0.0, id="loaded"),
        pytest.param(OLLAMA, None, 0.0, id="any-model"),
        pytest.param(view(backend=backend(engine=Engine.LLAMA_SERVER)), MODEL, 0.0, id="llama-server-loads-at-start"),
    ],
)
def test_load(seen: BackendView, model: str | None, expected_ms: float) -> None:
    assert costs.load(seen, Case(request(model=model), POLICY, now_s=10.0)) == expected_ms


def test_suspicion_and_cooling_cost() -> None:
    assert costs.suspect(OLLAMA, CASE) == 0.0
    assert costs.suspect(view(health=Health.SUSPECT), CASE) == 7000.0
    assert costs.cooling(OLLAMA, CASE) == 0.0
    assert costs.cooling(view(cooling_until_s=10.5), CASE) == 9000.0


def test_the_default_price_of_suspicion_is_above_all_that_load_can_cost() -> None:
    policy = Policy()

    assert policy.suspect_ms > policy.load_ms + 64 * policy.active_ms
    assert policy.cooling_ms > policy.suspect_ms
