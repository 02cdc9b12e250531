"""Times at which something is due, by key: set, moved, cancelled and taken in O(log n). Knows not what for."""

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

Key = tuple[str, str]
"""What is due, and of whom: ("ticket", request id)."""

SLACK = 64
"""Void entries that the heap may always hold; beyond them it holds at most as many void entries as valid ones."""


class Deadlines:
    """At most one time per key."""

    def __init__(self) -> None:
        self._at_s: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._at_s)

    def set(self, key: Key, at_s: float) -> None:
        """Make the key due at this time, instead of any time set before."""
        order = next(self._order)
        self._at_s[key] = (at_s, order)
        heappush(self._heap, (at_s, order, key))
        if len(self._heap) > SLACK + 2 * len(self._at_s):
            self._heap = [(at, order, key) for key, (at, order) in self._at_s.items()]
            heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """The key is not due any more, if it ever was."""
        self._at_s.pop(key, None)

    def at_s(self, key: Key) -> float:
        """When a key is due; infinity: never."""
        known = self._at_s.get(key)
        return known[0] if known is not None else inf

    def earliest_s(self) -> float:
        """When the next key is due; infinity: never."""
        heap = self._heap
        while heap:
            at_s, order, key = heap[0]
            if self._at_s.get(key) == (at_s, order):
                return at_s
            heappop(heap)
        return inf

    def take_due(self, now_s: float) -> Key | None:
        """Remove and return the earliest key that is due by now; equal times in the order in which they were set."""
        if self.earliest_s() > now_s:
            return None
        key = heappop(self._heap)[2]
        del self._at_s[key]
        return key
