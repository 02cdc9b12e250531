"""Sums over a sliding window, in fixed memory. Knows nothing of what it counts; time is an argument."""

BUCKETS = 20
"""The window's resolution: a sum is exact to a twentieth of the window."""


class SlidingSum:
    """The sum of what was added within the last `window_s` seconds. Time that goes backwards stands still."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._width_s = window_s / BUCKETS
        self._buckets = [0.0] * BUCKETS
        self._newest: int | None = None
        self._total = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Count an amount now."""
        self._buckets[self._advance(now_s) % BUCKETS] += amount
        self._total += amount

    def total(self, now_s: float) -> float:
        """What was added within the window."""
        self._advance(now_s)
        return self._total

    def per_s(self, now_s: float) -> float:
        """The same per second since the first of it: an idle time before that says nothing of the pace."""
        newest = self._advance(now_s)
        for passed in range(newest - BUCKETS + 1, newest + 1):
            if self._buckets[passed % BUCKETS]:
                since_s = max(self._width_s, min(self.window_s, now_s - passed * self._width_s))
                return self._total / since_s
        return 0.0

    def _advance(self, now_s: float) -> int:
        """Empty the buckets that fell out of the window; returns the number of the current one."""
        index = int(now_s // self._width_s)
        if self._newest is None:
            self._newest = index
        if index <= self._newest:
            return self._newest
        if index - self._newest >= BUCKETS:
            self._buckets = [0.0] * BUCKETS
            self._total = 0.0
        else:
            for passed in range(self._newest + 1, index + 1):
                self._total -= self._buckets[passed % BUCKETS]
                self._buckets[passed % BUCKETS] = 0.0
        self._newest = index
        return index
