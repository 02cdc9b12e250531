import json

import pytest

from proxy.emulated.replies import Stop, Tool, Wish, plan_reply
from proxy.emulated.text import END_OF_TURN, detokenize, tokenize

PROMPT = tokenize("Tell me something.")


def test_the_same_prompt_and_seed_give_the_same_answer() -> None:
    assert plan_reply(PROMPT, Wish(), 50) == plan_reply(PROMPT, Wish(), 50)
    assert plan_reply(PROMPT, Wish(seed=1), 50).tokens != plan_reply(PROMPT, Wish(), 50).tokens
    assert plan_reply([*PROMPT, 7], Wish(), 50).tokens != plan_reply(PROMPT, Wish(), 50).tokens


def test_an_answer_ends_by_itself_with_a_mark_that_shows_nothing() -> None:
    reply = plan_reply(PROMPT, Wish(length=(9, 9)), 50)
    assert (len(reply.tokens), reply.tokens[-1], reply.pieces[-1]) == (10, END_OF_TURN, "")
    assert reply.ending is Stop.EOS
    assert detokenize(reply.tokens[:-1]) == "".join(reply.pieces)


def test_a_length_within_limits_is_picked() -> None:
    lengths = {len(plan_reply([number], Wish(length=(3, 6)), 50).tokens) - 1 for number in range(50)}
    assert lengths == {3, 4, 5, 6}


def test_endless_answers_go_on_to_the_limit() -> None:
    assert len(plan_reply(PROMPT, Wish(length=(3, 3), endless=True), 50).tokens) == 51


@pytest.mark.parametrize("take", [slice(0, 4), slice(2, 9), slice(6, 7)])
def test_a_stop_word_ends_the_answer_and_is_not_shown(take: slice) -> None:
    text = "".join(plan_reply(PROMPT, Wish(), 50).pieces)
    word = text[take]
    reply = plan_reply(PROMPT, Wish(stop=("never said", word)), 50)
    assert (reply.ending, reply.stopping_word) == (Stop.WORD, word)
    assert "".join(reply.pieces) == text[: text.find(word)]
    assert len(reply.tokens) == len(reply.pieces)
    assert word in detokenize(reply.tokens)


def test_an_answer_can_fit_a_schema_in_any_script() -> None:
    schema = {"type": "object", "properties": {"größe 高": {"const": "ß→高"}}}
    reply = plan_reply(PROMPT, Wish(schema=schema), 50)
    assert json.loads("".join(reply.pieces)) == {"größe 高": "ß→高"}
    assert len(reply.tokens) == len(reply.pieces)


def test_a_tool_call_shows_its_arguments_only() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    reply = plan_reply(PROMPT, Wish(tool=Tool("weather", schema)), 50)
    assert reply.tool is not None
    assert json.loads("".join(reply.pieces)) == reply.tool.arguments
    assert "<tool_call>" in detokenize(reply.tokens)
