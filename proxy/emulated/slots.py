"""An engine's slots and its rule for choosing one. Pure: must not know time, queues or HTTP."""

from collections.abc import Sequence
from typing import Any

from proxy.emulated.text import common_prefix

SIMILARITY = 0.10
"""llama-server's --slot-prompt-similarity: an idle slot is chosen for its prefix above this share of the new prompt."""


class Slot:
    """One parallel sequence: what it holds, and who runs on it."""

    def __init__(self, slot_id: int) -> None:
        self.id = slot_id
        self.tokens: list[int] = []
        self.busy = False
        self.last_used = -1
        """Order of use, not a time: what was used last has the highest number."""
        self.task_id: int | None = None
        self.params: dict[str, Any] = {}


def choose_slot(slots: Sequence[Slot], prompt: Sequence[int], named: int | None = None) -> Slot | None:
    """The slot for a prompt; None: it must wait.

    A slot that is named is taken or waited for; a number that no slot has is ignored. Otherwise the idle slot with the
    longest common prefix, if that is more than `SIMILARITY` of the new prompt; else the idle slot that was used least
    recently (ties go to the highest id). A busy slot cannot lend its prefix.
    """
    if named is not None and 0 <= named < len(slots):
        return None if slots[named].busy else slots[named]
    idle = [slot for slot in slots if not slot.busy]
    best, best_share = None, SIMILARITY
    for slot in idle:
        if slot.tokens and prompt:
            share = common_prefix(slot.tokens, prompt) / len(prompt)
            if share > best_share:
                best, best_share = slot, share
    if best is not None:
        return best
    return min(reversed(idle), key=lambda slot: slot.last_used, default=None)


def reusable(slot: Slot, prompt: Sequence[int]) -> int:
    """Tokens of the prompt that the slot already holds; at least one token is always computed."""
    return max(0, min(common_prefix(slot.tokens, prompt), len(prompt) - 1))
