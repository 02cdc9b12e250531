from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulation.contents import Chain, Tokens

MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=6)


def chain(*messages: tuple[int, int]) -> Chain:
    """Of messages (name, tokens)."""
    ends: list[int] = []
    hashes: list[int] = []
    for name, tokens in messages:
        ends.append((ends[-1] if ends else 0) + tokens)
        hashes.append(hash((hashes[-1] if hashes else 0, name, tokens)))
    return Chain(tuple(ends), tuple(hashes), ends[-1] if ends else 0)


def spelled(messages: list[tuple[int, int]]) -> Tokens:
    """The same with every token: no two different messages share their first one."""
    return Tokens([1000 * name + 10 * size + (place == 0) for name, size in messages for place in range(size)])


def test_equal_messages_are_common_and_different_ones_not_at_all() -> None:
    one, other = chain((1, 100), (2, 50), (3, 10)), chain((1, 100), (2, 50), (4, 10))

    assert one.common(other) == 150
    assert one.common(chain((5, 100))) == 0
    assert chain().common(one) == 0


def test_a_cut_within_a_message_keeps_what_lies_before_it() -> None:
    whole = chain((1, 100), (2, 50))

    cut = whole.first(149)

    assert (cut.tokens, cut.common(whole), whole.common(cut)) == (149, 149, 149)
    assert whole.first(100).common(whole) == 100
    assert whole.first(30).common(chain((1, 100), (9, 9))) == 30
    assert whole.first(0).tokens == 0


@given(MESSAGES, MESSAGES, st.integers(0, 60), st.integers(0, 60))
def test_a_chain_says_what_its_tokens_say(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]], cut: int, other_cut: int
) -> None:
    one, other = chain(*mine).first(cut), chain(*theirs).first(other_cut)
    exact, other_exact = spelled(mine).first(cut), spelled(theirs).first(other_cut)

    assert (one.tokens, other.tokens) == (exact.tokens, other_exact.tokens)
    assert one.common(other) == other.common(one) == exact.common(other_exact)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_tokens_are_compared_one_by_one(mine: list[int], theirs: list[int]) -> None:
    expected = 0
    for one, other in zip(mine, theirs, strict=False):
        if one != other:
            break
        expected += 1

    assert Tokens(mine).common(Tokens(theirs)) == expected
