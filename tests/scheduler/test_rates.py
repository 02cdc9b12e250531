import hypothesis.strategies as st
from hypothesis import given

from scheduler.rates import BUCKETS, SlidingSum


def test_forgets_what_is_older_than_the_window() -> None:
    amounts = SlidingSum(10.0)
    amounts.add(2.0, 100.0)
    amounts.add(3.0, 105.0)

    assert amounts.total(109.0) == 5.0
    assert amounts.total(112.0) == 3.0
    assert amounts.total(116.0) == 0.0
    assert amounts.per_s(116.0) == 0.0


def test_a_long_silence_empties_it_at_once() -> None:
    amounts = SlidingSum(1.0)
    amounts.add(5.0, 1.0)

    assert amounts.total(1e9) == 0.0


def test_time_that_goes_backwards_stands_still() -> None:
    amounts = SlidingSum(10.0)
    amounts.add(1.0, 100.0)
    amounts.add(1.0, 50.0)

    assert amounts.total(100.0) == 2.0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), max_size=60))
def test_is_exact_to_one_bucket(steps: list[tuple[float, int]]) -> None:
    window_s = 10.0
    amounts = SlidingSum(window_s)
    now_s = 1000.0
    added: list[tuple[float, int]] = []
    for pause_s, amount in steps:
        now_s += pause_s
        amounts.add(amount, now_s)
        added.append((now_s, amount))
        width_s = window_s / BUCKETS
        least = sum(amount for at_s, amount in added if at_s > now_s - window_s + width_s)
        most = sum(amount for at_s, amount in added if at_s >= now_s - window_s - 1e-6)
        assert least <= amounts.total(now_s) <= most
