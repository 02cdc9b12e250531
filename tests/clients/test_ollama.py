"""The `ollama` package against slotgate: also in front of llama-servers, which do not speak that API."""

import asyncio
import json
from typing import Any

import ollama
import pytest

from tests.clients.stage import LONG, PICTURE, QUESTION, THING, TOOL_QUESTION, Stage
from tests.wait import until_sync

MESSAGES = [{"role": "user", "content": QUESTION}]
COLD = {"temperature": 0}
LIMIT = {"num_predict": 8, "seed": 1, "temperature": 0}


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
    if stage.direct:
        assert client.generate(stage.model, keep_alive=0).done_reason == "unload"
        return
    with pytest.raises(ollama.ResponseError, match="slotgate unload") as caught:
        client.generate(stage.model, keep_alive=0)  # others use it too
    assert caught.value.status_code == 403
    assert client.generate(stage.model, "hi", keep_alive=0, options=LIMIT).response
    assert name in [model.model for model in client.ps().models]


def test_what_there_is(client: ollama.Client, stage: Stage) -> None:
    names = [model.model for model in client.list().models]
    assert names.count(f"{stage.model}:latest") == 1
    shown = client.show(stage.model)
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert shown.modelinfo


def test_tools(client: ollama.Client, stage: Stage) -> None:
    messages: list[Any] = [{"role": "user", "content": TOOL_QUESTION}]
    answer = client.chat(stage.model, messages, tools=[get_weather], options=COLD)
    assert answer.message.tool_calls
    call = answer.message.tool_calls[0].function
    assert call.name == "get_weather"
    parts = list(client.chat(stage.model, messages, tools=[get_weather], options=COLD, stream=True))
    assert any(part.message.tool_calls for part in parts)
    assert parts[-1].done
    messages += [answer.message, {"role": "tool", "content": get_weather(**call.arguments), "tool_name": call.name}]
    assert client.chat(stage.model, messages, tools=[get_weather], options=LIMIT).message.content


def test_structured_output(client: ollama.Client, stage: Stage) -> None:
    options = {"num_predict": 300, "temperature": 0}
    answer = client.chat(stage.model, MESSAGES, format=THING, options=options)
    assert set(json.loads(answer.message.content or "")) == {"name", "count"}
    generated = client.generate(stage.model, "A thing as JSON", format=THING, options=options)
    assert set(json.loads(generated.response or "")) == {"name", "count"}


def test_embeddings(client: ollama.Client, stage: Stage) -> None:
    model = stage.needs_embeddings()
    answer = client.embed(model, ["hello", "there"])
    assert len(answer.embeddings) == 2
    assert sum(value * value for value in answer.embeddings[0]) == pytest.approx(1, abs=1e-3)
    old = client.embeddings(model, "hello")
    assert list(old.embedding) == pytest.approx(list(answer.embeddings[0]), abs=1e-5)


def test_pictures(client: ollama.Client, stage: Stage) -> None:
    message: Any = {"role": "user", "content": "What is it?", "images": [PICTURE]}
    if not stage.seer:
        with pytest.raises(ollama.ResponseError, match="does not support multimodal requests"):
            client.chat(stage.model, [message])
        return
    assert "vision" in (client.show(stage.seer).capabilities or [])
    assert client.chat(stage.seer, [message], options=LIMIT).eval_count == 8
    assert client.generate(stage.seer, "What is it?", images=[PICTURE], options=LIMIT).eval_count == 8


def test_the_connection_is_used_again(stage: Stage) -> None:
    stage.needs("ollama")
    with stage.few_connections() as url:
        client = ollama.Client(host=url)
        client.chat(stage.model, MESSAGES, options=LIMIT)
        assert list(client.chat(stage.model, MESSAGES, options=LIMIT, stream=True))
        with pytest.raises(ollama.ResponseError):
            client.show("nope")
        client.list()


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
    async with stage.left_async():
        stream = await client_async.generate(stage.model, "On and on", options={"num_predict": LONG}, stream=True)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    assert (await client_async.generate(stage.model, "hi", options=LIMIT)).response
