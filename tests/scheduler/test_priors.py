import math

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from scheduler.priors import BATCH_TOKENS, SIZE_8B_BYTES, Rates, rates_for


def prefill_ms(rates: Rates, tokens: int) -> float:
    return math.ceil(tokens / BATCH_TOKENS) * rates.batch_ms + tokens * (rates.token_ms + rates.pair_ms * tokens / 2)


def step_ms(rates: Rates, running: int) -> float:
    return rates.step_first_ms + (running - 1) * rates.step_further_ms


# Measured on one H200 with a model of 4.2 GB: llama-server's own times.
@pytest.mark.parametrize(
    ("tokens", "measured_ms"), [(64, 13), (256, 29), (512, 47), (1024, 91), (2048, 181), (4096, 365), (8192, 754)]
)
def test_an_h200_prefills_as_measured(tokens: int, measured_ms: float) -> None:
    assert prefill_ms(rates_for("NVIDIA H200"), tokens) == pytest.approx(measured_ms, rel=0.16)


@pytest.mark.parametrize(
    ("running", "measured_ms"),
    [(1, 3.3), (2, 3.6), (4, 4.8), (6, 6.4), (8, 7.5), (12, 9.3), (16, 10.5), (24, 14.2), (32, 18.4)],
)
def test_an_h200_decodes_as_measured(running: int, measured_ms: float) -> None:
    assert step_ms(rates_for("NVIDIA H200"), running) == pytest.approx(measured_ms, rel=0.15)


# The same card with a model of 17.9 GB: what the scaling makes of the 8B row.
@pytest.mark.parametrize(("tokens", "measured_ms"), [(512, 181), (2048, 719), (4096, 1451)])
def test_a_32b_model_prefills_as_measured(tokens: int, measured_ms: float) -> None:
    assert prefill_ms(rates_for("NVIDIA H200", 17_900_000_000), tokens) == pytest.approx(measured_ms, rel=0.16)


@pytest.mark.parametrize(("running", "measured_ms"), [(1, 10.9), (4, 14.4)])
def test_a_32b_model_decodes_nearly_as_measured(running: int, measured_ms: float) -> None:
    assert step_ms(rates_for("NVIDIA H200", 17_900_000_000), running) == pytest.approx(measured_ms, rel=0.2)


# Batches of a 4090 (llama.cpp pull request 7860): tokens/s at 16 to 512 tokens a batch.
@pytest.mark.parametrize(("tokens", "tokens_per_s"), [(16, 1946), (64, 5349), (256, 8555), (512, 9279)])
def test_a_4090_prefills_as_published(tokens: int, tokens_per_s: float) -> None:
    assert tokens / prefill_ms(rates_for("NVIDIA GeForce RTX 4090"), tokens) * 1000 == pytest.approx(
        tokens_per_s, rel=0.05
    )


def test_a_3090_decodes_small_batches_as_published() -> None:
    rates = rates_for("NVIDIA GeForce RTX 3090")

    assert rates.step_further_ms == pytest.approx((14.0 - 6.5) / 7, rel=0.02)
    assert rates.step_first_ms == pytest.approx(1000 / 115, rel=0.1)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("NVIDIA H200", "H200, measured"),
        ("NVIDIA H200 NVL", "H200, measured"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090, published"),
        ("nvidia geforce rtx 4090 laptop gpu", "RTX 4090, published"),
        ("NVIDIA GeForce RTX 3090 Ti", "3090, published"),
        ("NVIDIA GeForce RTX 4080 SUPER", "4080, published"),
        ("NVIDIA GeForce RTX 4070 Ti", "4070 TI, published"),
        ("NVIDIA GeForce RTX 4070", "unknown card"),
        ("NVIDIA A100-SXM4-80GB", "A100, published"),
        ("NVIDIA RTX A1000", "unknown card"),
        ("NVIDIA H100 80GB HBM3", "H100, published"),
        ("NVIDIA L40S", "L40S, published"),
        ("NVIDIA L40", "L40, published"),
        ("NVIDIA L4", "unknown card"),
        ("NVIDIA RTX 6000 Ada Generation", "6000 ADA, published"),
        ("Quadro RTX 6000", "unknown card"),
        ("", "unknown card"),
        ("cpu", "CPU, one core"),
        (None, "CPU, one core"),
    ],
)
def test_a_card_is_known_by_the_words_of_its_name(name: str | None, source: str) -> None:
    assert rates_for(name).source.startswith(source)


def test_faster_cards_have_lower_rates() -> None:
    names = ["NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA L40S", "NVIDIA GeForce RTX 3090", None]
    prefills = [prefill_ms(rates_for(name), 2048) for name in names]

    assert prefills == sorted(prefills)


def test_an_unknown_size_counts_as_8b() -> None:
    assert rates_for("NVIDIA H200") == rates_for("NVIDIA H200", int(SIZE_8B_BYTES)) == rates_for("NVIDIA H200", 0)


def test_a_small_model_on_one_core_is_as_measured() -> None:
    rates = rates_for(None, 98_400_000)

    assert (rates.batch_ms, rates.token_ms) == pytest.approx((4.0, 2.2))


@given(st.one_of(st.none(), st.text(max_size=30)), st.integers(1, 10**12), st.integers(1, 10**12))
def test_rates_are_positive_and_grow_with_the_model(name: str | None, one: int, other: int) -> None:
    small, large = (list(msgspec.structs.asdict(rates_for(name, size)).values())[:-1] for size in sorted((one, other)))

    assert all(rate > 0 and math.isfinite(rate) for rate in small + large)
    assert all(less <= more for less, more in zip(small, large, strict=True))
