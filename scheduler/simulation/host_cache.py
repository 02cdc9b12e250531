"""llama-server's host prompt cache: whole slot contents in main memory, by the rules of `slot_rules`. Knows no time."""

from typing import Generic, TypeVar

from scheduler.simulation.contents import Content
from scheduler.slot_rules import contains, evicted, restores

C = TypeVar("C", bound=Content)


class HostCache(Generic[C]):
    """Entries in the order in which they came.

    Args:
        limit_tokens: what it may hold; 0: there is none.
    """

    def __init__(self, limit_tokens: int) -> None:
        self.entries: list[C] = []
        self._limit_tokens = limit_tokens

    def save(self, content: C) -> int:
        """Copy a content in, unless an entry contains it or it is too large; returns the tokens copied."""
        if not self._limit_tokens or not content.tokens:
            return 0
        if any(contains(content.common(entry), content.tokens) for entry in self.entries):
            return 0
        kept = [entry for entry in self.entries if not contains(content.common(entry), entry.tokens)]
        gone = evicted([entry.tokens for entry in kept], content.tokens, self._limit_tokens)
        if gone is None:
            return 0
        self.entries = [*kept[gone:], content]
        return content.tokens

    def take_better(self, prompt: C, common: int, held: int) -> C | None:
        """Remove and return the entry that serves a prompt better than a slot does; None: there is none.

        Args:
            prompt: what is asked for.
            common: tokens that the slot has in common with it.
            held: tokens that the slot holds.
        """
        index = restores([(entry.common(prompt), entry.tokens) for entry in self.entries], common, held)
        return None if index is None else self.entries.pop(index)
