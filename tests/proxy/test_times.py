"""Points in time as engines write them."""

import pytest

from proxy.times import unix_seconds


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
