import pytest

from scheduler.simulation.trace_prompts import MOONCAKE_TICK_MS, of_lengths, of_mooncake, of_texts

ROWS = [
    {"timestamp": 3000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 3]},
    {"timestamp": 0, "input_length": 1300, "output_length": 0, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 50_000, "output_length": 5, "hash_ids": list(range(98))},
]


def test_equal_blocks_of_mooncake_are_equal_prefixes() -> None:
    first, second = of_mooncake(ROWS, 1)

    assert first.turns[0].prompt_tokens == 1300
    assert second.turns[0].prompt_tokens == 1100
    assert first.turns[0].content.common(second.turns[0].content) == 1024
    assert first.turns[0].output_tokens == 1
    assert second.turns[0].output_tokens == 50


def test_arrivals_of_mooncake_are_spread_and_stretched() -> None:
    first, second = of_mooncake(ROWS, 1)
    slow = of_mooncake(ROWS, 1, stretch=2.0)

    assert 0 < first.arrives_ms < MOONCAKE_TICK_MS < second.arrives_ms < 2 * MOONCAKE_TICK_MS
    assert [session.arrives_ms for session in slow] == [2 * first.arrives_ms, 2 * second.arrives_ms]


@pytest.mark.parametrize(
    ("change", "error"),
    [({"hash_ids": None}, TypeError), ({"input_length": "many"}, TypeError), ({"hash_ids": 5}, TypeError)],
)
def test_rows_of_another_shape_are_errors(change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        of_mooncake([{**ROWS[0], **change}], 1)
    with pytest.raises(KeyError):
        of_mooncake([{"timestamp": 1}], 1)


def test_lengths_share_nothing() -> None:
    first, second = of_lengths([(2.0, 100, 10), (1.0, 100, 10), (3.0, 0, 5)])

    assert (first.arrives_ms, second.arrives_ms) == (1000, 2000)
    assert first.turns[0].content.common(second.turns[0].content) == 0


def test_texts_share_blocks() -> None:
    start = "x" * 1000
    turns = [(5000.0, start, "yes " * 10), (9000.0, start + "z" * 600, "no"), (9500.0, "", "")]

    (session,) = of_texts({"one": turns, "none": []})

    first, second, empty = session.turns
    assert session.arrives_ms == 5000
    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens) == (250, 10, 400)
    assert second.content.common(first.content) == 192, "three full blocks"
    assert first.prompt.blocks == second.prompt.blocks[:3]
    assert (first.think_ms, second.think_ms) == (0, 4000)
    assert empty.prompt_tokens == empty.output_tokens == 1


def test_a_text_of_whole_blocks_is_a_prefix_of_a_longer_one() -> None:
    (session,) = of_texts({"one": [(0.0, "a" * 512, "b"), (1.0, "a" * 700, "c")]})
    first, second = session.turns

    assert first.content.first(128).common(second.content) == 128
    assert first.prompt.ends == ((512, first.prompt.blocks[-1]),)
