import pytest

from proxy.dialects.times import duration_ns, rfc3339_nano, unix_s, unix_seconds


def test_fractions_lose_their_trailing_zeros() -> None:
    assert rfc3339_nano(1_795_979_616_315_610_770) == "2026-11-29T19:13:36.31561077Z"
    assert rfc3339_nano(1_795_979_616_000_000_001) == "2026-11-29T19:13:36.000000001Z"
    assert rfc3339_nano(1_795_979_616_000_000_000) == "2026-11-29T19:13:36Z"


def test_reading_times() -> None:
    assert unix_s("2026-11-29T19:12:43.799875269Z") == 1_795_979_563
    assert unix_s("") == unix_s("yesterday") == 0


def test_durations_are_whole_microseconds() -> None:
    assert duration_ns(78.332) == 78_332_000
    assert duration_ns(0.0001) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-29T19:12:43.799875269Z", 1795979563.799875),
        ("2026-11-29T20:12:43+01:00", 1795979563.0),
        ("2026-11-29T19:12:43", 1795979563.0),
        ("", None),
        ("soon", None),
    ],
)
def test_unix_seconds(text: str, seconds: float | None) -> None:
    assert unix_seconds(text) == seconds
