from typing import Any

import msgspec
import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.translate import Translated, chat, embed, full_name, generate, model_facts, thinks
from scheduler.domain import Engine
from tests.proxy.dialects.support import FACTS, call_of, captured

PNG = "iVBORw0KGgoAAAANSUhEUg=="
SEES = msgspec.structs.replace(FACTS, props={"modalities": {"vision": True}})
THINKS = msgspec.structs.replace(FACTS, chat_template="{% if enable_thinking %}<think>{% endif %}")


def asked(path: str, facts: EngineFacts = FACTS, **body: Any) -> Translated:
    call = call_of(path, {"model": "Smol:latest"} | body)
    translate = {"/api/chat": chat, "/api/generate": generate}.get(path, embed)
    return translate(call, facts)


def user(text: str = "x", **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} | more]


def test_chat() -> None:
    made = asked(
        "/api/chat", messages=[{"Role": "USER", "content": "x"}], options={"num_predict": 3, "num_ctx": 9999}, tools=[]
    )
    assert made == Translated(
        "/v1/chat/completions",
        {
            "model": "smol",
            "stream": True,
            "return_progress": True,
            "n_predict": 3,
            "messages": [{"role": "user", "content": "x"}],
        },
    )


def test_generate_uses_the_models_template() -> None:
    made = asked("/api/generate", prompt="hi", system="Be brief.")
    assert made.path == "/v1/chat/completions"
    assert made.fields["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_raw_and_suffix() -> None:
    made = asked("/api/generate", prompt="hi", raw=True, format="json", logprobs=True)
    assert made.path == "/completion"
    assert (made.fields["prompt"], made.fields["json_schema"], made.fields["n_probs"]) == ("hi", {"type": "object"}, 1)
    made = asked("/api/generate", prompt="def f(", suffix="return", options={"stop": ["x"]})
    assert made.path == "/infill"
    assert (made.fields["input_prefix"], made.fields["input_suffix"]) == ("def f(", "return")
    with pytest.raises(ClientError, match="images need the model's template"):
        asked("/api/generate", prompt="x", raw=True, images=[PNG])


def test_formats() -> None:
    assert asked("/api/chat", messages=user(), format="json").fields["response_format"] == {"type": "json_object"}
    schema = {"type": "object"}
    wrapped = {"type": "json_schema", "json_schema": {"name": "format", "schema": schema}}
    assert asked("/api/chat", messages=user(), format=schema).fields["response_format"] == wrapped
    for free in ("", None):
        assert "response_format" not in asked("/api/chat", messages=user(), format=free).fields
    with pytest.raises(ClientError, match="invalid format"):
        asked("/api/chat", messages=user(), format="xml")


def test_images() -> None:
    made = asked("/api/chat", SEES, messages=user("what", images=[PNG, "/9j/4AAQ", "aGVsbG8="]))
    parts = made.fields["messages"][0]["content"]
    assert parts[0] == {"type": "text", "text": "what"}
    starts = [part["image_url"]["url"].partition(",")[0] for part in parts[1:]]
    assert starts == ["data:image/png;base64", "data:image/jpeg;base64", "data:image/jpeg;base64"]
    with pytest.raises(ClientError) as caught:
        asked("/api/chat", messages=user("what", images=[PNG]))
    example = captured("ollama/037")
    assert (caught.value.status, caught.value.message) == (400, msgspec.json.decode(example.answer)["error"])


@pytest.mark.parametrize("key", ["images", "Images"])
def test_an_image_may_be_wrapped_anywhere(key: str) -> None:
    for at in range(len(PNG)):
        wrapped = PNG[:at] + "\r\n" + PNG[at:] + "\n"
        made = asked("/api/chat", SEES, messages=user("what", **{key: [wrapped]}))
        assert made.fields["messages"][0]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    short = asked("/api/generate", SEES, prompt="what", images=["\niQ==\n"])
    assert short.fields["messages"][0]["content"][1]["image_url"]["url"] == "data:image/jpeg;base64,iQ=="


def test_thinking() -> None:
    assert not thinks(FACTS, None)
    assert thinks(FACTS, ModelFacts(name="x", capabilities=("thinking",)))
    arguments = {True: {"enable_thinking": True}, False: {"enable_thinking": False}}
    for think, wanted in arguments.items():
        assert asked("/api/chat", THINKS, messages=user(), think=think).fields["chat_template_kwargs"] == wanted
    high = asked("/api/generate", THINKS, prompt="x", think="high").fields["chat_template_kwargs"]
    assert high == {"enable_thinking": True, "reasoning_effort": "high"}
    assert "chat_template_kwargs" not in asked("/api/chat", THINKS, messages=user()).fields
    assert "chat_template_kwargs" not in asked("/api/chat", messages=user(), think=False).fields
    with pytest.raises(ClientError) as caught:
        chat(call_of("/api/chat", {"model": "smol", "messages": user(), "think": True}), FACTS)
    example = captured("ollama/038")
    assert (caught.value.status, caught.value.message) == (400, msgspec.json.decode(example.answer)["error"])


def test_logprobs() -> None:
    fields = asked("/api/chat", messages=user(), logprobs=True, top_logprobs=3).fields
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 3)
    assert asked("/api/chat", messages=user(), logprobs=True).fields["top_logprobs"] == 1
    assert "top_logprobs" not in asked("/api/chat", messages=user(), top_logprobs=3).fields


def test_tool_calls_and_their_results() -> None:
    def wants(city: str, **more: Any) -> dict[str, Any]:
        return {"function": {"name": "weather", "arguments": {"city": city}}} | more

    tools = [{"type": "function", "function": {"name": "weather"}}]
    messages = [
        *user("both?"),
        {"role": "assistant", "thinking": "hm", "tool_calls": [wants("Rome"), wants("Oslo", id="mine")]},
        {"role": "tool", "tool_call_id": "mine", "content": "cold", "tool_name": "weather"},
        {"role": "tool", "content": "warm", "tool_name": "weather"},
        {"role": "tool", "content": "stray"},
    ]
    fields = asked("/api/chat", messages=messages, tools=tools).fields
    assert fields["tools"] == tools
    _, assistant, first, second, stray = fields["messages"]
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"] == [
        {"id": "call_1_0", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        {"id": "mine", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
    ]
    assert (first["tool_call_id"], second["tool_call_id"], second["name"]) == ("mine", "call_1_0", "weather")
    assert stray == {"role": "tool", "content": "stray", "tool_call_id": "call_0"}
    for broken in ([1], [{"function": {"name": "f", "arguments": "{}"}}]):
        with pytest.raises(ClientError, match="tool_calls"):
            asked("/api/chat", messages=[{"role": "assistant", "tool_calls": broken}])


def test_embeddings() -> None:
    assert asked("/api/embed", input=["a"]) == Translated("/v1/embeddings", {"model": "smol", "input": ["a"]})
    assert asked("/api/embeddings", prompt="a").fields["input"] == "a"


def test_names() -> None:
    assert full_name("smol") == "registry.ollama.ai/library/smol:latest"
    assert full_name("me/smol:1") == "registry.ollama.ai/me/smol:1"
    assert full_name("hf.co/a/b:q4") == "hf.co/a/b:q4"
    two = msgspec.structs.replace(FACTS, models=(ModelFacts(name="a"), ModelFacts(name="b")))
    assert [(model_facts(two, name) or FACTS.models[0]).name for name in ("B:latest", "c", None)] == ["b", "a", "a"]
    assert model_facts(EngineFacts(engine=Engine.LLAMA_SERVER), "a") is None
