"""The `ollama` package against slotgate: also in front of llama-servers, which do not speak that API."""

import asyncio
import json
from typing import Any

import ollama
import pytest

from tests.clients.conftest import Stage
from tests.wait import until_sync

MESSAGES = [{"role": "user", "content": "Count from one to five."}]
LIMIT = {"num_predict": 8, "seed": 1, "temperature": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["name", "count"],
}


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    return f"12 degrees in {city}"


@pytest.fixture
def client(slotgate_url: str, stage: Stage) -> ollama.Client:
    stage.needs("ollama")
    return ollama.Client(host=slotgate_url)


@pytest.fixture
def client_async(slotgate_url: str, stage: Stage) -> ollama.AsyncClient:
    stage.needs("ollama")
    return ollama.AsyncClient(host=slotgate_url)


def test_chat(client: ollama.Client, stage: Stage) -> None:
    answer = client.chat(stage.model, MESSAGES, options=LIMIT)
    assert answer.message.content
    assert (answer.model, answer.done, answer.done_reason, answer.eval_count) == (stage.model, True, "length", 8)
    assert answer.prompt_eval_count
    assert answer.total_duration
    assert answer.eval_duration


def test_a_streamed_chat_says_what_the_whole_one_says(client: ollama.Client, stage: Stage) -> None:
    whole = client.chat(stage.model, MESSAGES, options=LIMIT)
    parts = list(client.chat(stage.model, MESSAGES, options=LIMIT, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 8


def test_generate(client: ollama.Client, stage: Stage) -> None:
    whole = client.generate(stage.model, "Once upon a time", options=LIMIT)
    parts = list(client.generate(stage.model, "Once upon a time", options=LIMIT, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.eval_count == 8
    raw = client.generate(stage.model, "Once", raw=True, options=LIMIT)
    assert raw.context is None
    assert (raw.prompt_eval_count or 0) < (whole.prompt_eval_count or 0)


async def test_async_chats_at_once(client_async: ollama.AsyncClient, stage: Stage) -> None:
    answers = await asyncio.gather(*(client_async.chat(stage.model, MESSAGES, options=LIMIT) for _ in range(8)))
    assert all(answer.message.content for answer in answers)
    parts = [part async for part in await client_async.chat(stage.model, MESSAGES, options=LIMIT, stream=True)]
    assert parts[-1].done_reason == "length"


def test_loading_and_unloading(client: ollama.Client, stage: Stage) -> None:
    assert client.generate(stage.model).done_reason == "load"
    assert client.chat(stage.model, []).done_reason == "load"
    # Slotgate asks its engines now and then: what it shows of them may be seconds old.
    name = f"{stage.model}:latest"
    until_sync(lambda: name in [model.model for model in client.ps().models], "the model is shown", timeout_s=30)
    assert client.generate(stage.model, keep_alive=0).done_reason == "unload"
    assert client.generate(stage.model, "hi", options=LIMIT).response  # and back again


def test_what_there_is(client: ollama.Client, stage: Stage) -> None:
    names = [model.model for model in client.list().models]
    assert names.count(f"{stage.model}:latest") == 1
    shown = client.show(stage.model)
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert shown.modelinfo


def test_tools(client: ollama.Client, stage: Stage) -> None:
    stage.needs_tools()
    messages: list[Any] = list(MESSAGES)
    answer = client.chat(stage.model, messages, tools=[get_weather])
    assert answer.message.tool_calls
    call = answer.message.tool_calls[0].function
    assert call.name == "get_weather"
    messages += [answer.message, {"role": "tool", "content": get_weather(**call.arguments), "tool_name": call.name}]
    assert client.chat(stage.model, messages, tools=[get_weather], options=LIMIT).message.content
    parts = list(client.chat(stage.model, MESSAGES, tools=[get_weather], stream=True))
    assert any(part.message.tool_calls for part in parts)
    assert parts[-1].done


def test_structured_output(client: ollama.Client, stage: Stage) -> None:
    options = {"num_predict": 300, "temperature": 0}
    answer = client.chat(stage.model, MESSAGES, format=SCHEMA, options=options)
    assert set(json.loads(answer.message.content or "")) == {"name", "count"}
    generated = client.generate(stage.model, "A thing as JSON", format=SCHEMA, options=options)
    assert set(json.loads(generated.response or "")) == {"name", "count"}


def test_embeddings(client: ollama.Client, stage: Stage) -> None:
    model = stage.needs_embeddings()
    answer = client.embed(model, ["hello", "there"])
    assert len(answer.embeddings) == 2
    assert sum(value * value for value in answer.embeddings[0]) == pytest.approx(1, abs=1e-3)
    old = client.embeddings(model, "hello")
    assert list(old.embedding) == pytest.approx(list(answer.embeddings[0]), abs=1e-5)


def test_an_unknown_model_is_not_found(client: ollama.Client) -> None:
    for ask in (
        lambda: client.chat("nope", MESSAGES),
        lambda: list(client.chat("nope", MESSAGES, stream=True)),
        lambda: client.generate("nope", "x"),
        lambda: client.embed("nope", "x"),
    ):
        with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as caught:
            ask()
        assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show("nope")


async def test_a_stream_can_be_left(client_async: ollama.AsyncClient, stage: Stage) -> None:
    for _ in range(5):  # more than there are slots: each must be free again
        stream = await client_async.generate(stage.model, "On and on", options={"num_predict": 300}, stream=True)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
    assert (await client_async.generate(stage.model, "hi", options=LIMIT)).response
