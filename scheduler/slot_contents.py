"""What each slot of a backend holds, by our account, and what prompts and other slots have in common with it."""

from itertools import islice
from typing import NamedTuple

from scheduler.domain import Prompt
from scheduler.held import Held, Use, overlap, pictured, use
from scheduler.picture import HeldPicture
from scheduler.prefix_index import PrefixIndex, holders_of

MOST_ALIKE = 8
"""Slots with the same prompt that are compared with one: where all hold it, comparing each with each takes too long."""


class Reuse(NamedTuple):
    """One idle slot for one prompt."""

    slot: int
    reused_tokens: int
    """Tokens of the prompt that the slot has."""
    fresh_tokens: int
    """Tokens of the prompt to be computed; at least 1. 0: there is no prompt to tell from."""
    lost_tokens: int
    """Tokens in the slot that would be overwritten."""
    shared_lost: int
    """Of them those that another idle slot holds too: losing them costs nothing."""
    idle_since_s: float
    """When the slot was last used; -inf: never."""


class Lease:
    """One request at the engine."""

    __slots__ = ("abandoned", "named", "predicted", "prompt", "slots", "taken_s", "tokens")

    def __init__(self, prompt: Prompt | None, tokens: int, now_s: float, *, named: bool) -> None:
        self.prompt = prompt
        self.tokens = max(1, tokens)
        self.taken_s = now_s
        self.named = named
        self.slots: list[int] = []
        self.predicted: int | None = None
        self.abandoned = False

    @property
    def tokens_per_byte(self) -> float:
        """Of its own prompt, as estimated."""
        return self.tokens / max(1, self.prompt.size_bytes) if self.prompt else 0.0


class SlotContents:
    """Slot number -> what it holds; sets of slots are the bits of an int."""

    def __init__(self, slots: int) -> None:
        """All slots are empty."""
        self.held: list[Held | None] = [None] * slots
        """To be read only: `hold` and `cut` write."""
        self.index = PrefixIndex()

    def tokens(self, slot: int) -> int:
        """How much the slot holds."""
        held = self.held[slot]
        return held.tokens if held else 0

    def hold(self, slot: int, held: Held | None) -> None:
        """The slot holds this now; None: nothing that we know of."""
        before = self.held[slot]
        self.held[slot] = held
        if held is None:
            self.index.drop(slot)
        elif before is None or before.prompt is not held.prompt:
            self.index.put(slot, held.prompt)

    def cut(self, slot: int, tokens: int) -> bool:
        """The slot holds at most so many tokens of what we believed; False: that is nothing new."""
        held = self.held[slot]
        if held is None or held.tokens <= tokens:
            return False
        self.hold(slot, held._replace(tokens=tokens, counted=False) if tokens > 0 else None)
        return True

    def picture(self, among: int) -> tuple[HeldPicture | None, ...]:
        """What each of some slots holds, by slot."""
        return tuple(
            [pictured(held) if held is not None and among >> slot & 1 else None for slot, held in enumerate(self.held)]
        )

    def uses(self, prompt: Prompt, tokens_per_byte: float, among: int) -> dict[int, Use]:
        """What a prompt gets from each of some slots that has something in common with it, the deepest first."""
        uses, prompt_bytes = {}, prompt.size_bytes
        for group, size_bytes, end in self.index.matches(prompt, among):
            for slot in holders_of(group):
                held = self.held[slot]
                if held is not None:
                    uses[slot] = use(held, prompt, prompt_bytes, size_bytes, end, tokens_per_byte)
        return uses

    def shared(self, among: int) -> list[int]:
        """Per slot: the tokens of its content that the most similar other one of some slots holds too, by whole blocks.

        Slots outside the set, and empty ones, have 0.
        """
        shared = [0] * len(self.held)
        for slot in holders_of(among):
            held = self.held[slot]
            if held is None:
                continue
            others, size_bytes, end = self.index.shared(slot, among & ~(1 << slot))
            if end < 0:
                others &= -others  # short of the whole prompt all of them have the same
            for number in islice(holders_of(others), MOST_ALIKE):
                other = self.held[number]
                if other is not None:
                    shared[slot] = max(shared[slot], overlap(held, other, size_bytes, end))
        return shared
