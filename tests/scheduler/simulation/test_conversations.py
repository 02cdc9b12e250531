from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain import BLOCK_BYTES
from scheduler.simulation.conversations import BYTES_PER_TOKEN, Conversation

MESSAGES = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 200)), min_size=1, max_size=5)


def conversation(messages: list[tuple[int, int]]) -> Conversation:
    """Of messages (name, tokens)."""
    made = Conversation()
    for name, tokens in messages:
        made.say(name, tokens)
    return made


def test_the_next_turn_contains_the_answer() -> None:
    talk = conversation([(1, 1000), (2, 90)])
    first = talk.turn(3, 220)
    talk.say(4, 50)
    second = talk.turn(5, 100, think_ms=12.0)

    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens) == (1090, 220, 1360)
    assert second.content.common(first.content) == 1310
    assert second.content.common(first.content.first(1309)) == 1309  # a slot holds all but the last token
    assert first.prompt.ends[-1] in second.prompt.ends
    assert second.think_ms == 12.0


def test_a_token_is_four_bytes_and_a_block_64_tokens() -> None:
    turn = conversation([(1, 130)]).turn(2, 10)

    assert turn.prompt.size_bytes == 520 == turn.prompt_tokens * BYTES_PER_TOKEN
    assert len(turn.prompt.blocks) == 2


def test_a_copy_goes_its_own_way() -> None:
    talk = conversation([(1, 100)])
    other = talk.copy()
    talk.say(2, 10)
    other.say(3, 10)

    assert talk.turn(8, 1).content.common(other.turn(9, 1).content) == 100


@given(MESSAGES, MESSAGES)
def test_blocks_and_ends_tell_routers_what_engines_hold(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    one, other = conversation(mine).turn(8, 5), conversation(theirs).turn(9, 5)
    common = min(one.content.common(other.content), one.prompt_tokens, other.prompt_tokens)

    blocks = [mine == theirs for mine, theirs in zip(one.prompt.blocks, other.prompt.blocks, strict=False)]
    ends = [end for end in one.prompt.ends if end in other.prompt.ends]

    assert sum(blocks) * BLOCK_BYTES >= common * BYTES_PER_TOKEN // BLOCK_BYTES * BLOCK_BYTES
    assert blocks == sorted(blocks, reverse=True), "equal blocks come first"
    assert (ends[-1][0] if ends else 0) == common * BYTES_PER_TOKEN
