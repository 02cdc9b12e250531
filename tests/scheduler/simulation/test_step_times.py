import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulation.step_times import PRESETS, attention_pairs, batch_ms, prefill_ms, step_ms

CARD = PRESETS["4090"]


def test_nothing_to_do_takes_no_time() -> None:
    assert step_ms(CARD, 0, 0, 0, 0) == 0


def test_a_decode_step_grows_by_about_half_a_millisecond_per_sequence() -> None:
    steps = [step_ms(CARD, running, 0, 0, 0) for running in range(1, 17)]
    assert all(0.3 < later - earlier < 0.7 for earlier, later in itertools.pairwise(steps))


@pytest.mark.parametrize(("running", "milliseconds"), [(1, 3.3), (2, 3.6), (4, 4.8), (8, 7.5), (16, 10.5), (32, 18.4)])
def test_the_measured_card_is_met_within_a_quarter(running: int, milliseconds: float) -> None:
    assert step_ms(PRESETS["h200"], running, 0, 0, 0) == pytest.approx(milliseconds, rel=0.25)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(512, 47), (1024, 91), (2048, 181), (4096, 365), (8192, 754)])
def test_the_measured_prefill_is_met_within_a_twentieth(tokens: int, milliseconds: float) -> None:
    assert prefill_ms(PRESETS["h200"], tokens) == pytest.approx(milliseconds, rel=0.05)


def test_batching_pays() -> None:
    alone = 1 / step_ms(CARD, 1, 1000, 0, 0)
    assert 4 / step_ms(CARD, 4, 4000, 0, 0) > 2.5 * alone


def test_prefill_reads_the_weights_once_per_microbatch() -> None:
    assert step_ms(CARD, 0, 0, 513, 0) - step_ms(CARD, 0, 0, 512, 0) > CARD.fixed_ms


@given(st.integers(1, 32), st.integers(0, 200_000), st.integers(1, 512), st.integers(0, 32_000))
def test_a_mixed_batch_costs_what_its_parts_cost(decoding: int, context: int, prefill: int, before: int) -> None:
    mixed = step_ms(CARD, decoding, context, prefill, before)

    assert mixed == pytest.approx(step_ms(CARD, decoding, context, 0, 0) + step_ms(CARD, 0, 0, prefill, before))


@given(st.integers(1, 512), st.integers(1, 512), st.integers(0, 9000), st.integers(0, 9000))
def test_prompts_of_one_batch_do_not_look_at_each_other(one: int, other: int, before: int, behind: int) -> None:
    pairs = attention_pairs(one, before) + attention_pairs(other, behind)

    together = batch_ms(CARD, 0, 0, one + other, pairs)

    assert together <= step_ms(CARD, 0, 0, one, before) + step_ms(CARD, 0, 0, other, behind) + 1e-9
