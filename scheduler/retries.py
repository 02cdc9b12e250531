"""The retry budget: keeps a failing fleet from drowning in its own retries. Time is an argument.

As in Finagle and linkerd, retries may be a share of the requests that arrived lately, plus a floor for quiet times: a
ratio alone would forbid the very first retry, a fixed count alone would double the load of a busy fleet that fails.
"""

from scheduler.rates import SlidingSum


class RetryBudget:
    """How many retries the last `window_s` seconds still allow."""

    def __init__(self, window_s: float) -> None:
        self._requests = SlidingSum(window_s)
        self._retries = SlidingSum(window_s)

    @property
    def window_s(self) -> float:
        """How far it looks back."""
        return self._requests.window_s

    def arrived(self, now_s: float) -> None:
        """A request arrived: it earns its share of a retry."""
        self._requests.add(1.0, now_s)

    def left(self, now_s: float, ratio: float, floor_per_s: float) -> float:
        """Retries that may still be spent now; may be negative after the policy has become stricter."""
        earned = ratio * self._requests.total(now_s) + floor_per_s * self.window_s
        return earned - self._retries.total(now_s)

    def spend(self, now_s: float, ratio: float, floor_per_s: float) -> bool:
        """Take one retry, if there is one left."""
        if self.left(now_s, ratio, floor_per_s) < 1.0:
            return False
        self._retries.add(1.0, now_s)
        return True
