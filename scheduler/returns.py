"""Whether anybody will come back for what a slot holds: learned from when others came back. Knows no slots.

The chance that an idle conversation goes on falls with its age, in a way that depends on the people and programs who
talk: seconds for agents, minutes for readers. So the rate of returns is estimated per interval of age, as in survival
analysis (piecewise constant hazard; slots that were overwritten are censored), and the chance that one of this age
still returns is one less the chance that nothing of what is before it happens.
"""

from bisect import bisect_right
from itertools import pairwise
from math import expm1, log

from scheduler.picture import ReturnsPicture

EDGES_S = (0.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 4096.0)
"""Intervals of age; beyond the last one nobody is expected any more."""

PRIOR_S = 60.0
"""Before anything is known the chance falls by a factor e in this time."""

PRIOR_SLOTS = 3.0
"""What that is worth, in slots observed over the whole interval."""

MEMORY = 4000
"""Observations after which the old ones count half."""


class Returns:
    """Rates of return by age."""

    def __init__(self, prior_s: float = PRIOR_S) -> None:
        self._events = [0.0] * (len(EDGES_S) - 1)
        self._exposed_s = [0.0] * (len(EDGES_S) - 1)
        self._prior = [
            (_prior_sum(low, prior_s) - _prior_sum(high, prior_s)) / (high - low) for low, high in pairwise(EDGES_S)
        ]
        self._seen = 0
        self._rates: list[float] = list(self._prior)
        self._after: list[float] = []
        self._sum_up()

    def observe(self, age_s: float, *, returned: bool) -> None:
        """A slot was taken at an age: by somebody who came back for it, or to be overwritten."""
        age_s = min(max(0.0, age_s), EDGES_S[-1])
        last = min(bisect_right(EDGES_S, age_s) - 1, len(self._events) - 1)
        for number in range(last):
            self._exposed_s[number] += EDGES_S[number + 1] - EDGES_S[number]
        self._exposed_s[last] += age_s - EDGES_S[last]
        if returned:
            self._events[last] += 1.0
        self._seen += 1
        if self._seen >= MEMORY:
            self._seen //= 2
            self._events = [value / 2 for value in self._events]
            self._exposed_s = [value / 2 for value in self._exposed_s]
        if self._seen & 15 == 0:
            self._sum_up()

    def picture(self) -> ReturnsPicture:
        """For another proxy: with what was observed until now summed up, as the other one will."""
        self._sum_up()
        return ReturnsPicture(tuple(self._events), tuple(self._exposed_s), self._seen)

    def restore(self, told: ReturnsPicture) -> None:
        """Go on from where another proxy is."""
        if len(told.events) == len(told.exposed_s) == len(self._events):
            self._events, self._exposed_s, self._seen = list(told.events), list(told.exposed_s), told.seen
            self._sum_up()

    def chance(self, age_s: float) -> float:
        """Of a return at any later time, 0..1, for what nobody came back for until now."""
        if age_s >= EDGES_S[-1]:
            return 0.0
        number = max(0, bisect_right(EDGES_S, age_s) - 1)
        left = self._after[number + 1] + self._rates[number] * (EDGES_S[number + 1] - max(0.0, age_s))
        return -expm1(-left)

    def _sum_up(self) -> None:
        """Rates, and the sum of all that follow each edge."""
        widths = [high - low for low, high in pairwise(EDGES_S)]
        self._rates = [
            (events + rate * width * PRIOR_SLOTS) / (exposed_s + width * PRIOR_SLOTS)
            for events, exposed_s, rate, width in zip(self._events, self._exposed_s, self._prior, widths, strict=True)
        ]
        after = 0.0
        self._after = [0.0]
        for rate, width in zip(reversed(self._rates), reversed(widths), strict=True):
            after += rate * width
            self._after.append(after)
        self._after.reverse()


def _prior_sum(age_s: float, prior_s: float) -> float:
    """Sum of the rates from an age on whose chance is exp(-age / prior)."""
    return -log(-expm1(-max(age_s, 0.01) / prior_s))
