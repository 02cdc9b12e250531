import msgspec
import pytest

from scheduler.policy import Policy


def test_the_defaults_are_within_their_ranges() -> None:
    assert msgspec.convert(msgspec.to_builtins(Policy()), Policy) == Policy()


@pytest.mark.parametrize("values", [{"hold_ratio": 1.5}, {"window": -1}, {"order": "random"}, {"activ_ms": 1.0}])
def test_what_is_out_of_range_or_unknown_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(values, Policy)
