from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.returns import EDGES_S, MEMORY, PRIOR_S, Returns

AGES_S = st.floats(0, 1e5)


def test_before_anything_is_known_the_chance_falls_evenly() -> None:
    returns = Returns()
    assert returns.chance(0.0) > 0.99
    assert returns.chance(PRIOR_S) == pytest.approx(0.37, abs=0.05)
    assert returns.chance(3 * PRIOR_S) == pytest.approx(0.05, abs=0.03)
    assert returns.chance(EDGES_S[-1]) == returns.chance(1e9) == 0.0


def learned(think_s: float, goes_on: float, seed: int, count: int = 3000) -> Returns:
    """Conversations that go on with a chance, after an exponential time; slots are overwritten after ten minutes."""
    random, returns = Random(seed), Returns()
    for _ in range(count):
        pause_s = random.expovariate(1 / think_s) if random.random() < goes_on else 600.0
        returns.observe(min(pause_s, 600.0), returned=pause_s < 600.0)
    return returns


@pytest.mark.parametrize("think_s", [5.0, 12.0, 60.0])
def test_the_chance_is_that_of_the_conversations_seen(think_s: float) -> None:
    returns = learned(think_s, 0.7, seed=1)
    assert returns.chance(0.0) == pytest.approx(0.7, abs=0.06)
    # Bayes: of those that are silent so long, the share that goes on.
    for age_s, silent in ((think_s, 0.368), (3 * think_s, 0.0498)):
        assert returns.chance(age_s) == pytest.approx(0.7 * silent / (0.7 * silent + 0.3), abs=0.1)


def test_what_was_overwritten_says_little_about_later_ages() -> None:
    returns = Returns()
    for _ in range(1000):
        returns.observe(1.0, returned=False)
    assert returns.chance(2.0) == pytest.approx(Returns().chance(2.0), abs=1e-9)


def test_new_habits_take_over() -> None:
    returns = learned(5.0, 1.0, seed=2, count=2 * MEMORY)
    for _ in range(2 * MEMORY):
        returns.observe(100.0, returned=False)
    assert returns.chance(0.0) < 0.5


@given(st.lists(st.tuples(AGES_S, st.booleans()), max_size=60), AGES_S, AGES_S)
def test_a_chance_is_a_chance_and_never_grows(seen: list[tuple[float, bool]], one_s: float, other_s: float) -> None:
    returns = Returns()
    for age_s, returned in seen:
        returns.observe(age_s, returned=returned)
    low, high = sorted((one_s, other_s))
    assert 0.0 <= returns.chance(high) <= returns.chance(low) <= 1.0


def test_another_proxy_goes_on_with_the_same_chances() -> None:
    returns, other = Returns(), Returns()
    for number in range(37):
        returns.observe(3.0 + number, returned=number % 3 == 0)

    other.restore(returns.picture())

    for one in (returns, other):
        for age_s in range(10):
            one.observe(float(age_s), returned=True)
    assert [returns.chance(age_s) for age_s in range(100)] == [other.chance(age_s) for age_s in range(100)]
    before = other.picture()
    other.restore(msgspec.structs.replace(before, events=(1.0,)))
    assert other.picture() == before, "of another version: nothing is taken over"
