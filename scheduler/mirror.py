"""Our account of one backend's slots: what each holds, which are busy, and what a prompt could reuse in each.

Theory of operation. Every request that we send changes the engine's slots by known rules (`slot_rules`), so we follow
them: `take` when a request is sent, `done` or `dropped` when the engine has finished with it. Nothing is asked of the
engine for that; what it tells by the way corrects us: `correct` (an answer's count of cached tokens) and `report` (a
look at its slots). Where a rule needs what we do not know (the text of an answer, a prompt without hashes) we believe
in less rather than in more.

Callers ask `reuses` for each waiting request and backend. It is quick, and its result holds until `version` grows.
"""

from collections.abc import Sequence
from math import ceil

from scheduler import slot_rules
from scheduler.domain import Prompt, SlotState
from scheduler.held import Held, Use, of_picture, use
from scheduler.host_cache import HostCache
from scheduler.picture import MirrorPicture
from scheduler.prefix_index import holders_of
from scheduler.slot_contents import Lease, Reuse, SlotContents

TOLERANCE_TOKENS = 64
"""A prediction this close to the truth is right: one block of `domain.BLOCK_BYTES`."""

FIRM_TRUST = 0.7
"""With less trust than this, predictions are scaled down by it."""

MOST_SLOTS = 128
"""Of one engine that are accounted for, the first ones: bounds the work per request. No card runs as many at once."""

TRUST_STEP = 0.1
"""Weight of one answer in `trust`."""

NOTHING = Use(0, 0, 0)


_new = tuple.__new__
"""See `held`."""


class Mirror:
    """One backend's slots, with one model."""

    def __init__(self, slots: int, *, host_tokens: int = 0, copies_idle: bool = False, unified: bool = False) -> None:
        """All slots are empty and idle.

        Args:
            slots: how many the engine has.
            host_tokens: what its host prompt cache can hold; 0: it has none.
            copies_idle: each task copies all idle slots there (`--cache-idle-slots`).
            unified: all slots share one KV cache, so that copied ones are cleared (`--kv-unified`).
        """
        slots = min(slots, MOST_SLOTS)
        self.version = 0
        """Grows with every change that `reuses` or `later` could show."""
        self.trust = 1.0
        """How far predictions came true lately: 0..1. Only too high ones count: too low ones harm nobody."""
        self._contents = SlotContents(slots)
        self._sequences = 0
        self._used_s = [float("-inf")] * slots
        self._host = HostCache(host_tokens)
        self._copies_idle = copies_idle
        self._unified = unified
        self._leases: dict[str, Lease] = {}
        self._idle = (1 << slots) - 1
        self._shared = [0] * slots
        self._shared_version = -1

    def has(self, slot: int | None) -> bool:
        """Whether this is a slot that is accounted for."""
        return slot is not None and 0 <= slot < len(self._used_s)

    def idle(self) -> int:
        """How many slots no request of ours occupies."""
        return self._idle.bit_count()

    def predicted(self, nonce: str) -> int | None:
        """Tokens that the engine should report as cached for a request; None: unknown request, or nothing to tell."""
        lease = self._leases.get(nonce)
        return lease.predicted if lease else None

    def reuses(self, prompt: Prompt | None, tokens_per_byte: float) -> list[Reuse]:
        """What each idle slot offers a prompt: those with the most in common first.

        Args:
            prompt: the request's; None: nothing can be reused.
            tokens_per_byte: of text of which nothing better is known.
        """
        idle, held_by, used_s = self._idle, self._contents.held, self._used_s
        if self._shared_version != self.version:
            self._shared, self._shared_version = self._contents.shared(idle), self.version
        shared = self._shared
        found: list[Reuse] = []
        fresh = 0
        if prompt is not None:
            prompt_bytes = prompt.size_bytes
            doubt = self.trust < FIRM_TRUST
            for holders, size_bytes, end in self._contents.index.matches(prompt, idle):
                idle ^= holders
                while holders:
                    lowest = holders & -holders
                    holders ^= lowest
                    slot = lowest.bit_length() - 1
                    held = held_by[slot]
                    if held is None:
                        continue
                    _, reused, fresh = use(held, prompt, prompt_bytes, size_bytes, end, tokens_per_byte)
                    lost, spare = held.tokens - reused, shared[slot] - reused
                    if spare < 0:
                        spare = 0
                    if doubt:
                        fresh += reused - self._trusted(reused)
                        reused = self._trusted(reused)
                    found.append(_new(Reuse, (slot, reused, fresh, lost, spare, used_s[slot])))
            fresh = max(1, ceil(prompt_bytes * tokens_per_byte))
        while idle:
            lowest = idle & -idle
            idle ^= lowest
            slot = lowest.bit_length() - 1
            held = held_by[slot]
            lost = held.tokens if held else 0
            found.append(_new(Reuse, (slot, 0, fresh, lost, shared[slot], used_s[slot])))
        return found

    def held(self, slot: int) -> tuple[int, float]:
        """Tokens that a slot holds, and when it was last used."""
        held = self._contents.held[slot]
        return (held.tokens if held else 0), self._used_s[slot]

    def common_bytes(self, prompt: Prompt) -> int:
        """Most bytes that any slot, idle or busy, has in common with a prompt. Cheap: one search."""
        for _, size_bytes, _ in self._contents.index.matches(prompt, -1):
            return size_bytes
        return 0

    def later(self, prompt: Prompt | None, tokens_per_byte: float) -> list[tuple[str, int]]:
        """Requests that now run, and what a prompt could reuse of their slots once they have ended.

        Returns:
            (nonce, tokens reused) of those with something to reuse, the most in common first. Not those whose client
            left, nor those with several slots: nobody can tell what they will hold.
        """
        if prompt is None:
            return []
        sure = [
            (nonce, lease) for nonce, lease in self._leases.items() if len(lease.slots) == 1 and not lease.abandoned
        ]
        nonces = {lease.slots[0]: nonce for nonce, lease in sure}
        uses = self._contents.uses(prompt, tokens_per_byte, sum(1 << number for number in nonces))
        found = [(nonces[number], self._trusted(used.reused)) for number, used in uses.items()]
        return [(nonce, reused) for nonce, reused in found if reused]

    def take(
        self, nonce: str, prompt: Prompt | None, prompt_tokens: int, slot: int | None, now_s: float, *, seats: int = 1
    ) -> int | None:
        """A request is sent to the engine.

        Args:
            nonce: names the request from here on. A known one changes nothing.
            prompt: the request's, if its prefix can be compared.
            prompt_tokens: estimated length of the prompt.
            slot: the idle slot that the engine was told to use; None, or one that is not idle: it chooses.
            now_s: the time.
            seats: slots that it occupies at once.

        Returns:
            The (first) slot that it occupies by our account; None: all are busy, so there is no account of it.
        """
        known = self._leases.get(nonce)
        if known is not None:
            return known.slots[0] if known.slots else None
        self.version += 1
        named = slot is not None and self._is_idle(slot)
        lease = self._leases[nonce] = Lease(prompt, prompt_tokens, now_s, named=named)
        for seat in range(seats):
            if not self._idle:
                break
            used = self._occupy(lease, slot if named and seat == 0 else None)
            if seats == 1 and prompt is not None:
                lease.predicted = used.reused
        if lease.slots and self._copies_idle and self._host.limit_tokens:
            self._copy_idle()
        return lease.slots[0] if lease.slots else None

    def vacate(self, slot: int) -> None:
        """The store says that a slot is free, though by our account a request is on it: that one's end is to be heard.

        What becomes of that request changes the slot no more. Nothing happens where the slot is idle.
        """
        for lease in self._leases.values():
            if slot in lease.slots:
                lease.slots.remove(slot)
                lease.predicted = None
                self._idle |= 1 << slot
                self.version += 1

    def done(self, nonce: str, prompt_tokens: int | None, output_tokens: int | None, now_s: float) -> None:
        """The engine finished a request in order: the slot holds the prompt and all generated tokens but the last.

        Args:
            nonce: of the request; an unknown one changes nothing.
            prompt_tokens: length of the prompt, cached part included; None: not told.
            output_tokens: length of the answer; None: not told.
            now_s: the time.
        """
        lease = self._leases.get(nonce)
        if lease is None:
            return
        if len(lease.slots) != 1:  # which of its prompts or answers ended up where is not known
            output_tokens = None
        for number in lease.slots[1:]:
            self._contents.hold(number, None)
        held = self._contents.held[lease.slots[0]] if lease.slots else None
        if held is not None:
            length = prompt_tokens or lease.tokens
            total = slot_rules.held_after(length, output_tokens or 0)
            counted = prompt_tokens is not None and output_tokens is not None
            after = held._replace(prompt_tokens=length, tokens=total, answer_tokens=total - length, counted=counted)
            self._contents.hold(lease.slots[0], after)
        self._free(nonce, now_s)

    def dropped(self, nonce: str, now_s: float, *, answered: bool = False) -> None:
        """A request ended out of order, and the engine is idle again: what its slots hold is not known.

        Args:
            nonce: of the request; an unknown one changes nothing.
            now_s: the time.
            answered: its answer had begun: then the slot holds the prompt at least. Otherwise what it had of the prompt
                before, since only the rest was overwritten; of several slots, nothing.
        """
        lease = self._leases.get(nonce)
        if lease is None:
            return
        if answered:
            self.done(nonce, None, None, now_s)
        else:
            for number in lease.slots:
                if len(lease.slots) > 1 or not lease.predicted:
                    self._contents.hold(number, None)
                else:
                    self._contents.cut(number, lease.predicted)
            self._free(nonce, now_s)

    def abandon(self, nonce: str) -> None:
        """The client of a request left; the engine is still at it."""
        lease = self._leases.get(nonce)
        if lease is not None:
            lease.abandoned = True
            self.version += 1

    def correct(self, nonce: str, cached_tokens: int) -> None:
        """An answer told how many tokens of its prompt were cached; to be called before `done`.

        Fewer than predicted lowers the trust. If the engine chose the slot, it chose the most similar one: then no slot
        that was idle holds more of this prompt than was cached, and is cut to that.

        Args:
            nonce: of the request; an unknown one changes nothing.
            cached_tokens: as told.
        """
        lease = self._leases.get(nonce)
        if lease is None or lease.predicted is None or lease.prompt is None:
            return
        wrong = lease.predicted > cached_tokens + TOLERANCE_TOKENS
        firm = self.trust >= FIRM_TRUST
        self.trust += TRUST_STEP * ((0.0 if wrong else 1.0) - self.trust)
        if wrong and not lease.named:
            for number, used in self._contents.uses(lease.prompt, lease.tokens_per_byte, self._idle).items():
                more = used.common > cached_tokens + TOLERANCE_TOKENS
                if self._used_s[number] <= lease.taken_s and more and slot_rules.similar(used.common, lease.tokens):
                    self._contents.cut(number, cached_tokens)
        if wrong or not firm:
            self.version += 1

    def report(self, slots: Sequence[SlotState], asked_at_s: float) -> bool:
        """A look at the engine's slots came back: idle ones that hold less than we believed are cut to that.

        Args:
            slots: as reported.
            asked_at_s: when the look began; slots used since are left alone.

        Returns:
            False: a slot is busy that was idle by our account even then: somebody else uses the engine.
        """
        alone = True
        for state in slots:
            if not self._is_idle(state.id) or self._used_s[state.id] >= asked_at_s:
                continue
            if state.busy:
                alone = False
                self._contents.cut(state.id, 0)
                self._used_s[state.id] = asked_at_s
                self.version += 1
            elif state.cached_tokens is not None:
                held = self._contents.held[state.id]
                # Much more than the length that we were told of what we left there is somebody else's.
                foreign = held and held.counted and state.cached_tokens > held.tokens + TOLERANCE_TOKENS
                if self._contents.cut(state.id, 0 if foreign else state.cached_tokens):
                    self.version += 1
        return alone

    def forget(self, *slots: int) -> None:
        """What these slots hold is not known any more; numbers that no slot has change nothing."""
        for number in slots:
            if self.has(number):
                self._contents.hold(number, None)
        self.version += 1

    def clear(self) -> None:
        """The engine was restarted or has another model: nothing is held, nothing runs, nothing was proven wrong."""
        for number in range(len(self._used_s)):
            self._contents.hold(number, None)
            self._used_s[number] = float("-inf")
        self._leases.clear()
        self._host.clear()
        self._idle = (1 << len(self._used_s)) - 1
        self.trust = 1.0
        self.version += 1

    def picture(self, model: str, now_s: float, since_s: float = float("-inf")) -> MirrorPicture:
        """What is believed, for a proxy that starts. Slots that are busy, or last used before `since_s`, are empty."""
        kept = self._idle & sum(1 << slot for slot, used_s in enumerate(self._used_s) if used_s >= since_s)
        ago = tuple([now_s - used_s if used_s > float("-inf") else None for used_s in self._used_s])
        host = self._host.picture() if since_s == float("-inf") else ()
        return MirrorPicture(model, self.trust, self._sequences, self._contents.picture(kept), ago, host)

    def sizes(self) -> list[tuple[float, int]]:
        """(last used, blocks of its prompt) of each idle slot that holds something."""
        held = self._contents.held
        return [
            (self._used_s[slot], len(each.prompt.blocks))
            for slot in holders_of(self._idle)
            if (each := held[slot]) is not None
        ]

    def host_blocks(self) -> int:
        """Blocks of the prompts in the host cache."""
        return self._host.blocks

    def restore(self, picture: MirrorPicture, now_s: float) -> None:
        """Believe what another proxy did of as many slots; those that are busy are known better."""
        for slot, (held, ago_s) in enumerate(zip(picture.held, picture.used_s_ago, strict=True)):
            if not self._is_idle(slot):
                continue
            self._contents.hold(slot, of_picture(held) if held is not None else None)
            self._used_s[slot] = now_s - ago_s if ago_s is not None else float("-inf")
        self._host.restore_all(picture.host)
        self.trust, self._sequences = picture.trust, picture.sequences
        self.version += 1

    def _occupy(self, lease: Lease, named: int | None) -> Use:
        """Give the lease one idle slot by the engine's rules; what its prompt gets there."""
        prompt = lease.prompt
        per_byte = lease.tokens_per_byte
        uses = self._contents.uses(prompt, per_byte, self._idle) if prompt else {}
        number = named
        if number is None:
            idle = [
                (each, uses.get(each, NOTHING).common, self._contents.tokens(each), self._used_s[each])
                for each in holders_of(self._idle)
            ]
            number = slot_rules.choose(idle, lease.tokens)
        used = uses.get(number, NOTHING)
        if self._host.limit_tokens and slot_rules.exchanges(
            used.common, self._contents.tokens(number), lease.tokens, named=named is not None
        ):
            self._host.save(self._contents.held[number])
            better = (
                self._host.restore(prompt, per_byte, used.common, self._contents.tokens(number)) if prompt else None
            )
            if better:
                used = better[1]
        lease.slots.append(number)
        self._idle &= ~(1 << number)
        self._sequences += 1
        if prompt and prompt.size_bytes:
            self._contents.hold(number, Held(prompt, prompt.size_bytes, lease.tokens, lease.tokens, 0, self._sequences))
        else:
            self._contents.hold(number, None)
        return used

    def _copy_idle(self) -> None:
        for number in holders_of(self._idle):
            self._host.save(self._contents.held[number])
            if self._unified:
                self._contents.hold(number, None)

    def _free(self, nonce: str, now_s: float) -> None:
        for number in self._leases.pop(nonce).slots:
            self._used_s[number] = now_s
            self._idle |= 1 << number
        self.version += 1

    def _is_idle(self, number: int) -> bool:
        return number >= 0 and bool(self._idle >> number & 1)

    def _trusted(self, tokens: int) -> int:
        return tokens if self.trust >= FIRM_TRUST else int(tokens * self.trust)
