from typing import Any

import pytest

from proxy.emulated.llama_requests import (
    Refused,
    read_chat,
    read_infill,
    read_inputs,
    read_json,
    read_messages,
    read_prompt,
    read_responses,
)
from proxy.emulated.options import Options
from proxy.emulated.text import tokenize
from tests.proxy.emulated.support import chat_body

OPTIONS = Options(slots=2, context=64, seed=5)


def refusal(read: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        read(*arguments)
    return caught.value.problem.status, caught.value.problem.message


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"null", b"1", b"true"])
def test_only_objects_are_read(body: bytes) -> None:
    assert refusal(read_json, body)[0] == 400


def test_limits_have_many_names() -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        assert read_chat(chat_body(**{name: 7}), OPTIONS).most == 7
    assert read_chat(chat_body(), OPTIONS).most == -1
    assert read_responses({"input": "hi", "max_output_tokens": 3}, OPTIONS).most == 3


def test_an_unseeded_request_takes_the_engines_seed() -> None:
    assert [read_chat(chat_body(seed=seed), OPTIONS).wish.seed for seed in (None, -1, 4294967295, 7)] == [5, 5, 5, 7]


def test_stop_words_are_one_or_several() -> None:
    assert read_chat(chat_body(stop="a"), OPTIONS).wish.stop == ("a",)
    assert read_messages(chat_body(stop_sequences=["a", "b"]), OPTIONS).wish.stop == ("a", "b")


def test_numbers_are_checked() -> None:
    for field in ("max_tokens", "temperature", "seed", "top_k"):
        assert f"'{field}'" in refusal(read_chat, chat_body(**{field: "x"}), OPTIONS)[1]
    assert "1 <= value <= 2, but got 3" in refusal(read_chat, chat_body(n=3), OPTIONS)[1]
    assert "'max_tokens': Value must be between -1" in refusal(read_chat, chat_body(max_tokens=1e300), OPTIONS)[1]


def test_choices_are_asked_for_by_two_names() -> None:
    two: list[dict[str, Any]] = [
        {"n": 2}, {"n": 2.0}, {"n_cmpl": 2.7}, {"n": 1, "n_cmpl": 2}, {"n": 2, "n_cmpl": None},
    ]  # fmt: skip
    one: list[dict[str, Any]] = [{}, {"n": None}, {"n": True}, {"n": 2, "n_cmpl": 1}]
    responses, prompt, infill = {"input": "hi"}, {"prompt": "hi"}, {"input_prefix": "a", "input_suffix": "b"}
    for read, body in (
        (read_chat, chat_body()), (read_prompt, prompt), (read_infill, infill), (read_responses, responses)
    ):  # fmt: skip
        for asked in two:
            assert read(body | asked, OPTIONS).choices == 2
        for asked in one:
            assert read(body | asked, OPTIONS).choices == 1
        for wrong in (0, 3, -1, 1e300):
            words = refusal(read, body | {"n_cmpl": wrong}, OPTIONS)[1]
            assert words.startswith("Field 'n_cmpl': Value must be between 1 <= value <= 2, but got ")
        assert "must be number, but is string" in refusal(read, body | {"n": "2"}, OPTIONS)[1]
    assert read_messages(chat_body(n=2, n_cmpl=2), OPTIONS).choices == 1
    assert read_messages(chat_body(n="x"), OPTIONS).choices == 1


def test_wrong_types_as_the_real_engine_takes_them() -> None:
    ignored: list[Any] = [5, 1.5, {}, True, [None]]
    for stop in ignored:
        assert read_chat(chat_body(stop=stop), OPTIONS).wish.stop == ()
    assert refusal(read_chat, chat_body(stop=[5]), OPTIONS) == (
        400, "Field 'stop': [json.exception.type_error.302] type must be string, but is number",
    )  # fmt: skip
    assert refusal(read_chat, chat_body(tools=5), OPTIONS) == (
        500, "Failed to parse tools: Expected 'tools' to be an array, got 5; tools = 5",
    )  # fmt: skip
    assert refusal(read_chat, chat_body(tools=[5]), OPTIONS) == (
        500, "Failed to parse tools: Missing tool type: 5; tools = [\n  5\n]",
    )  # fmt: skip
    assert read_messages(chat_body(tools=5), OPTIONS).wish.tool is None
    assert refusal(read_responses, {"input": "x", "tools": 5}, OPTIONS)[1] == "'tools' must be an array of objects"
    assert refusal(read_responses, {"input": 5}, OPTIONS)[1] == "'input' must be a string or array of objects"
    assert refusal(read_responses, {"input": [5]}, OPTIONS)[1] == "Cannot determine type of 'item'"
    assert refusal(read_chat, {"messages": [5]}, OPTIONS)[0] == 400
    assert refusal(read_prompt, {"prompt": []}, OPTIONS)[1] == '"prompt" must not be empty'


def test_prompts_are_texts_tokens_or_lists_of_them() -> None:
    assert read_prompt({"prompt": "a b"}, OPTIONS).prompts == [tokenize("a b")]
    assert read_prompt({"prompt": [1, 2]}, OPTIONS).prompts == [[1, 2]]
    assert read_prompt({"prompt": [1, "a b", 2]}, OPTIONS).prompts == [[1, *tokenize("a b"), 2]]
    assert read_prompt({"prompt": ["a", [1, 2]]}, OPTIONS).prompts == [tokenize("a"), [1, 2]]
    assert refusal(read_prompt, {"prompt": {"a": 1}}, OPTIONS)[0] == 400


def test_infill_wants_both_sides() -> None:
    assert refusal(read_infill, {"input_prefix": "a"}, OPTIONS) == (400, '"input_suffix" is required')
    assert read_infill({"input_prefix": "a", "input_suffix": "b"}, OPTIONS).prompts == [tokenize("b\na")]


def test_inputs_must_fit() -> None:
    assert read_inputs({"input": ["a", "b"]}, OPTIONS) == [tokenize("a"), tokenize("b")]
    assert read_inputs({"content": [1, 2]}, OPTIONS) == [[1, 2]]
    assert refusal(read_inputs, {"input": "word " * 70}, OPTIONS)[0] == 400


def test_tools_are_seen_only_by_a_model_that_knows_them() -> None:
    from proxy.emulated.options import EmulatedModel

    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert read_chat(chat_body(tools=tools), OPTIONS).wish.tool is not None
    plain = Options(models=(EmulatedModel("a", capabilities=("completion",)),))
    asked = read_chat(chat_body(tools=tools), plain)
    assert asked.wish.tool is None
    assert asked.prompts == read_chat(chat_body(), plain).prompts


def test_messages_drop_a_named_slot() -> None:
    assert read_messages(chat_body(id_slot=1), OPTIONS).body["id_slot"] is None
