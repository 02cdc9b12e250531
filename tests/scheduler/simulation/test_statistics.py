import pytest

from scheduler.simulation.records import Record
from scheduler.simulation.statistics import figures, interval, over_seeds, percentile


def record(number: int, ttft_ms: float = 100.0, **more: object) -> Record:
    """The n-th request, one a second, answered after half a second more."""
    arrived_ms = 1000.0 * number
    first_ms = arrived_ms + ttft_ms
    values: dict[str, object] = {
        "backend": number % 2,
        "started_ms": arrived_ms,
        "first_token_ms": first_ms,
        "ended_ms": first_ms + 500.0,
        "cached_tokens": 50,
        "predicted_tokens": 100,
        **more,
    }
    return Record(f"{number:03}", "a" if number % 4 else "b", arrived_ms, 200, 10, **values)  # type: ignore[arg-type]


def test_the_first_tenth_by_arrival_is_left_out() -> None:
    records = [record(number, 9000.0 if number < 10 else 100.0) for number in range(100)]

    found = figures(reversed(records), 2, 1)

    assert found.requests == 90
    assert found.ttft_mean_s == pytest.approx(0.1)
    assert found.e2e_mean_s == pytest.approx(0.6)
    assert found.hit_rate == pytest.approx(0.25)
    assert found.imbalance == pytest.approx(1.0)
    assert found.busy_mean == pytest.approx(0.3, rel=0.05)
    assert found.output_tokens_per_s == pytest.approx(10, rel=0.02)
    assert found.predicted_right == 1.0


def test_refusals_are_counted_apart() -> None:
    records = [record(number, rejected="queue-full" if number % 2 else "") for number in range(100)]

    found = figures(records, 2, 1)

    assert (found.requests, found.rejected) == (45, 45)
    assert found.imbalance == 2.0


def test_figures_of_one_tenant() -> None:
    records = [record(number, 400.0 if number % 4 == 0 else 100.0) for number in range(100)]

    assert figures(records, 2, 1, "b").ttft_mean_s == pytest.approx(0.4)
    assert figures(records, 2, 1, "a").ttft_p99_s == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no request"):
        figures(records, 2, 1, "c")


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2), (0.75, 3), (1, 4), (0.25, 1.5)])
def test_percentiles_lie_between_values(share: float, value: float) -> None:
    assert percentile([1, 2, 2, 4] if share == 0.5 else [1, 1.5, 2, 3, 4], share) == value
    with pytest.raises(ValueError, match="no values"):
        percentile([], share)


def test_intervals_follow_students_t() -> None:
    assert interval([5.0]).half_width is None
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.303 / 3**0.5)
    assert interval([1.0, 2.0] * 50).half_width == pytest.approx(1.96 * 0.5025 / 10, rel=0.001)
    with pytest.raises(ValueError, match="no values"):
        interval([])


def test_figures_over_seeds() -> None:
    runs = [figures([record(number, ttft) for number in range(20)], 2, 1) for ttft in (100.0, 300.0)]

    found = over_seeds(runs)

    assert found["ttft_mean_s"].mean == pytest.approx(0.2)
    assert found["ttft_mean_s"].half_width == pytest.approx(12.706 * 0.1)
    assert found["rejected"].half_width == 0
