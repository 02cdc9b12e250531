"""How much work was asked for lately, by model and options. Owns sliding sums; must not know where anything runs."""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from scheduler.learning import keep
from scheduler.rates import SlidingSum
from scheduler.runner import Runner

KEPT = 256
"""Wishes that are remembered: the latest. Normalised options are few, so these are more models than boxes have."""


class Wish(msgspec.Struct, frozen=True):
    """A model with the options that requests want it loaded with."""

    model: str
    """Canonical name."""
    runner: Runner | None
    """Normalised; None: their API cannot say."""


class Demand:
    """Work that was asked for within a window, in milliseconds of GPU time."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sums: OrderedDict[Wish, tuple[SlidingSum, SlidingSum]] = OrderedDict()

    def change(self, window_s: float) -> None:
        """Another window is in force: what was counted is forgotten."""
        if window_s != self._window_s:
            self._window_s = window_s
            self._sums.clear()

    def asked(self, wish: Wish, work_ms: float, now_s: float) -> None:
        """One request wants so much work."""
        sums = self._sums.get(wish)
        if sums is None:
            sums = SlidingSum(self._window_s), SlidingSum(self._window_s)
        keep(self._sums, wish, sums, KEPT)
        sums[0].add(work_ms, now_s)
        sums[1].add(1.0, now_s)

    def wishes(self, now_s: float) -> Iterator[tuple[Wish, float]]:
        """What was asked for within the window, with its work in milliseconds."""
        for wish, (work, requests) in self._sums.items():
            if requests.total(now_s) >= 0.5:  # sums of ones that left the window are zero, apart from rounding
                yield wish, max(0.0, work.total(now_s))

    def work_ms(self, wish: Wish, now_s: float) -> float:
        """Work of one request for it, on average within the window; 0: there was none."""
        sums = self._sums.get(wish)
        if sums is None or sums[1].total(now_s) < 0.5:
            return 0.0
        return max(0.0, sums[0].total(now_s)) / sums[1].total(now_s)
