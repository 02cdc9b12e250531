"""llama-server's own rules for its slots and its host prompt cache, as pure functions on token counts.

Read in builds about b11434 (`get_available_slot`, `server_prompt_cache`), and used both by our account of real engines
(`mirror`) and by simulated ones, so that the two cannot drift apart. What one task does there, in this order:

1. A named slot is taken as it is; otherwise `choose` among the idle ones.
2. If `exchanges`: what the slot holds is saved in the host cache, unless it is empty, an entry `contains` it, or it is
   too large. Saving drops the entries that it contains, then the oldest ones (`evicted`) until it fits. After that
   the entry that `restores` names, if any, *moves* into the slot; otherwise the slot keeps what it had.
3. The slot reuses what it has in common with the prompt, `reusable`, and overwrites the rest.
4. An engine that copies idle slots then saves each of them, in the same way; with a unified KV cache it clears them.

Everywhere `common` is the length of the longest common prefix with the new prompt, and `held` what the slot or entry
holds, both in tokens.
"""

from collections.abc import Iterable, Sequence

SIMILARITY = 0.10
"""Least share of the new prompt that a slot must hold to be chosen for it: the flag `--slot-prompt-similarity`."""

KEEP = 0.5
"""A slot that would keep less than this share of what it holds is saved first."""

ENTRY_KEEP = 0.25
"""An entry of the host cache of which less than this share would be used stays where it is."""


def similar(common: int, prompt_tokens: int) -> bool:
    """Whether a slot holds enough of the prompt to be chosen for that."""
    return common > SIMILARITY * prompt_tokens


def choose(idle: Sequence[tuple[int, int, int, float]], prompt_tokens: int) -> int:
    """The idle slot that the engine takes for a prompt, if nobody names one.

    The most similar one, the lowest id among equals; without a similar one the least recently used, the highest id
    among equals: so a fresh engine fills its slots from the last to the first.

    Args:
        idle: (slot id, common, held, last used) of each idle slot, in any order; times in any unit.
        prompt_tokens: length of the prompt.

    Raises:
        ValueError: there is no idle slot.
    """
    if not idle:
        raise ValueError("no idle slot to choose from")
    best = max(idle, key=lambda slot: (slot[1], -slot[0]))
    if similar(best[1], prompt_tokens):
        return best[0]
    return min(idle, key=lambda slot: (slot[3], -slot[0]))[0]


def must_save(common: int, held: int, *, by_lru: bool) -> bool:
    """Whether the slot's content goes to the host cache before it is overwritten, if there is a host cache.

    Args:
        common: see the module.
        held: see the module.
        by_lru: the engine took the slot because it was the least recently used one.
    """
    return by_lru or common < KEEP * held


def exchanges(common: int, held: int, prompt_tokens: int, *, named: bool) -> bool:
    """Whether a taken slot trades its content with the host cache: saves it, and looks for a better entry.

    Args:
        common: see the module.
        held: see the module.
        prompt_tokens: length of the prompt.
        named: the client named the slot. Such a slot trades only if it is similar, or what it holds is lost.
    """
    by_lru = not similar(common, prompt_tokens)
    if named and by_lru:
        return False
    return must_save(common, held, by_lru=by_lru)


def restores(entries: Iterable[tuple[int, int]], common: int, held: int) -> int | None:
    """Index of the entry of the host cache that moves into the slot; None: the slot keeps what it has.

    An entry must be strictly better than the slot, and than each entry before it that was, in two ways: more in common
    with the prompt, and a larger share of it used.

    Args:
        entries: (common, held) of each entry, oldest first.
        common: of the slot.
        held: of the slot; 0: any entry uses a larger share.
    """
    best = None
    best_common, best_share = common, common / held if held else -1.0
    for index, (entry_common, entry_held) in enumerate(entries):
        share = entry_common / entry_held if entry_held else 0.0
        if share >= ENTRY_KEEP and share > best_share and entry_common > best_common:
            best, best_common, best_share = index, entry_common, share
    return best


def contains(common: int, held: int) -> bool:
    """Whether a sequence of `held` tokens that shares `common` of them with another one lies within that other one."""
    return common >= held


def evicted(entries: Sequence[int], tokens: int, limit_tokens: int) -> int | None:
    """How many of the oldest entries leave the host cache so that one more fits; None: it never fits, nothing leaves.

    Args:
        entries: tokens of each entry, oldest first.
        tokens: of the sequence to save.
        limit_tokens: what the cache may hold.
    """
    if tokens > limit_tokens:
        return None
    total, gone = sum(entries) + tokens, 0
    while total > limit_tokens:
        total -= entries[gone]
        gone += 1
    return gone


def reusable(common: int, prompt_tokens: int) -> int:
    """Tokens of the prompt that need no computing: at least the last one always does."""
    return max(0, min(common, prompt_tokens - 1))


def held_after(prompt_tokens: int, output_tokens: int) -> int:
    """Tokens that a slot holds after an answer: the prompt and all generated tokens but the last (measured)."""
    return prompt_tokens + max(0, output_tokens - 1)
