import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.domain import BLOCK_BYTES, Prompt
from scheduler.prefix_index import PrefixIndex, holders_of
from tests.scheduler.prompts import BYTES_PER_TOKEN, Message, common_tokens, prompt_of, tokens_of

SYSTEM, USER, ANSWER, NEXT, OTHER = (1, 100), (2, 50), (3, 64), (4, 10), (5, 40)
MESSAGES = st.lists(st.integers(0, 3).map(lambda name: (name, (1, 30, 64, 150)[name])), min_size=1, max_size=6)


def test_deepest_groups_come_first() -> None:
    index = PrefixIndex()
    index.put(0, prompt_of([SYSTEM, USER]))
    index.put(1, prompt_of([SYSTEM, OTHER]))
    index.put(2, prompt_of([OTHER]))
    index.put(3, prompt_of([SYSTEM, USER, ANSWER, NEXT]))
    index.put(4, prompt_of([SYSTEM, OTHER, ANSWER]))

    found = list(index.matches(prompt_of([SYSTEM, USER, ANSWER, OTHER]), 0b11111))

    assert found == [(0b1000, 4 * 214, 2), (0b0001, 4 * 150, 1), (0b10010, 4 * 100, 0)]
    assert list(index.matches(prompt_of([SYSTEM]), 0b00110)) == [(0b00010, 4 * 100, 0)]


def test_a_prompt_that_ends_within_a_longer_message_shares_its_blocks_only() -> None:
    long, short = prompt_of([(1, 200)]), prompt_of([(1, 130)])
    index = PrefixIndex()
    index.put(0, long)

    assert list(index.matches(short, 1)) == [(1, 2 * BLOCK_BYTES, -1)]


def test_what_is_replaced_or_dropped_is_forgotten() -> None:
    index = PrefixIndex()
    index.put(0, prompt_of([SYSTEM, USER]))
    index.put(0, prompt_of([OTHER, SYSTEM]))
    index.drop(1)

    assert list(index.matches(prompt_of([SYSTEM, USER]), 1)) == []
    assert list(index.matches(prompt_of([OTHER]), 1)) == [(1, 160, 0)]

    index.drop(0)
    assert list(index.matches(prompt_of([OTHER]), 1)) == []
    assert (index._blocks, index._ends, index._prompts) == ({}, {}, {})


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([[SYSTEM, USER], [SYSTEM, OTHER]], (0b10, BLOCK_BYTES, -1)),
        ([[SYSTEM, USER], [OTHER]], (0, 0, -1)),
        ([[SYSTEM, USER], [SYSTEM, USER], [SYSTEM]], (0b10, 600, 1)),
        ([[SYSTEM, USER], [SYSTEM, USER, ANSWER], [SYSTEM, USER]], (0b110, 600, 1)),
        ([[(1, 128)], [(1, 128), OTHER], [(1, 130)]], (0b010, 512, 0)),
        ([[USER], [USER]], (0b10, 200, 0)),
    ],
)
def test_shared(held: list[list[Message]], expected: tuple[int, int, int]) -> None:
    index = PrefixIndex()
    for holder, messages in enumerate(held):
        index.put(holder, prompt_of(messages))

    assert index.shared(0, 0b1110) == expected
    assert index.shared(7, 0b1110) == (0, 0, -1)


@given(st.lists(MESSAGES, max_size=5), MESSAGES, st.integers(0, 31))
def test_as_exact_as_a_literal_comparison(held: list[list[Message]], asked: list[Message], among: int) -> None:
    index = PrefixIndex()
    for holder, messages in enumerate(held):
        index.put(holder, prompt_of([(9, 9)]))
        index.put(holder, prompt_of(messages))

    found = {
        holder: size_bytes // BYTES_PER_TOKEN
        for group, size_bytes, _ in index.matches(prompt_of(asked), among)
        for holder in holders_of(group)
    }

    exact = {
        holder: common_tokens(tokens_of(messages), tokens_of(asked))
        for holder, messages in enumerate(held)
        if among >> holder & 1
    }
    assert found == {holder: count for holder, count in exact.items() if count}


def test_no_prompt_at_all_matches_nothing() -> None:
    index = PrefixIndex()
    index.put(0, Prompt((), ()))

    assert list(index.matches(Prompt((), ()), 1)) == []
    assert index.shared(0, 1) == (0, 0, -1)


@given(st.integers(0, 1 << 70))
def test_holders(bits: int) -> None:
    assert sum(1 << holder for holder in holders_of(bits)) == bits
