"""What a slot of an engine holds, and what a prompt asks for: sequences that can be compared. Knows no time."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

C = TypeVar("C", bound="Content")


class Content(Protocol):
    """A sequence of tokens, told to the engine's model as far as it has to compare it."""

    @property
    def tokens(self) -> int:
        """Its length."""
        ...

    def common(self, other: Self, /) -> int:
        """Length in tokens of the longest common prefix."""
        ...

    def first(self, tokens: int, /) -> Self:
        """Its beginning, so many tokens long; itself where it is no longer than that."""
        ...


class Chain:
    """A sequence known by chained hashes at some of its places.

    Args:
        ends: the places, ascending, in tokens from the start.
        hashes: one per place, each over everything before it: equal ones mean equal beginnings.
        tokens: its length; less than the last place where the end of the sequence is cut off.

    What lies between two places is the same in two sequences if the place after it is, and different from its first
    token on otherwise: messages are equal or have nothing in common.
    """

    __slots__ = ("ends", "hashes", "tokens")

    def __init__(self, ends: tuple[int, ...], hashes: tuple[int, ...], tokens: int) -> None:
        self.ends = ends
        self.hashes = hashes
        self.tokens = tokens

    def common(self, other: "Chain") -> int:
        """Length in tokens of the longest common prefix, in O(log places)."""
        mine, theirs = self.hashes, other.hashes
        low, high = 0, min(len(mine), len(theirs))
        if not high or mine[0] != theirs[0]:
            return 0
        while high - low > 1:  # equal up to `low`
            middle = (low + high) // 2
            if mine[middle] == theirs[middle]:
                low = middle
            else:
                high = middle
        return min(self.ends[low], self.tokens, other.tokens)

    def first(self, tokens: int) -> "Chain":
        """Its beginning: shares nothing that could be changed."""
        if tokens >= self.tokens:
            return self
        kept = bisect_left(self.ends, tokens) + 1  # the place at or after the cut says what lies before it
        return Chain(self.ends[:kept], self.hashes[:kept], tokens)


class Tokens:
    """A sequence of which every token is known."""

    __slots__ = ("ids",)

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.ids)

    def common(self, other: "Tokens") -> int:
        """Length of the longest common prefix: a binary search over comparisons of slices, which run in C."""
        mine, theirs = self.ids, other.ids
        equal, bound = 0, min(len(mine), len(theirs)) + 1
        while bound - equal > 1:
            middle = (equal + bound) // 2
            if mine[equal:middle] == theirs[equal:middle]:
                equal = middle
            else:
                bound = middle
        return equal

    def first(self, tokens: int) -> "Tokens":
        """Its beginning."""
        return self if tokens >= len(self.ids) else Tokens(self.ids[:tokens])
