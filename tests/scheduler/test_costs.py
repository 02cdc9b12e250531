import msgspec

from scheduler import costs
from scheduler.case import Case
from scheduler.domain import BackendView, Engine, Health, Residency
from scheduler.outlook import NOTHING, Fit
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, backend, request

POLICY = Policy(active_ms=10.0, suspect_ms=7000.0, cooling_ms=9000.0)
OLLAMA = BackendView(backend(engine=Engine.OLLAMA), Health.READY)
CASE = Case(request(), POLICY, now_s=10.0)


def view(**changes: object) -> BackendView:
    return msgspec.structs.replace(OLLAMA, **changes)


def test_each_busy_seat_costs_whoever_holds_it() -> None:
    assert costs.active(view(seats_leased=2, seats_elsewhere=1, foreign_busy=3), CASE, NOTHING) == 60.0


def test_what_is_not_cached_costs_its_own_time_and_that_of_its_neighbours() -> None:
    case = Case(request(), Policy(prefill_weight=1.0, stall_weight=0.5, pending_weight=0.7, loss_weight=2.0), 10.0)
    fit = Fit(slot=1, fresh_tokens=900, prefill_ms=80.0, loss_ms=15.0, pending_ms=100.0, copy_ms=7.0)
    seen = view(seats_leased=2, seats_elsewhere=1)

    terms = {name: costs.TERMS[name](seen, case, fit) for name in ("prefill", "stall", "pending", "loss", "copies")}

    assert terms == {"prefill": 80.0, "stall": 120.0, "pending": 70.0, "loss": 30.0, "copies": 7.0}


def test_without_weights_nothing_counts() -> None:
    bare = Policy(prefill_weight=0.0, pending_weight=0.0, loss_weight=0.0, active_ms=0.0)
    fit = Fit(slot=1, fresh_tokens=900, prefill_ms=80.0, loss_ms=15.0, pending_ms=100.0, copy_ms=7.0)
    seen = view(seats_leased=2, residencies=(Residency(MODEL),))

    assert {term(seen, Case(request(), bare, 10.0), fit) for term in costs.TERMS.values()} == {0.0}


def test_suspicion_and_cooling_cost() -> None:
    assert costs.suspect(OLLAMA, CASE, NOTHING) == 0.0
    assert costs.suspect(view(health=Health.SUSPECT), CASE, NOTHING) == 7000.0
    assert costs.cooling(OLLAMA, CASE, NOTHING) == 0.0
    assert costs.cooling(view(cooling_until_s=10.5), CASE, NOTHING) == 9000.0


def test_the_default_price_of_suspicion_is_above_all_that_load_can_cost() -> None:
    policy = Policy()

    assert policy.suspect_ms > 64 * policy.active_ms
    assert policy.cooling_ms > policy.suspect_ms
