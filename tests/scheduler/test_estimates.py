import itertools
import math
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from scheduler.domain import Measured
from scheduler.estimates import KEPT, KEPT_ANSWERS, PRIOR_OUTPUT_TOKENS, PRIOR_TOKENS_PER_BYTE, Estimates
from scheduler.priors import Rates, rates_for

RATES = rates_for("NVIDIA GeForce RTX 4090")
TRUTH = Rates(12.0, 0.05, 2e-5, 0.0, 0.0, 4.0, 1.2, "made up")


def learn(
    estimates: Estimates, measured: Measured, running: int = 1, *, backend: str = "a", model: str = "m",
    tenant: str = "t", prompt_bytes: int = 0, limit: int | None = None,
) -> None:  # fmt: skip
    estimates.learn(backend, model, tenant, prompt_bytes, measured, running, 5.0, limit)


def prefill_ms(rates: Rates, fresh: int, cached: int) -> float:
    return (
        math.ceil(fresh / 512) * rates.batch_ms + fresh * rates.token_ms + fresh * (cached + fresh / 2) * rates.pair_ms
    )


def noisy(random: Random, value: float, outliers: float) -> float:
    if random.random() < outliers:
        return value * random.choice([10.0, 0.1])
    return value * math.exp(random.gauss(0.0, 0.1))


def answer(random: Random, rates: Rates, running: int, outliers: float) -> Measured:
    """What an engine with these rates reports of a random request."""
    fresh, cached = int(10 ** random.uniform(0.5, 3.9)), random.choice([0, 0, 500, 3000, 8000])
    output = random.randint(8, 400)
    step_ms = rates.step_first_ms + (running - 1) * rates.step_further_ms
    return Measured(
        prompt_tokens=fresh + cached,
        cached_tokens=cached,
        output_tokens=output,
        prompt_ms=noisy(random, prefill_ms(rates, fresh, cached), outliers),
        output_ms=noisy(random, step_ms * (output - 1), outliers),
    )


@pytest.fixture
def estimates() -> Estimates:
    known = Estimates()
    known.prior("a", "m", RATES)
    return known


@pytest.mark.parametrize(
    ("fresh", "cached", "expected_ms"),
    [
        (0, 0, 0.0),
        (-3, 100, 0.0),
        (1, 0, 6.6 + 0.093),
        (1, 8000, 6.6 + 0.093 + 0.04),
        (512, 0, 6.6 + 47.616 + 0.655),
        (513, 0, 13.2 + 47.709 + 0.658),
        (4096, 0, 52.8 + 380.93 + 41.94),
        (1000, 4000, 13.2 + 93.0 + 22.5),
    ],
)
def test_before_the_first_answer_prefill_is_the_prior(
    estimates: Estimates, fresh: int, cached: int, expected_ms: float
) -> None:
    assert estimates.prefill_ms("a", "m", fresh, cached) == pytest.approx(expected_ms, rel=1e-3)


def test_before_the_first_answer_all_is_the_prior(estimates: Estimates) -> None:
    assert estimates.step_ms("a", "m", 1) == pytest.approx(7.1)
    assert estimates.step_ms("a", "m", 16) == pytest.approx(7.1 + 15 * 0.6)
    assert estimates.copy_ms("a", "m") == 0.0
    assert estimates.output_tokens("m", "t", None) == PRIOR_OUTPUT_TOKENS
    assert estimates.output_tokens("m", "t", 16) == 16
    assert estimates.tokens_per_byte("m") == PRIOR_TOKENS_PER_BYTE


def test_a_model_without_a_prior_has_that_of_its_backend_and_else_that_of_an_unknown_card() -> None:
    estimates = Estimates()
    estimates.prior("a", "", RATES)

    assert estimates.prefill_ms("a", "x", 512) == pytest.approx(prefill_ms(RATES, 512, 0))
    assert estimates.prefill_ms("b", "x", 512) == pytest.approx(prefill_ms(rates_for(""), 512, 0))
    assert estimates.table(0.0, {}) == []


def test_what_was_learned_begins_at_the_prior_of_the_backend() -> None:
    estimates = Estimates()
    estimates.prior("a", "", TRUTH)
    learn(estimates, Measured(output_tokens=5), model="x")

    assert estimates.step_ms("a", "x", 3) == pytest.approx(4.0 + 2 * 1.2)


def test_a_prior_counts_until_the_first_answer_that_told_times(estimates: Estimates) -> None:
    learn(estimates, Measured(output_tokens=5))
    estimates.prior("a", "m", TRUTH)
    assert estimates.step_ms("a", "m", 1) == pytest.approx(4.0)

    learn(estimates, Measured(output_tokens=101, output_ms=500.0))
    learned_ms = estimates.step_ms("a", "m", 1)
    estimates.prior("a", "m", RATES)
    assert estimates.step_ms("a", "m", 1) == learned_ms != 4.0


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(0.0, 0.1))
def test_a_linear_truth_is_found_under_noise_and_outliers(seed: int, outliers: float) -> None:
    random, estimates = Random(seed), Estimates()
    estimates.prior("a", "m", RATES)
    for _ in range(1500):
        running = random.randint(1, 16)
        learn(estimates, answer(random, TRUTH, running, outliers), running)

    for fresh, cached in [(5, 0), (64, 500), (512, 0), (1000, 3000), (4096, 0), (8000, 8000)]:
        truth_ms = prefill_ms(TRUTH, fresh, cached)
        assert estimates.prefill_ms("a", "m", fresh, cached) == pytest.approx(truth_ms, rel=0.25), (fresh, cached)
    for running in (1, 4, 8, 16):
        assert estimates.step_ms("a", "m", running) == pytest.approx(4.0 + (running - 1) * 1.2, rel=0.2), running


@pytest.mark.parametrize("factor", [0.02, 0.3, 5.0, 40.0])
def test_a_prior_that_is_far_off_is_left_within_a_few_answers(estimates: Estimates, factor: float) -> None:
    for _ in range(12):
        truth_ms = factor * prefill_ms(RATES, 900, 0)
        learn(estimates, Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=truth_ms))

    assert estimates.prefill_ms("a", "m", 900) == pytest.approx(factor * prefill_ms(RATES, 900, 0), rel=0.3)


def test_one_answer_moves_an_estimate_by_a_factor_of_three_at_most(estimates: Estimates) -> None:
    before_ms = estimates.prefill_ms("a", "m", 900)
    learn(estimates, Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=1e8))

    assert before_ms < estimates.prefill_ms("a", "m", 900) <= 3 * before_ms


def test_each_backend_and_model_has_its_own_times(estimates: Estimates) -> None:
    estimates.prior("b", "m", RATES)
    estimates.prior("a", "n", RATES)
    for _ in range(50):
        learn(
            estimates, Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=1000.0, output_tokens=11, output_ms=400.0)
        )

    assert estimates.prefill_ms("a", "m", 900) == pytest.approx(1000.0, rel=0.05)
    assert estimates.step_ms("a", "m", 1) == pytest.approx(40.0, rel=0.05)
    for backend, model in [("b", "m"), ("a", "n")]:
        assert estimates.prefill_ms(backend, model, 900) == pytest.approx(prefill_ms(RATES, 900, 0))
        assert estimates.step_ms(backend, model, 1) == pytest.approx(RATES.step_first_ms)


@pytest.mark.parametrize(
    "measured",
    [
        Measured(),
        Measured(prompt_tokens=900, prompt_ms=5000.0),  # nobody told what of it was cached
        Measured(prompt_tokens=900, cached_tokens=900, prompt_ms=5000.0),
        Measured(prompt_tokens=900, cached_tokens=950, prompt_ms=5000.0),
        Measured(prompt_tokens=900, cached_tokens=-5, prompt_ms=5000.0),
        Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=float("nan")),
        Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=float("inf")),
        Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=-1.0),
        Measured(prompt_tokens=900, cached_tokens=0, prompt_ms=0.0),
        Measured(prompt_tokens=10**400, cached_tokens=0, prompt_ms=1.0),
        Measured(output_tokens=1, output_ms=5000.0),
        Measured(output_tokens=7, output_ms=5000.0),  # too short to tell
        Measured(output_tokens=0, output_ms=5000.0),
        Measured(output_tokens=50, output_ms=float("nan")),
        Measured(output_tokens=10**400, output_ms=1.0),
    ],
)
def test_what_cannot_be_is_passed_over(estimates: Estimates, measured: Measured) -> None:
    for _ in range(5):
        learn(estimates, measured)

    assert estimates.prefill_ms("a", "m", 900) == pytest.approx(prefill_ms(RATES, 900, 0))
    assert estimates.step_ms("a", "m", 1) == pytest.approx(RATES.step_first_ms)
    assert estimates.copy_ms("a", "m") == 0.0


# Cold requests on an H200 whose other slots held as much: the engine's own time, and what the client saw.
@pytest.mark.parametrize(
    ("prompt_ms", "first_byte_ms"), [(365.0, 650.0), (754.0, 1330.0), (1451.0, 2199.0), (6.0, 345.0)]
)
def test_copies_are_what_the_engine_does_not_count(
    estimates: Estimates, prompt_ms: float, first_byte_ms: float
) -> None:
    for _ in range(100):
        learn(
            estimates,
            Measured(prompt_ms=prompt_ms, first_byte_ms=first_byte_ms, output_tokens=200, output_ms=2000.0),
        )

    assert estimates.copy_ms("a", "m") == pytest.approx(first_byte_ms - prompt_ms, rel=0.02)


@pytest.mark.parametrize(
    ("output_tokens", "output_ms", "first_byte_ms"),
    [(200, 2000.0, 2105.0), (200, None, 2105.0), (None, 2000.0, 300.0), (200, 2000.0, 60.0)],
    ids=["came at once", "not told", "length not told", "clocks disagree"],
)
def test_no_copy_is_seen_where_there_may_be_none(
    estimates: Estimates, output_tokens: int | None, output_ms: float | None, first_byte_ms: float
) -> None:
    learn(
        estimates,
        Measured(prompt_ms=100.0, first_byte_ms=first_byte_ms, output_tokens=output_tokens, output_ms=output_ms),
    )

    assert estimates.copy_ms("a", "m") == 0.0


def test_answers_lengths_are_learned_by_tenant_and_limit() -> None:
    estimates = Estimates()
    for _ in range(100):
        learn(estimates, Measured(output_tokens=40), tenant="short")
        learn(estimates, Measured(output_tokens=900), tenant="long")
        learn(estimates, Measured(output_tokens=16), tenant="long", limit=16)

    assert estimates.output_tokens("m", "short", None) == pytest.approx(40, rel=0.05)
    assert estimates.output_tokens("m", "long", None) == pytest.approx(900, rel=0.05)
    assert estimates.output_tokens("m", "long", 16) == pytest.approx(16, rel=0.05)
    assert estimates.output_tokens("m", "long", 10) == 10
    assert 40 < estimates.output_tokens("m", "who?", None) < 900
    assert estimates.output_tokens("other", "short", None) == PRIOR_OUTPUT_TOKENS
    assert estimates.output_tokens("m", "short", 0) == 1


def test_tokens_per_byte_are_learned_by_model() -> None:
    estimates = Estimates()
    for _ in range(100):
        learn(estimates, Measured(prompt_tokens=400), prompt_bytes=1000)
        learn(estimates, Measured(prompt_tokens=60), prompt_bytes=63)  # too short
        learn(estimates, Measured(prompt_tokens=3000), prompt_bytes=1000)  # an image

    assert estimates.tokens_per_byte("m") == pytest.approx(0.4, rel=0.01)
    assert estimates.tokens_per_byte("n") == PRIOR_TOKENS_PER_BYTE


@pytest.mark.parametrize(
    ("slots", "target_ms", "limit"),
    [(16, 50.0, 16), (64, 20.0, 22), (16, 10.0, 5), (16, 7.1, 1), (16, 0.1, 1), (0, 50.0, 1)],
)
def test_the_running_limit_keeps_the_target(estimates: Estimates, slots: int, target_ms: float, limit: int) -> None:
    assert estimates.running_limit("a", "m", slots, target_ms) == limit


def test_a_running_limit_falls_at_once_and_rises_late(estimates: Estimates) -> None:
    assert estimates.running_limit("a", "m", 64, 20.0) == 22
    assert estimates.running_limit("a", "m", 64, 19.0) == 20
    assert estimates.running_limit("a", "m", 64, 20.0) == 20
    assert estimates.running_limit("a", "m", 64, 30.0) == 31  # 25.1 ms: 85 % of 30 ms is 25.5


@given(st.integers(1, 64), st.integers(1, 64), TARGETS := st.floats(0.1, 500.0), TARGETS, st.integers(0, 3), TARGETS)
def test_the_running_limit_is_monotone(
    slots: int, further: int, target_ms: float, more_ms: float, asked_before: int, before_ms: float
) -> None:
    few, many = Estimates(), Estimates()
    for known in (few, many):
        known.prior("a", "m", RATES)
        for _ in range(asked_before):
            known.running_limit("a", "m", slots, before_ms)
    low = few.running_limit("a", "m", slots, target_ms)
    high = many.running_limit("a", "m", slots + further, target_ms + more_ms)

    assert 1 <= low <= slots
    assert low <= high


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_move_the_running_limit_to_and_fro(seed: int) -> None:
    random, estimates = Random(seed), Estimates()
    estimates.prior("a", "m", RATES)
    limits = []
    for number in range(3000):
        limit = estimates.running_limit("a", "m", 32, 16.0)
        if number >= 500:
            limits.append(limit)
        running = random.randint(1, limit)
        learn(estimates, answer(random, TRUTH, running, 0.05), running)
    turns = [after - before for before, after in itertools.pairwise(limits) if after != before]

    assert len(turns) <= 5, turns
    assert 0.7 * 16.0 <= estimates.step_ms("a", "m", limits[-1]) <= 16.0


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    estimates = Estimates()
    for number in range(2 * KEPT):
        estimates.prior(f"b{number}", "", RATES)
        learn(estimates, Measured(output_tokens=9, output_ms=800.0), backend=f"b{number}", model=f"m{number}")
    for number in range(KEPT_ANSWERS):
        learn(estimates, Measured(output_tokens=9), tenant=f"t{number}")

    assert len(estimates.table(0.0, {})) == KEPT
    assert estimates.step_ms("b0", "m0", 1) == estimates.step_ms("nobody", "m0", 1)
    kept = (estimates._pairs, estimates._backends, estimates._outputs, estimates._tokens_per_byte)
    assert [len(part) for part in kept] == [KEPT, KEPT, KEPT_ANSWERS, 0]


def test_a_backend_that_left_is_forgotten(estimates: Estimates) -> None:
    estimates.prior("b", "m", TRUTH)
    estimates.forget("a")
    estimates.forget("nobody")

    assert [row.backend_id for row in estimates.table(0.0, {})] == ["b"]
    assert estimates.step_ms("a", "m", 1) == pytest.approx(rates_for("").step_first_ms)


def test_the_table_tells_what_is_believed(estimates: Estimates) -> None:
    estimates.prior("b", "m", TRUTH)
    learn(estimates, Measured(output_tokens=256, output_ms=255 * 7.1))
    first, second = estimates.table(7.0, {"a": 4})

    assert (first.backend_id, first.model, first.limit, first.samples, first.learned_s_ago) == ("a", "m", 4, 1, 2.0)
    assert first.prefill_tokens_per_s == pytest.approx(1024 / prefill_ms(RATES, 1024, 0) * 1000)
    assert (first.step_ms_1, first.step_ms_at_limit) == pytest.approx((7.1, 7.1 + 3 * 0.6))
    assert (first.output_tokens, first.tokens_per_byte, first.copy_ms) == (256.0, 0.25, 0.0)
    assert (second.backend_id, second.limit, second.samples, second.learned_s_ago) == ("b", 1, 0, None)
    assert second.source == "made up"
    assert msgspec.json.decode(msgspec.json.encode(first))["step_ms_1"] == pytest.approx(7.1)


COUNTS = st.one_of(st.none(), st.integers(-10, 10**7), st.integers())
MILLISECONDS = st.one_of(st.none(), st.floats(0, 1e5), st.floats())
MEASURED = st.builds(
    Measured,
    prompt_tokens=COUNTS,
    cached_tokens=COUNTS,
    output_tokens=COUNTS,
    prompt_ms=MILLISECONDS,
    output_ms=MILLISECONDS,
    first_byte_ms=MILLISECONDS,
)
ANY_RATES = st.sampled_from([RATES, TRUTH, rates_for(None), Rates(0, 0, 0, 0, 0, 0, 0, "nothing")])


@given(ANY_RATES, st.lists(st.tuples(MEASURED, st.integers(-2, 300), st.integers(0, 10**9), COUNTS), max_size=40))
def test_whatever_is_reported_estimates_are_finite_and_not_negative(
    rates: Rates, answers: list[tuple[Measured, int, int, int | None]]
) -> None:
    estimates = Estimates()
    estimates.prior("a", "m", rates)
    for measured, running, prompt_bytes, limit in answers:
        learn(estimates, measured, running, prompt_bytes=prompt_bytes, limit=limit)
    estimates.running_limit("a", "m", 16, 50.0)
    row = estimates.table(0.0, {})[0]
    believed = [
        estimates.prefill_ms("a", "m", 1),
        estimates.prefill_ms("a", "m", 100_000, 100_000),
        estimates.output_tokens("m", "t", 100),
        row.prefill_tokens_per_s, row.step_ms_1, row.step_ms_at_limit, row.copy_ms, row.output_tokens,
        row.tokens_per_byte,
    ]  # fmt: skip

    assert all(math.isfinite(value) and value >= 0 for value in believed), believed
    assert (
        estimates.prefill_ms("a", "m", 10)
        <= estimates.prefill_ms("a", "m", 1000)
        <= estimates.prefill_ms("a", "m", 1000, 500)
    )
