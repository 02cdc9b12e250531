import itertools
import math
from collections import OrderedDict
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.learning import CLAMP, KNOTS, Gain, Mean, Steps, gain_of_time, keep, rising
from scheduler.priors import rates_for

RATES = rates_for("NVIDIA GeForce RTX 4090")
TIMES = st.floats(1e-3, 1e9)
RUNNING = st.integers(1, 200)


def noisy(random: Random, value: float, outliers: float) -> float:
    """A sample: 10 % of noise; a share of outliers, ten times too much or too little."""
    if random.random() < outliers:
        return value * random.choice([10.0, 0.1])
    return value * math.exp(random.gauss(0.0, 0.1))


def test_the_first_samples_move_more_than_later_ones() -> None:
    gain = Gain(0.01, 1.0)
    corrections = [gain.correction(0.005) for _ in range(100)]

    assert corrections[0] == pytest.approx(0.005 / 3)
    assert corrections == sorted(corrections, reverse=True)
    assert corrections[-1] == pytest.approx(0.005 * 0.05)


def test_an_outlier_moves_no_more_than_a_sample_at_the_edge_of_the_usual() -> None:
    gain = Gain(0.01, 1.0)
    for number in range(200):
        gain.correction(0.1 if number % 2 else -0.1)

    assert gain.correction(100.0) <= 0.05 * 0.2 * 1.01


def test_a_lasting_change_is_followed() -> None:
    gain, value = gain_of_time(), 0.0
    for _ in range(500):
        value += gain.correction(0.0 - value)
    for _ in range(100):
        value += gain.correction(2.0 - value)

    assert value == pytest.approx(2.0, abs=0.05)


@given(st.integers(0, 2**32), st.floats(0.02, 50.0), st.floats(0.0, 0.1))
def test_a_logarithm_is_found_under_noise_and_outliers(seed: int, truth: float, outliers: float) -> None:
    random, gain, value = Random(seed), gain_of_time(), 0.0
    for _ in range(300):
        value += gain.correction(math.log(noisy(random, truth, outliers)) - value)

    assert math.exp(value) == pytest.approx(truth, rel=0.25)


@given(st.floats(1e-6, 1e6), st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=60))
def test_a_mean_stays_within_the_clamp_of_what_it_was(start: float, samples: list[float]) -> None:
    mean = Mean(start)
    for sample in samples:
        before = mean.value
        mean.learn(sample)
        assert before / CLAMP <= mean.value <= before * CLAMP
        assert min(before, sample) * 0.999 <= mean.value <= max(before, sample) * 1.001


def test_a_mean_finds_what_stays_the_same() -> None:
    mean = Mean(256.0)
    for _ in range(200):
        mean.learn(40.0)

    assert mean.value == pytest.approx(40.0, rel=0.01)


def test_without_samples_steps_are_the_prior() -> None:
    steps = Steps(RATES)

    assert [steps.at(running) for running in range(1, 100)] == pytest.approx(
        [RATES.step_first_ms + (running - 1) * RATES.step_further_ms for running in range(1, 100)]
    )
    assert steps.at(0) == steps.at(-5) == steps.at(1)


def test_what_was_learned_at_one_number_scales_the_others() -> None:
    steps, prior = Steps(RATES), Steps(RATES)
    for _ in range(100):
        steps.learn(4, 2.0 * prior.at(4))

    for running in (1, 4, 7, 16, 90):
        assert steps.at(running) == pytest.approx(2.0 * prior.at(running), rel=0.02)


def test_between_two_learned_numbers_the_factor_lies_between() -> None:
    steps, prior = Steps(RATES), Steps(RATES)
    for _ in range(100):
        steps.learn(8, 1.0 * prior.at(8))
        steps.learn(16, 2.0 * prior.at(16))

    assert steps.at(12) == pytest.approx(math.sqrt(2.0) * prior.at(12), rel=0.02)
    assert steps.at(10) == pytest.approx((steps.at(8) + steps.at(12)) / 2)


# What an H200 really did, 8B: not a straight line.
MEASURED = {1: 3.3, 2: 3.6, 4: 4.8, 6: 6.4, 8: 7.5, 12: 9.3, 16: 10.5, 24: 14.2, 32: 18.4}


@pytest.mark.parametrize("seed", range(5))
def test_a_real_card_is_learned_from_the_prior_of_another(seed: int) -> None:
    random, steps = Random(seed), Steps(rates_for("NVIDIA GeForce RTX 3090"))
    for _ in range(2000):
        running = random.choice(list(MEASURED))
        steps.learn(running, noisy(random, MEASURED[running], outliers=0.05))

    for running, measured_ms in MEASURED.items():
        assert steps.at(running) == pytest.approx(measured_ms, rel=0.1), running


@given(st.lists(st.tuples(RUNNING, TIMES), max_size=80))
def test_steps_are_positive_and_never_fall(samples: list[tuple[int, float]]) -> None:
    steps = Steps(RATES)
    for running, sample_ms in samples:
        steps.learn(running, sample_ms)
    times = [steps.at(running) for running in range(1, 300)]

    assert all(math.isfinite(time) and time > 0 for time in times)
    assert all(less <= more * (1 + 1e-9) for less, more in itertools.pairwise(times))


@given(st.sampled_from(KNOTS), st.floats(0.1, 1000.0))
def test_one_number_alone_is_learned_exactly(running: int, truth_ms: float) -> None:
    steps = Steps(RATES)
    for _ in range(400):
        steps.learn(running, truth_ms)

    assert steps.at(running) == pytest.approx(truth_ms, rel=0.05)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([1.0, 2.0, 3.0], [1, 1, 1], [1.0, 2.0, 3.0]),
        ([3.0, 1.0], [1, 1], [2.0, 2.0]),
        ([3.0, 1.0], [3, 1], [2.5, 2.5]),
        ([1.0, 5.0, 3.0, 4.0], [1, 1, 1, 1], [1.0, 4.0, 4.0, 4.0]),
        ([3.0, 2.0, 1.0], [1, 1, 1], [2.0, 2.0, 2.0]),
    ],
)
def test_rising_pools_what_falls(values: list[float], weights: list[float], expected: list[float]) -> None:
    assert rising(values, weights) == pytest.approx(expected)


def test_keep_lets_the_oldest_go() -> None:
    kept: OrderedDict[str, int] = OrderedDict()
    for number, key in enumerate("abacd"):
        keep(kept, key, number, 3)

    assert list(kept.items()) == [("a", 2), ("c", 3), ("d", 4)]


def test_another_proxy_goes_on_with_what_was_learned() -> None:
    steps, other = Steps(rates_for(None)), Steps(rates_for(None))
    mean, gain = Mean(100.0), gain_of_time()
    for number in range(30):
        steps.learn(1 + number % 9, 5.0 + number % 7)
        mean.learn(50.0 + number)
        gain.correction(0.1)

    other.restore(*steps.picture())
    again = Mean(1.0).restore(mean.picture())

    assert [steps.at(running) for running in range(80)] == [other.at(running) for running in range(80)]
    for one in (mean, again):
        one.learn(70.0)
    assert again.value == mean.value
    assert gain_of_time().restore(gain.picture()).correction(0.2) == gain.correction(0.2)
    before = steps.picture()
    steps.restore((1.0,), (None,))
    assert steps.picture() == before, "of another version: nothing is taken over"
