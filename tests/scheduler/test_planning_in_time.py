"""Plans of loads over minutes: four Ollamas in virtual time that hold one model each, clients whose demand shifts.

What is counted here is what `make bench-residency` counts in real time.
"""

import pytest

from scheduler.simulation.statistics import percentile
from tests.bench.residency_figures import loads, needless, reloads, waits
from tests.bench.residency_traffic import MIX, ODD, PLAIN, Kind, Popularity, asks, sine, steady, steps
from tests.scheduler.ollamas import LeastConnections, Ollamas
from tests.scheduler.scheduled_ollamas import Scheduled

DURATION_S, WARM_S, SLOTS = 600.0, 60.0, 4
TOLERANCE_S = 0.05
"""Claims and looks take some milliseconds here."""
TWO, FOUR = ("alpha", "beta"), ("alpha", "beta", "gamma", "delta")
STEPS = steps((9, 1), (1, 9), (9, 1))
SINE = sine(0.1, 0.9)


def both(
    models: tuple[str, ...], popularity: Popularity, seed: int = 1, per_s: float = 1.0
) -> tuple[Scheduled, LeastConnections]:
    """The same clients through the scheduler and through least-connections."""
    clients = asks(seed, DURATION_S, per_s, models, popularity, PLAIN)
    ours, theirs = Scheduled(models=models), LeastConnections()
    ours.run(clients)
    theirs.run(clients)
    return ours, theirs


def loads_of(fleet: Ollamas) -> int:
    return loads(fleet.stays(), to_s=DURATION_S)


def needless_of(fleet: Ollamas) -> int:
    return len(needless(fleet.served, fleet.stays(), SLOTS, TOLERANCE_S))


def ttft_s(fleet: Ollamas) -> float:
    return waits(fleet.served, 1e9, 1.0).mean_s


# Clients that do not agree


@pytest.mark.parametrize("kinds", [MIX, ODD], ids=["mix", "odd"])
@pytest.mark.parametrize("context", [4096, 8192])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_that_do_not_agree_reload_nothing(kinds: tuple[Kind, ...], context: int, seed: int) -> None:
    clients = asks(seed, DURATION_S, 1.0, ("alpha",), steady(1), kinds)
    ours, theirs = Scheduled(context=context), LeastConnections(context=context)
    ours.run(clients)
    theirs.run(clients)
    assert reloads(ours.stays(), WARM_S, DURATION_S) == 0
    assert reloads(theirs.stays(), WARM_S, DURATION_S) > 100
    assert needless_of(ours) == 0
    assert ttft_s(ours) < ttft_s(theirs) / 10


# Demand that shifts


@pytest.mark.parametrize("popularity", [STEPS, SINE], ids=["steps", "sine"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_models_cause_half_the_loads_that_least_connections_does(popularity: Popularity, seed: int) -> None:
    ours, theirs = both(TWO, popularity, seed)
    assert loads_of(ours) <= loads_of(theirs) / 2
    assert needless_of(ours) == 0
    assert ttft_s(ours) < ttft_s(theirs)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_as_many_models_as_cards_stay_where_they_are(seed: int) -> None:
    ours, theirs = both(FOUR, steady(60, 25, 10, 5), seed)
    assert loads_of(ours) <= loads_of(theirs) / 2
    assert needless_of(ours) == 0
    assert ttft_s(ours) < ttft_s(theirs)


@pytest.mark.parametrize("per_s", [0.05, 0.3, 1.0, 2.0, 4.0])
def test_steady_demand_for_two_models_needs_few_loads(per_s: float) -> None:
    ours, _ = both(TWO, steady(1, 1), per_s=per_s)
    assert loads_of(ours) <= 8
    assert needless_of(ours) == 0


@pytest.mark.parametrize("per_s", [0.5, 2.0])
def test_more_models_than_cards_take_turns_and_nobody_starves(per_s: float) -> None:
    models = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
    ours, theirs = both(models, steady(40, 25, 15, 10, 6, 4), per_s=per_s)
    assert loads_of(ours) <= loads_of(theirs) / 2
    # Somebody must give way: while one drains, its slots are free and its clients wait for their turn.
    assert needless_of(ours) <= len(ours.served) / 20
    slowest = {
        model: max(one.started_s - one.arrived_s for one in ours.served if one.model == f"{model}:latest")
        for model in models
    }
    assert max(slowest.values()) < 120.0, slowest


def test_a_rare_model_beside_a_busy_one_gets_its_card() -> None:
    ours, _ = both(TWO, steady(60, 1), per_s=3.0)
    rare = sorted(one.started_s - one.arrived_s for one in ours.served if one.model == "beta:latest")
    assert percentile(rare, 0.5) < 6.0, rare  # a load, and what runs when it comes
    assert rare[-1] < 30.0, rare
    assert loads_of(ours) < 20
