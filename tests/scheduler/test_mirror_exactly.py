"""The mirror beside an engine with literal tokens: the same slots, the same cached tokens, whatever happens."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler.mirror import Mirror
from tests.scheduler.exact_engine import ExactEngine
from tests.scheduler.prompts import TOKENS_PER_BYTE, Message, common_tokens, prompt_of, tokens_of

SYSTEMS: list[Message] = [(1, 30), (2, 128), (3, 200), (4, 500)]


class Conversations:
    """Chats that begin, go on, branch, repeat a question, stop; the engine chooses the slots, or is told.

    The mirror does not see answers. So no prompt has two answers of which one is quoted later: it could not tell which
    slot has the right one.
    """

    def __init__(self, slots: int, host_tokens: int, *, copies_idle: bool, unified: bool) -> None:
        self.engine = ExactEngine(slots, host_tokens, copies_idle=copies_idle, unified=unified)
        self.mirror = Mirror(slots, host_tokens=host_tokens, copies_idle=copies_idle, unified=unified)
        self.names = 10
        self.nonces = 0
        self.running: dict[str, tuple[int, list[Message], bool]] = {}
        self.answered: list[list[Message]] = []  # system, question, answer, question, answer, ...
        self.quoted: set[Message] = set()
        self.cached: list[int] = []

    def message(self, tokens: int) -> Message:
        self.names += 1
        return self.names, tokens

    def has_room(self) -> bool:
        return len(self.running) < len(self.engine.slots)

    def open(self, which: int, question: int, named: int | None) -> None:
        self._send([SYSTEMS[which % len(SYSTEMS)], self.message(question)], named)

    def branch(self, which: int, at: int, question: int, named: int | None) -> None:
        if self.answered:
            messages = self.answered[-1 - which % len(self.answered)]
            kept = len(messages) - 2 * (at % ((len(messages) + 1) // 2))  # 0: simply goes on
            self._send([*messages[:kept], self.message(question)], named)

    def repeat(self, which: int, named: int | None) -> None:
        fresh = [messages for messages in self.answered if messages[-1] not in self.quoted]
        if fresh:
            messages = fresh[which % len(fresh)]
            self.answered.remove(messages)
            self._send(messages[:-1], named, repeated=True)

    def finish(self, which: int, output: int) -> None:
        nonce = sorted(self.running)[which % len(self.running)]
        slot, messages, repeated = self.running.pop(nonce)
        answer = self.message(output)
        self.engine.finish(slot, tokens_of([answer]))
        self.mirror.done(nonce, len(tokens_of(messages)), output, self.engine.clock)
        if not repeated:
            self.answered.append([*messages, answer])
        self._compare()

    def stop(self, which: int) -> None:
        nonce = sorted(self.running)[which % len(self.running)]
        self.mirror.abandon(nonce)
        kept = self.mirror.predicted(nonce) or 0  # the rest of the prompt may not have been computed
        self.engine.erase(self.running.pop(nonce)[0], keep=kept)
        self.mirror.dropped(nonce, self.engine.clock)
        self._compare()

    def restart(self) -> None:
        old = self.engine
        self.engine = ExactEngine(len(old.slots), old.host_tokens, copies_idle=old.copies_idle, unified=old.unified)
        self.mirror.clear()
        self.running.clear()
        self._compare()

    def _send(self, messages: list[Message], named: int | None, *, repeated: bool = False) -> None:
        prompt, tokens = prompt_of(messages), tokens_of(messages)
        idle = [slot for slot, busy in enumerate(self.engine.busy) if not busy]
        if named is not None:
            named = idle[named % len(idle)]
        offers = {reuse.slot: reuse for reuse in self.mirror.reuses(prompt, TOKENS_PER_BYTE)}
        assert sorted(offers) == idle
        for slot in idle:
            held, offer = self.engine.slots[slot], offers[slot]
            exact = min(common_tokens(held, tokens), len(tokens) - 1)
            assert (offer.reused_tokens, offer.lost_tokens) == (exact, len(held) - exact)
            others = [common_tokens(held, self.engine.slots[other]) for other in idle if other != slot]
            assert 0 <= offer.shared_lost <= max(0, max(others, default=0) - exact)
        self.quoted.update(messages)
        self.nonces += 1
        nonce = str(self.nonces)

        slot, cached = self.engine.start(tokens, named)

        assert self.mirror.take(nonce, prompt, len(tokens), named, self.engine.clock) == slot
        assert self.mirror.predicted(nonce) == cached
        self.mirror.correct(nonce, cached)
        self.cached.append(cached)
        self.running[nonce] = slot, messages, repeated
        self._compare()

    def _compare(self) -> None:
        assert self.mirror.idle() == self.engine.busy.count(False)
        assert self.mirror._host.tokens == sum(map(len, self.engine.host))
        assert self.mirror.trust == 1.0


LENGTHS = st.sampled_from([1, 2, 10, 63, 64, 65, 128, 200])
NAMED = st.none() | st.integers(0, 3)
NUMBERS = st.integers(0, 7)


class Machine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        host_tokens=st.sampled_from([0, 300, 1500, 5000]),
        copies_idle=st.booleans(),
        unified=st.booleans(),
    )
    def begin(self, slots: int, host_tokens: int, copies_idle: bool, unified: bool) -> None:
        self.pair = Conversations(slots, host_tokens, copies_idle=copies_idle, unified=unified)

    @precondition(lambda self: self.pair.has_room())
    @rule(which=NUMBERS, question=LENGTHS, named=NAMED)
    def open(self, which: int, question: int, named: int | None) -> None:
        self.pair.open(which, question, named)

    @precondition(lambda self: self.pair.has_room())
    @rule(which=NUMBERS, at=NUMBERS, question=LENGTHS, named=NAMED)
    def branch(self, which: int, at: int, question: int, named: int | None) -> None:
        self.pair.branch(which, at, question, named)

    @precondition(lambda self: self.pair.has_room())
    @rule(which=NUMBERS, named=NAMED)
    def repeat(self, which: int, named: int | None) -> None:
        self.pair.repeat(which, named)

    @precondition(lambda self: self.pair.running)
    @rule(which=NUMBERS, output=LENGTHS)
    def finish(self, which: int, output: int) -> None:
        self.pair.finish(which, output)

    @precondition(lambda self: self.pair.running)
    @rule(which=NUMBERS)
    def stop(self, which: int) -> None:
        self.pair.stop(which)

    @rule(chance=NUMBERS)
    def restart(self, chance: int) -> None:
        if chance == 7:
            self.pair.restart()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("slots", "host_tokens", "copies_idle", "unified"),
    [
        (1, 3000, False, False),
        (3, 0, False, False),
        (4, 4000, False, False),
        (4, 6000, True, False),
        (4, 6000, True, True),
    ],
)
def test_a_long_day(slots: int, host_tokens: int, copies_idle: bool, unified: bool) -> None:
    chance = random.Random(f"{slots} {host_tokens} {unified}")
    pair = Conversations(slots, host_tokens, copies_idle=copies_idle, unified=unified)
    for _ in range(4000):
        which, size = chance.randrange(12), int(2 ** chance.uniform(0, 9))
        named = None if chance.random() < 0.7 else chance.randrange(4)
        if pair.running and (not pair.has_room() or chance.random() < 0.4):
            pair.finish(which, size) if chance.random() < 0.95 else pair.stop(which)
        elif chance.random() < 0.25:
            pair.open(which, size, named)
        elif chance.random() < 0.1:
            pair.repeat(which, named)
        else:
            pair.branch(which, 0 if chance.random() < 0.7 else which, size, named)

    assert sum(cached > 0 for cached in pair.cached) > 500  # or the comparison would say little
