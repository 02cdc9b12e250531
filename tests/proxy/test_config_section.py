from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.config_section import KeepAlive, PositiveInt, Seconds, Section, keep_alive_s


class Sample(Section):
    """A table."""

    state_dir: Path | None = None
    """Where."""
    count: PositiveInt = 1
    wait_s: Seconds = 1.0
    keep: KeepAlive = "5m"


def test_a_key_that_there_is_not_is_an_error() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Sample.model_validate({"counts": 2})


def test_no_text_is_no_path() -> None:
    with pytest.raises(ValidationError, match="is no path"):
        Sample.model_validate({"state_dir": ""})


@pytest.mark.parametrize("values", [{"count": 0}, {"wait_s": 0}, {"wait_s": float("inf")}])
def test_numbers_have_bounds(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate(values)


def test_documentation_stands_below_an_option() -> None:
    assert Sample.model_fields["state_dir"].description == "Where."


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300", 300),
        (300, 300),
        (-1, -1),
        ("-1m", -60),
        ("0", 0),
        ("500ms", 0.5),
    ],
)
def test_times_to_stay_loaded(given: object, seconds: float) -> None:
    assert keep_alive_s(Sample.model_validate({"keep": given}).keep) == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["5 minutes", "", "forever", "m", "5d", "1.5", True, 1.5])
def test_what_is_no_time_to_stay_loaded_is_told_with_what_to_write(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({"keep": given})
    [found] = caught.value.errors()
    assert found["type"] == "string_type" or 'write "5m"' in found["msg"]
