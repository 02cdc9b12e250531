"""What runs of the residency benchmark show: loads, waiting times, needless waits. Pure: no processes, no clock.

All times are seconds of one monotonic clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from scheduler.simulation.statistics import percentile


class Stay(NamedTuple):
    """A model that was loaded at a backend, for a while."""

    backend: int
    model: str
    context: int
    from_s: float
    """When it was loaded: from then on it could be used."""
    to_s: float = inf
    """When it was unloaded."""


class Served(NamedTuple):
    """One request, as far as it got."""

    number: int
    model: str
    least_context: int
    """What its model must have been loaded with at least."""
    exactly: bool
    """And at most: what cannot say a context gets the engine's own."""
    arrived_s: float
    backend: int = -1
    started_s: float = inf
    """When an engine that had its model loaded took it; it waited till then."""
    first_s: float = inf
    """First token."""
    ended_s: float = inf
    problem: str = ""
    """Why it got no answer."""

    def suits(self, stay: Stay) -> bool:
        """Whether it could run on a loaded model."""
        enough = stay.context == self.least_context if self.exactly else stay.context >= self.least_context
        return stay.model == self.model and enough


def loads(stays: Iterable[Stay], from_s: float = -inf, to_s: float = inf) -> int:
    """How many loads ended in a stretch of time."""
    return sum(from_s <= stay.from_s < to_s for stay in stays)


def reloads(stays: Sequence[Stay], from_s: float = -inf, to_s: float = inf) -> int:
    """Of the loads that ended in a stretch of time, those at a backend that had held something before.

    What is loaded onto an empty card throws nothing out.
    """
    first_s: dict[int, float] = {}
    for stay in stays:
        first_s[stay.backend] = min(stay.from_s, first_s.get(stay.backend, inf))
    return loads([stay for stay in stays if stay.from_s > first_s[stay.backend]], from_s, to_s)


def waited_for_load(one: Served, stays: Sequence[Stay], tolerance_s: float) -> bool:
    """Whether the model that a request ran on became ready while it waited."""
    return any(
        stay.backend == one.backend and one.suits(stay) and one.arrived_s < stay.from_s <= one.started_s + tolerance_s
        for stay in stays
    )


def needless(served: Sequence[Served], stays: Sequence[Stay], slots: int, tolerance_s: float) -> list[Served]:
    """Requests that waited for a load though another loaded model that suits had a free slot meanwhile.

    Args:
        served: all requests of a run.
        stays: all models that were loaded in it.
        slots: that each loaded model has.
        tolerance_s: how long the slot must have been free at a stretch; shorter is the time that messages take.
    """
    found = []
    for one in served:
        if one.started_s - one.arrived_s < tolerance_s or not waited_for_load(one, stays, tolerance_s):
            continue
        if any(_longest_free_s(one, stay, served, slots) >= tolerance_s for stay in stays if one.suits(stay)):
            found.append(one)
    return found


def _longest_free_s(one: Served, stay: Stay, served: Sequence[Served], slots: int) -> float:
    """How long at a stretch a request could have had a slot of a loaded model while it waited."""
    from_s, to_s = max(one.arrived_s, stay.from_s), min(one.started_s, stay.to_s)
    if to_s <= from_s:
        return 0.0
    longest_s, taken, free_from_s = 0.0, 0, from_s
    for at_s, by in sorted(_changes(one, stay, served, from_s, to_s)):
        if taken < slots:
            longest_s = max(longest_s, at_s - free_from_s)
        elif taken + by < slots:
            free_from_s = at_s
        taken += by
    return max(longest_s, to_s - free_from_s) if taken < slots else longest_s


def _changes(
    one: Served, stay: Stay, served: Sequence[Served], from_s: float, to_s: float
) -> Iterator[tuple[float, int]]:
    """When slots of a loaded model are taken (1) and freed (-1), within a stretch of time."""
    for other in served:
        if other is one or other.backend != stay.backend or other.started_s >= to_s or other.ended_s <= from_s:
            continue
        yield max(from_s, other.started_s), 1
        if other.ended_s < to_s:
            yield other.ended_s, -1


class Waits(NamedTuple):
    """Times to the first token, in seconds of the engines' time."""

    mean_s: float
    p99_s: float
    unanswered: int
    """Requests without a first token when the run was cut: they count with the time until then, so with too little."""


def waits(served: Sequence[Served], cut_s: float, speed: float) -> Waits:
    """Waiting times of a run that was cut at a time."""
    times = sorted((min(one.first_s, cut_s) - one.arrived_s) * speed for one in served)
    return Waits(sum(times) / len(times), percentile(times, 0.99), sum(one.first_s == inf for one in served))
