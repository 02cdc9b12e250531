"""Pieces that learn one thing each from noisy samples. Owns the arithmetic; must not know requests or backends.

What lies outside of the usual spread counts as if it lay at its edge (Huber, 1964).
"""

import itertools
from bisect import bisect_right
from collections import OrderedDict
from math import exp, log
from typing import TypeVar

from scheduler.picture import GainPicture, MeanPicture
from scheduler.priors import Rates

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of running sequences whose steps are learned."""
CLAMP = 3.0
"""A sample moves an estimate at most as if it were so many times it, or the inverse of that."""
LEAST_GAIN = 0.05
"""What a sample weighs in the long run."""
WORTH_IT = 0.01
"""A change of a time, as a share of it, that is worth a new table: each answer brings a small one."""
LEAST_MS = 1e-3
"""No time is taken to be shorter."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Gain:
    """How far one sample moves an estimate: half of the way at first, a twentieth in the long run."""

    __slots__ = ("_agreed", "_least", "_most", "_spread")

    def __init__(self, least: float, most: float) -> None:
        """A spread between `least` and `most`, both in the unit of the residuals."""
        self._least = least
        self._most = most
        self._spread = most
        self._agreed = 0

    @property
    def weight(self) -> float:
        """How much the estimate can be relied upon: samples that agreed with it, at most 20."""
        return min(20.0, 1.0 + self._agreed)

    def picture(self) -> GainPicture:
        """For another proxy."""
        return GainPicture(self._agreed, self._spread)

    def restore(self, told: GainPicture) -> "Gain":
        """Go on from where another proxy is; returns itself."""
        self._agreed, self._spread = told.agreed, told.spread
        return self

    def correction(self, residual: float) -> float:
        """What to add for a sample that lies so far above the estimate."""
        bound = min(self._most, max(self._least, 2.0 * self._spread))
        clipped = max(-bound, min(bound, residual))
        if clipped == residual:
            self._agreed += 1  # only these lower the gain: a prior that is far off is left quickly
        gain = max(LEAST_GAIN, 1.0 / (self._agreed + 2))
        self._spread += gain * (min(self._most, abs(residual)) - self._spread)
        return gain * clipped


def gain_of_time() -> Gain:
    """For logarithms of times: a spread between 2 % and a factor of `CLAMP`."""
    return Gain(0.02, log(CLAMP))


class Mean:
    """A running mean of positive samples, each held within a factor of `CLAMP` of it."""

    __slots__ = ("_samples", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self._samples = 0

    def picture(self) -> MeanPicture:
        """For another proxy."""
        return MeanPicture(self.value, self._samples)

    def restore(self, told: MeanPicture) -> "Mean":
        """Go on from where another proxy is; returns itself."""
        self.value, self._samples = told.value, told.samples
        return self

    def learn(self, sample: float) -> None:
        self._samples += 1
        clipped = max(self.value / CLAMP, min(self.value * CLAMP, sample))
        self.value += max(LEAST_GAIN, 1.0 / (self._samples + 1)) * (clipped - self.value)


class Steps:
    """Time per output token by how many run: never falling."""

    __slots__ = ("_built", "_factors", "_first_ms", "_further_ms", "_gains", "_slope_ms", "_table_ms")

    def __init__(self, rates: Rates) -> None:
        self._first_ms = max(LEAST_MS, rates.step_first_ms)
        self._further_ms = max(0.0, rates.step_further_ms)
        self._factors = [0.0] * len(KNOTS)  # logarithms; where nothing was learned, from the neighbours
        self._built: list[float] = []
        """The factors that the table was made of."""
        self._gains: list[Gain | None] = [None] * len(KNOTS)
        self._rebuild()

    def at(self, running: int) -> float:
        if running <= KNOTS[-1]:
            return self._table_ms[running if running > 0 else 1]
        return self._table_ms[-1] + (running - KNOTS[-1]) * self._slope_ms

    def learn(self, running: int, sample_ms: float) -> None:
        knot = _NEAREST[min(max(running, 1), KNOTS[-1])]
        gain = self._gains[knot]
        is_first = gain is None
        if gain is None:
            gain = self._gains[knot] = gain_of_time()
        self._factors[knot] += gain.correction(log(sample_ms / self._prior(max(running, 1))) - self._factors[knot])
        if is_first or abs(self._factors[knot] - self._built[knot]) > WORTH_IT:
            self._rebuild()

    def picture(self) -> tuple[tuple[float, ...], tuple[GainPicture | None, ...]]:
        """Factors and gains, for another proxy: with what was learned until now in the table, as the other one will."""
        if self._factors != self._built:
            self._rebuild()
        return tuple(self._factors), tuple([gain.picture() if gain is not None else None for gain in self._gains])

    def restore(self, factors: tuple[float, ...], gains: tuple[GainPicture | None, ...]) -> None:
        """Go on from where another proxy is."""
        if len(factors) == len(gains) == len(KNOTS):
            self._factors = list(factors)
            self._gains = [gain_of_time().restore(gain) if gain is not None else None for gain in gains]
            self._rebuild()

    def _prior(self, running: int) -> float:
        return self._first_ms + (running - 1) * self._further_ms

    def _rebuild(self) -> None:
        """The table from the knots: those without samples follow their neighbours, none lies below the one before."""
        learned = [knot for knot, gain in enumerate(self._gains) if gain is not None]
        for knot, gain in enumerate(self._gains):
            if gain is None and learned:
                self._factors[knot] = self._between(knot, learned)
        self._built = list(self._factors)
        values = [self._prior(KNOTS[knot]) * exp(factor) for knot, factor in enumerate(self._factors)]
        values = rising(values, [gain.weight if gain else 0.01 for gain in self._gains])
        table = [values[0], values[0]]
        for (left, right), low, high in zip(_GAPS, values, values[1:], strict=False):
            slope = (high - low) / (right - left)
            table += [low + slope * step for step in range(1, right - left)]
            table.append(high)
        self._table_ms = table
        self._slope_ms = (values[-1] - values[-2]) / (KNOTS[-1] - KNOTS[-2])

    def _between(self, knot: int, learned: list[int]) -> float:
        """The factor of a knot without samples: straight between its learned neighbours, flat beyond the last."""
        place = bisect_right(learned, knot)
        if place == 0:
            return self._factors[learned[0]]
        if place == len(learned):
            return self._factors[learned[-1]]
        left, right = learned[place - 1], learned[place]
        share = (KNOTS[knot] - KNOTS[left]) / (KNOTS[right] - KNOTS[left])
        return self._factors[left] + share * (self._factors[right] - self._factors[left])


_GAPS = tuple(itertools.pairwise(KNOTS))
_NEAREST = [min(range(len(KNOTS)), key=lambda knot: abs(KNOTS[knot] - running)) for running in range(KNOTS[-1] + 1)]


def rising(values: list[float], weights: list[float]) -> list[float]:
    """The nearest values that never fall, by weighted squares (pool adjacent violators; Ayer and others, 1955)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            other = pools.pop()
            total = other[1] + pool[1]
            pool = ((other[0] * other[1] + pool[0] * pool[1]) / total, total, other[2] + pool[2])
        pools.append(pool)
    return [value for value, _, count in pools for _ in range(count)]


def keep(kept: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Put something in as the latest, and let the oldest go where there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
