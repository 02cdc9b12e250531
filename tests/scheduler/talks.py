"""What random worlds are made of: policies, and conversations that share their beginning and grow turn by turn."""

from typing import Any

import hypothesis.strategies as st

from scheduler.domain import Request
from scheduler.policy import Policy
from tests.scheduler.prompts import Message
from tests.scheduler.world import MODEL, OTHER_MODEL, World, talk

POLICIES = st.builds(
    Policy,
    version=st.integers(0, 99),
    active_ms=st.sampled_from([0.0, 20.0]),
    max_waiting=st.just(6),
    retry_floor_per_s=st.just(0.5),
    tenant_max_running=st.sampled_from([0, 0, 1, 2]),
    tenant_max_waiting=st.sampled_from([0, 0, 2]),
    max_prefills=st.sampled_from([0, 0, 1]),
    prefill_counts_tokens=st.sampled_from([0, 256]),
    hold_s=st.sampled_from([0.0, 1.0, 3.0]),
    hold_ratio=st.sampled_from([0.7, 1.0]),
    window=st.sampled_from([0, 1, 2, 64]),
    quantum_tokens=st.sampled_from([0, 100, 20_000]),
    order=st.sampled_from(["cost", "cost", "fcfs"]),
    age_guard_s=st.sampled_from([0.0, 1.0, 10.0]),
    choose_slot=st.sampled_from([True, True, False]),
    max_expected_wait_s=st.sampled_from([0.0, 0.0, 100.0]),
)

TURNS = st.fixed_dictionaries(
    {
        "tokens": st.sampled_from([1, 40, 300, 2000]),
        "seats": st.sampled_from([1, 1, 1, 1, 1, 2]),
        "tenant": st.sampled_from("xxy"),
        "priority": st.sampled_from(["high", "normal", "normal", "low"]),
        "can_name_slot": st.sampled_from([True, True, True, True, False]),
        "wait_s": st.sampled_from([0.0, 2.0, 300.0, 300.0]),
        "model": st.sampled_from([MODEL, MODEL, MODEL, OTHER_MODEL]),
    }
)
"""Arguments of `Talks.turn`."""

KEPT = 4


class Talks:
    """A few conversations; the first is no more than the beginning that all of them share."""

    def __init__(self) -> None:
        self.count = 0
        self._talks: list[list[Message]] = [[(0, 100)]]

    def message(self, tokens: int) -> Message:
        """A text that nobody said before."""
        self.count += 1
        return self.count, tokens

    def turn(self, world: World, number: int, tokens: int, **more: Any) -> tuple[Request, list[Message]]:
        """The next turn of one of the latest conversations, which ends with so many new tokens."""
        messages = [*self._talks[number % len(self._talks)], self.message(tokens)]
        return talk(f"r{self.count}", *messages, arrived_s=world.now_s, **more), messages

    def end(self, world: World, request_id: str, tokens: int, more_cached: int = 0, other_slot: int = 0) -> None:
        """An answer is complete; its conversation may go on."""
        answer, messages = self.message(tokens), world.messages.get(request_id)
        if messages:
            self._talks.append([*messages, answer])
            del self._talks[1:-KEPT]
        world.end(request_id, answer=answer, more_cached=more_cached, other_slot=other_slot)
