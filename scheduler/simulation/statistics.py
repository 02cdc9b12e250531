"""Figures of runs: percentiles of one, means with confidence intervals over several. Knows no router."""

from collections.abc import Iterable, Sequence
from math import sqrt

import msgspec

from scheduler.simulation.records import Record

WARM_UP = 0.1
"""Share of the requests, the first by arrival, that is left out: the caches are empty then."""

NEAR_TOKENS = 64
"""One block of a canonical prompt: what a prediction may be off and still be right."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom; any table of statistics has them.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_MANY = 1.96


class Figures(msgspec.Struct, frozen=True):
    """One run, without its warm-up. Times in seconds."""

    requests: int
    """Answered ones, which all figures but `rejected` are about."""
    rejected: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    hit_rate: float
    """Share of all prompt tokens that were not computed."""
    busy_mean: float
    """Share of all slots in use, while most arrive: from the first arrival until nine tenths have arrived."""
    imbalance: float
    """Busy slot time of the busiest card by the mean; 1: even."""
    output_tokens_per_s: float
    """Over the time from the first arrival to the last end."""
    predicted_right: float
    """Share of requests of which the router believed as many tokens to be cached as were, within `NEAR_TOKENS`."""


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds and half the width of its 95 % confidence interval; None with one seed."""

    mean: float
    half_width: float | None = None


def figures(records: Iterable[Record], cards: int, slots: int, tenant: str | None = None) -> Figures:
    """Figures of one run.

    Args:
        records: of all requests.
        cards: engines.
        slots: of each.
        tenant: count the requests of this tenant only; busy share and imbalance are then theirs alone.

    Raises:
        ValueError: no request was answered after the warm-up.
    """
    ordered = sorted(records, key=lambda record: (record.arrived_ms, record.id))
    kept = [record for record in ordered[int(len(ordered) * WARM_UP) :] if tenant in (None, record.tenant)]
    done = [record for record in kept if not record.rejected]
    if not done:
        raise ValueError("no request was answered after the warm-up")
    ttfts = sorted([record.ttft_ms / 1000 for record in done])
    whole = sorted([record.e2e_ms / 1000 for record in done])
    first_ms, last_ms = done[0].arrived_ms, done[int(len(done) * 0.9)].arrived_ms
    busy_ms = [0.0] * cards
    overlap_ms = 0.0
    for record in done:
        busy_ms[record.backend] += record.ended_ms - record.started_ms
        overlap_ms += min(record.ended_ms, last_ms) - min(record.started_ms, last_ms)
    end_ms = max(record.ended_ms for record in done)
    prompt_tokens = sum(record.prompt_tokens for record in done)
    return Figures(
        requests=len(done),
        rejected=len(kept) - len(done),
        ttft_mean_s=sum(ttfts) / len(ttfts),
        ttft_p50_s=percentile(ttfts, 0.50),
        ttft_p95_s=percentile(ttfts, 0.95),
        ttft_p99_s=percentile(ttfts, 0.99),
        e2e_mean_s=sum(whole) / len(whole),
        e2e_p99_s=percentile(whole, 0.99),
        hit_rate=sum(record.cached_tokens for record in done) / prompt_tokens,
        busy_mean=overlap_ms / max(1e-9, (last_ms - first_ms) * cards * slots),
        imbalance=max(busy_ms) / (sum(busy_ms) / cards),
        output_tokens_per_s=sum(record.output_tokens for record in done) / ((end_ms - first_ms) / 1000),
        predicted_right=sum(abs(r.cached_tokens - r.predicted_tokens) <= NEAR_TOKENS for r in done) / len(done),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of ascending values does not exceed, between two of them in proportion.

    Raises:
        ValueError: there are no values.
    """
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interval(values: Sequence[float]) -> Interval:
    """Mean over independent runs, with Student's t.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    mean = sum(values) / len(values)
    freedom = len(values) - 1
    if not freedom:
        return Interval(mean)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    return Interval(mean, quantile * deviation / sqrt(len(values)))


def over_seeds(runs: Sequence[Figures]) -> dict[str, Interval]:
    """Each figure of several runs that differ in their seed only, by its name.

    Raises:
        ValueError: there are no runs.
    """
    names = Figures.__struct_fields__
    return {name: interval([float(getattr(run, name)) for run in runs]) for name in names}
