"""Which of some holders (slots of a backend, entries of its host cache) have how much in common with a prompt.

Hashes of blocks and message ends are chained: who has a block has all before it. So one table from hash to the set of
holders, kept as the bits of an int, answers by binary search: O(log blocks) probes per distinct depth, however many
holders there are. Holders are small ints, numbered densely from 0.
"""

from bisect import bisect_left
from collections.abc import Iterator

from scheduler.domain import BLOCK_BYTES, Prompt


class PrefixIndex:
    """Holder -> prompt, asked backwards."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}
        self._blocks: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def put(self, holder: int, prompt: Prompt) -> None:
        """The holder has this prompt, and nothing else any more."""
        self.drop(holder)
        self._prompts[holder] = prompt
        bit = 1 << holder
        for table, hashes in self._tables(prompt):
            for key in hashes:
                table[key] = table.get(key, 0) | bit

    def drop(self, holder: int) -> None:
        """The holder has nothing any more."""
        prompt = self._prompts.pop(holder, None)
        if prompt is None:
            return
        kept = ~(1 << holder)
        for table, hashes in self._tables(prompt):
            for key in hashes:
                left = table.get(key, 0) & kept
                if left:
                    table[key] = left
                else:
                    table.pop(key, None)

    def matches(self, prompt: Prompt, among: int) -> Iterator[tuple[int, int, int]]:
        """Groups of holders by what they have in common with a prompt, the deepest first; only those with something.

        Args:
            prompt: what to look for.
            among: holders that count, as bits.

        Yields:
            (holders as bits, bytes in common, index in `prompt.ends` of the message end there; -1: only blocks match).
        """
        blocks, ends, table, end_table = prompt.blocks, prompt.ends, self._blocks, self._ends
        deepest = len(blocks)
        while among:
            depth = 0
            while depth < deepest:
                middle = (depth + deepest + 1) >> 1
                if table.get(blocks[middle - 1], 0) & among:
                    depth = middle
                else:
                    deepest = middle - 1
            group = table[blocks[depth - 1]] & among if depth else among
            among ^= group
            start = depth * BLOCK_BYTES
            # An end one block further on would mean one more block in common.
            at = bisect_left(ends, (start + BLOCK_BYTES,)) - 1
            while group and at >= 0 and ends[at][0] >= start:
                found = end_table.get(ends[at][1], 0) & group
                if found:
                    yield found, ends[at][0], at
                    group ^= found
                at -= 1
            if group and depth:
                yield group, start, -1
            deepest = depth - 1

    def shared(self, holder: int, among: int) -> tuple[int, int, int]:
        """What others have in common with a holder, whole blocks and the whole prompt only: quicker than `matches`.

        Args:
            holder: whose prompt to look for.
            among: others that count, as bits.

        Returns:
            (those with the most in common as bits, bytes in common, index of the last message end or -1); (0, 0, -1):
            nobody has anything.
        """
        prompt = self._prompts.get(holder)
        others, low, table = 0, 0, self._blocks
        if prompt is None:
            return 0, 0, -1
        blocks, ends = prompt.blocks, prompt.ends
        high = len(blocks)
        while low < high:
            middle = (low + high + 1) >> 1
            found = table.get(blocks[middle - 1], 0) & among
            if found:
                low, others = middle, found
            else:
                high = middle - 1
        if low == len(blocks) and ends:
            found = self._ends.get(ends[-1][1], 0) & among
            if found:
                return found, ends[-1][0], len(ends) - 1
        return others, low * BLOCK_BYTES, -1

    def _tables(self, prompt: Prompt) -> tuple[tuple[dict[int, int], tuple[int, ...]], ...]:
        return (self._blocks, prompt.blocks), (self._ends, tuple(key for _, key in prompt.ends))


def holders_of(bits: int) -> Iterator[int]:
    """The holders in a set, ascending."""
    while bits:
        lowest = bits & -bits
        bits ^= lowest
        yield lowest.bit_length() - 1
