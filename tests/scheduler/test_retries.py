import hypothesis.strategies as st
from hypothesis import given

from scheduler.retries import RetryBudget


def spent(budget: RetryBudget, now_s: float, tries: int, ratio: float, floor_per_s: float) -> int:
    return sum(budget.spend(now_s, ratio, floor_per_s) for _ in range(tries))


def test_the_floor_allows_retries_without_any_traffic() -> None:
    assert spent(RetryBudget(10.0), 0.0, 50, ratio=0.2, floor_per_s=1.0) == 10


def test_traffic_earns_its_share() -> None:
    budget = RetryBudget(10.0)
    for _ in range(100):
        budget.arrived(5.0)

    assert spent(budget, 5.0, 100, ratio=0.2, floor_per_s=0.0) == 20
    assert budget.left(5.0, 0.2, 0.0) == 0.0


def test_what_was_spent_comes_back_after_the_window() -> None:
    budget = RetryBudget(10.0)

    assert spent(budget, 0.0, 50, ratio=0.0, floor_per_s=0.5) == 5
    assert spent(budget, 5.0, 50, ratio=0.0, floor_per_s=0.5) == 0
    assert spent(budget, 11.0, 50, ratio=0.0, floor_per_s=0.5) == 5


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=200))
def test_never_more_retries_in_a_window_than_earned(steps: list[tuple[float, bool]]) -> None:
    budget = RetryBudget(5.0)
    now_s = 0.0
    arrivals: list[float] = []
    retries: list[float] = []
    for pause_s, is_retry in steps:
        now_s += pause_s
        if not is_retry:
            budget.arrived(now_s)
            arrivals.append(now_s)
        elif budget.spend(now_s, 0.5, 0.4):
            retries.append(now_s)
        recent = [at_s for at_s in retries if at_s > now_s - 4.7]  # the window less one bucket
        assert len(recent) <= 0.5 * len(arrivals) + 0.4 * 5.0
