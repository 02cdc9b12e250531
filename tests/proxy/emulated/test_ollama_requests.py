from typing import Any

import msgspec
import orjson
import pytest

from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_requests import (
    check_model,
    prompt_tokens,
    read_anthropic,
    read_chat,
    read_generate,
    read_openai_chat,
    read_openai_completion,
    read_responses,
    wish_of,
)
from proxy.emulated.options import EmulatedModel, Options
from proxy.emulated.text import detokenize, tokenize
from tests.proxy.emulated.support import chat_body, stored


def packed(value: Any) -> bytes:
    return orjson.dumps(value)


def test_an_empty_request_only_loads() -> None:
    assert read_chat(packed({"model": "a", "messages": []})).empty
    assert read_generate(packed({"model": "a", "keep_alive": 0})).empty
    assert not read_generate(packed({"model": "a", "prompt": "x"})).empty


def test_ollama_streams_unless_told_not_to_and_the_others_the_other_way() -> None:
    assert read_chat(packed(chat_body())).stream
    assert not read_chat(packed(chat_body(stream=False))).stream
    assert not read_openai_chat(packed(chat_body())).stream
    assert read_anthropic(packed(chat_body(stream=True, max_tokens=1))).stream


def test_prompts_of_generate() -> None:
    def text(**more: Any) -> str:
        return detokenize(prompt_tokens(read_generate(packed({"model": "a", "prompt": "hi", **more})), 512))

    assert text() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text(system="Be brief.").startswith("<|im_start|>system\nBe brief.")
    assert text(raw=True) == "hi"
    assert text(template="{{ .System }} // {{ .Prompt }}", system="s") == "s // hi"
    assert text(context=tokenize("before ")).startswith("before <|im_start|>user")


def test_a_chat_that_is_too_long_loses_its_oldest_messages() -> None:
    messages = [{"role": "system", "content": "stay"}]
    messages += [{"role": "user", "content": f"number {n} " + "word " * 50} for n in range(9)]
    text = detokenize(prompt_tokens(read_chat(packed({"model": "a", "messages": messages})), 200))
    assert "stay" in text
    assert "number 8" in text
    assert "number 0" not in text


def test_a_single_message_that_is_too_long_is_cut_as_recorded() -> None:
    body = chat_body("word " * 9000)
    assert len(prompt_tokens(read_chat(packed(body)), 4096)) == 2050


def test_a_prompt_that_must_not_be_cut_is_refused_in_the_childs_words() -> None:
    body = chat_body("word " * 600, truncate=False, shift=False)
    with pytest.raises(OllamaError) as caught:
        prompt_tokens(read_chat(packed(body)), 512)
    error = orjson.loads(caught.value.message)["error"]
    assert (caught.value.status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 512)


def test_pictures_are_only_for_models_that_see() -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]}
    seeing, blind = read_chat(packed(body)), read_chat(packed(body))
    check_model(seeing, stored(EmulatedModel("a", ("completion", "vision"))))
    check_model(blind, stored(EmulatedModel("a", ("completion",))))
    assert prompt_tokens(seeing, 512)
    with pytest.raises(OllamaError, match="does not support multimodal requests"):
        prompt_tokens(blind, 512)


def test_options_travel() -> None:
    asked = read_chat(packed(chat_body(options={"num_ctx": 99, "num_predict": 5, "seed": 4, "stop": ["x"]})))
    assert (asked.runner, asked.most) == ({"num_ctx": 99}, 5)
    wish = wish_of(asked, Options(seed=1))
    assert (wish.seed, wish.stop) == (4, ("x",))
    assert wish_of(read_openai_chat(packed(chat_body(seed=9, stop="y"))), Options()).stop == ("y",)
    assert read_openai_completion(packed({"model": "a", "prompt": "x", "max_tokens": 3})).most == 3
    assert read_responses(packed({"model": "a", "input": "x", "max_output_tokens": 3})).most == 3


@pytest.mark.parametrize(
    ("more", "capabilities", "message"),
    [
        ({"tools": [{}]}, ("completion",), "registry.ollama.ai/library/a:latest does not support tools"),
        ({"think": True}, ("completion",), '"emulated" does not support thinking'),
        ({"suffix": "x"}, ("completion",), "registry.ollama.ai/library/a:latest does not support insert"),
        ({}, ("embedding",), '"emulated" does not support chat'),
        ({"options": {"num_ctx": "x"}}, ("completion",), 'option "num_ctx" must be of type integer'),
    ],
)
def test_what_a_model_cannot_do(more: dict[str, Any], capabilities: tuple[str, ...], message: str) -> None:
    with pytest.raises(OllamaError) as caught:
        check_model(read_chat(packed(chat_body(**more))), stored(EmulatedModel("a", capabilities)))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("read", "body", "message"),
    [
        (read_openai_chat, {"messages": []}, "[] is too short - 'messages'"),
        (read_anthropic, {"messages": [{}]}, "max_tokens is required and must be positive"),
        (read_anthropic, {"max_tokens": 3}, "messages is required"),
        (read_responses, {"model": "a"}, "input is required"),
    ],
)
def test_what_is_missing(read: Any, body: dict[str, Any], message: str) -> None:
    with pytest.raises(OllamaError) as caught:
        read(packed(body))
    assert (caught.value.status, caught.value.message) == (400, message)


def test_what_the_modelfile_says_holds_where_the_request_is_silent() -> None:
    model = stored(EmulatedModel("a", settings={"num_ctx": 8192, "num_predict": 7, "stop": ["END"]}))
    asked = read_chat(packed(chat_body(options={"num_predict": 3, "seed": None}, shift=False)))
    check_model(asked, model)
    assert asked.runner == {"num_ctx": 8192, "shift": False}
    assert (asked.most, wish_of(asked, Options()).stop) == (3, ("END",))
    plain = read_chat(packed(chat_body()))
    check_model(plain, stored("a"))
    assert (plain.runner, wish_of(plain, Options()).stop) == ({}, ())  # every model's own end of a turn is no word


def test_the_models_system_text_gives_way_to_the_requests() -> None:
    model = msgspec.structs.replace(stored("a"), system="Be brief.")
    for messages, first in (([], "Be brief."), ([{"role": "system", "content": "Be long."}], "Be long.")):
        asked = read_chat(packed({"model": "a", "messages": [*messages, {"role": "user", "content": "x"}]}))
        check_model(asked, model)
        assert [message["content"] for message in asked.messages] == [first, "x"]


def test_probabilities_are_told_when_they_are_asked_for() -> None:
    for more, expected in (({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 2}, 2)):
        assert read_chat(packed(chat_body(**more))).logprobs == expected
