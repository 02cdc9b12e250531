"""Our account of an engine's host prompt cache: sequences that were moved out of slots into main memory."""

from scheduler import slot_rules
from scheduler.domain import Prompt
from scheduler.held import Held, Use, of_picture, overlap, pictured, use
from scheduler.picture import HeldPicture
from scheduler.prefix_index import PrefixIndex, holders_of

ENTRIES = 256
"""Most entries that we remember; an engine may keep more very short ones, which are not worth it."""


class HostCache:
    """First in, first out, by tokens; the rules are those of `slot_rules`."""

    def __init__(self, limit_tokens: int) -> None:
        """Holds up to `limit_tokens`; 0: the engine has no such cache."""
        self.limit_tokens = limit_tokens
        self._entries: dict[int, Held] = {}  # oldest first
        self._index = PrefixIndex()
        self._all = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """Tokens of all entries."""
        return sum(entry.tokens for entry in self._entries.values())

    @property
    def blocks(self) -> int:
        """Blocks of the prompts of all entries."""
        return sum(len(entry.prompt.blocks) for entry in self._entries.values())

    def save(self, held: Held | None) -> bool:
        """Copy a slot's content here; False: nothing was copied."""
        if held is None or not 0 < held.tokens <= self.limit_tokens:
            return False
        common = {
            key: overlap(held, self._entries[key], size_bytes, end)
            for key, size_bytes, end in self._matches(held.prompt)
        }
        if any(slot_rules.contains(tokens, held.tokens) for tokens in common.values()):
            return False
        for key, tokens in common.items():
            if slot_rules.contains(tokens, self._entries[key].tokens):
                self._pop(key)
        sizes = [entry.tokens for entry in self._entries.values()]
        gone = slot_rules.evicted(sizes, held.tokens, self.limit_tokens) or 0
        for key in list(self._entries)[: max(gone, len(sizes) + 1 - ENTRIES)]:
            self._pop(key)
        free = next(key for key in range(ENTRIES) if key not in self._entries)
        self._entries[free] = held
        self._index.put(free, held.prompt)
        self._all |= 1 << free
        return True

    def restore(self, prompt: Prompt, tokens_per_byte: float, common: int, held_tokens: int) -> tuple[Held, Use] | None:
        """The entry that moves into a slot for a prompt, and what the prompt gets from it; None: none is better.

        Args:
            prompt: the new prompt.
            tokens_per_byte: see `held.use`.
            common: tokens that the slot has in common with the prompt.
            held_tokens: tokens that the slot holds.
        """
        uses = self._uses(prompt, tokens_per_byte)
        keys = [key for key in self._entries if key in uses]
        sizes = ((uses[key].common, self._entries[key].tokens) for key in keys)
        best = slot_rules.restores(sizes, common, held_tokens)
        if best is None:
            return None
        return self._pop(keys[best]), uses[keys[best]]

    def clear(self) -> None:
        """Forget all."""
        for key in list(self._entries):
            self._pop(key)

    def picture(self) -> tuple[HeldPicture, ...]:
        """All entries, oldest first."""
        return tuple([pictured(held) for held in self._entries.values()])

    def restore_all(self, entries: tuple[HeldPicture, ...]) -> None:
        """Hold these, oldest first, as far as they fit."""
        for entry in entries:
            self.save(of_picture(entry))

    def _matches(self, prompt: Prompt) -> list[tuple[int, int, int]]:
        """(entry, bytes in common, message end there) of each entry with something in common."""
        groups = self._index.matches(prompt, self._all)
        return [(key, size_bytes, end) for bits, size_bytes, end in groups for key in holders_of(bits)]

    def _uses(self, prompt: Prompt, tokens_per_byte: float) -> dict[int, Use]:
        prompt_bytes = prompt.size_bytes
        return {
            key: use(self._entries[key], prompt, prompt_bytes, size_bytes, end, tokens_per_byte)
            for key, size_bytes, end in self._matches(prompt)
        }

    def _pop(self, key: int) -> Held:
        self._index.drop(key)
        self._all &= ~(1 << key)
        return self._entries.pop(key)
