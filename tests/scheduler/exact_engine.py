"""A llama-server's slots and host cache, with literal tokens: what the mirror must agree with.

Written from the engine's description alone; shares no code with `scheduler.slot_rules`.
"""

from tests.scheduler.prompts import Tokens, common_tokens


class ExactEngine:
    def __init__(self, slots: int, host_tokens: int, *, copies_idle: bool, unified: bool) -> None:
        self.slots: list[Tokens] = [[] for _ in range(slots)]
        self.busy = [False] * slots
        self.last_used = [-1] * slots
        self.clock = 0
        self.host: list[Tokens] = []
        self.host_tokens = host_tokens
        self.copies_idle = copies_idle
        self.unified = unified

    def start(self, prompt: Tokens, named: int | None) -> tuple[int, int]:
        """(slot, cached tokens)."""
        slot = named
        by_lru = False
        if slot is None:
            best = 0.10
            for each, held in enumerate(self.slots):
                similarity = common_tokens(held, prompt) / len(prompt)
                if not self.busy[each] and similarity > best:
                    slot, best = each, similarity
        if slot is None:
            by_lru = True
            for each, used in enumerate(self.last_used):
                if not self.busy[each] and (slot is None or used <= self.last_used[slot]):
                    slot = each
        assert slot is not None
        common = common_tokens(self.slots[slot], prompt)
        similar = common / len(prompt) > 0.10
        if self.host_tokens and (by_lru or (similar and common / len(self.slots[slot]) < 0.5)):
            self._save(slot)
            self._load(slot, prompt)
        cached = min(common_tokens(self.slots[slot], prompt), len(prompt) - 1)
        self.slots[slot] = prompt
        self.busy[slot] = True
        if self.host_tokens and self.copies_idle:
            for each, busy in enumerate(self.busy):
                if not busy:
                    self._save(each)
                    if self.unified:
                        self.slots[each] = []
        return slot, cached

    def finish(self, slot: int, answer: Tokens) -> None:
        self.slots[slot] = self.slots[slot] + answer[:-1]
        self._release(slot)

    def erase(self, slot: int, keep: int = 0) -> None:
        """The request on it ended early; so much of its prompt is kept."""
        self.slots[slot] = self.slots[slot][:keep]
        self._release(slot)

    def _release(self, slot: int) -> None:
        self.clock += 1
        self.last_used[slot] = self.clock
        self.busy[slot] = False

    def _save(self, slot: int) -> None:
        held = self.slots[slot]
        if not held or len(held) > self.host_tokens or any(entry[: len(held)] == held for entry in self.host):
            return
        self.host = [entry for entry in self.host if held[: len(entry)] != entry]
        while sum(map(len, self.host)) + len(held) > self.host_tokens:
            self.host.pop(0)
        self.host.append(held)

    def _load(self, slot: int, prompt: Tokens) -> None:
        held = self.slots[slot]
        common = common_tokens(held, prompt)
        keep, similarity = (common / len(held) if held else -1.0), common / len(prompt)
        best = None
        for entry in self.host:
            common = common_tokens(entry, prompt)
            share = common / len(entry)
            if share >= 0.25 and share > keep and common / len(prompt) > similarity:
                best, keep, similarity = entry, share, common / len(prompt)
        if best is not None:
            self.host.remove(best)
            self.slots[slot] = best
