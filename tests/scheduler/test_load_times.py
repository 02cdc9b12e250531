"""How long loads take."""

from scheduler.load_times import LoadTimes
from scheduler.picture import MeanPicture


def test_what_was_not_seen_is_as_elsewhere_or_as_the_policy_says() -> None:
    times = LoadTimes()
    assert times.ms("a", "m", 5000.0) == 5000.0
    times.learn("a", "m", 2000.0)
    times.learn("b", "m", 4000.0)

    assert times.ms("a", "m", 5000.0) == 2000.0
    assert times.ms("b", "m", 5000.0) == 4000.0
    assert 2000.0 < times.ms("c", "m", 5000.0) < 4000.0
    assert times.ms("a", "n", 5000.0) == 5000.0


def test_what_cannot_be_is_passed_over() -> None:
    times = LoadTimes()
    for took_ms in (0.0, -1.0, float("nan"), float("inf")):
        times.learn("a", "m", took_ms)
    assert times.ms("a", "m", 5000.0) == 5000.0


def test_a_picture_of_it_goes_on_elsewhere() -> None:
    times, other = LoadTimes(), LoadTimes()
    times.learn("a", "m", 2000.0)
    times.learn("b", "m", 3000.0)
    told = times.picture("a")
    assert told == (("m", MeanPicture(2000.0, 1)),)

    other.restore("x", told)

    assert other.ms("x", "m", 9.0) == other.ms("y", "m", 9.0) == 2000.0
    other.forget("x")
    assert other.picture("x") == ()
    assert other.ms("x", "m", 9.0) == 2000.0, "as it was elsewhere"
