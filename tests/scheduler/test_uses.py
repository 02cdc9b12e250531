"""Since when nothing runs on a model."""

from math import inf

from scheduler.uses import Uses


def test_the_last_end_counts_until_the_engine_is_gone() -> None:
    uses = Uses()
    assert uses.ended_s("a", "m") == -inf
    uses.ended("a", "m", 1.0)
    uses.ended("a", "m", 3.0)
    uses.ended("a", None, 4.0)
    uses.ended("b", "m", 5.0)
    assert (uses.ended_s("a", "m"), uses.ended_s("a", "n"), uses.ended_s("b", "m")) == (3.0, -inf, 5.0)
    uses.void("a")
    assert (uses.ended_s("a", "m"), uses.ended_s("b", "m")) == (-inf, 5.0)
