"""The `openai` package against slotgate."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.clients.stage import LONG, PICTURE, QUESTION, THING, TOOL_QUESTION, WEATHER, Stage

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
TOOL_MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": TOOL_QUESTION}]
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": WEATHER,
        },
    }
]


@pytest.fixture
def client(slotgate_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{slotgate_url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def client_async(slotgate_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{slotgate_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI, stage: Stage) -> None:
    answer = client.chat.completions.create(model=stage.model, messages=MESSAGES, max_tokens=8, seed=1, temperature=0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.model == stage.model


def test_a_streamed_chat_says_what_the_whole_one_says(client: openai.OpenAI, stage: Stage) -> None:
    wanted: dict[str, Any] = {"model": stage.model, "messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0}
    whole = client.chat.completions.create(**wanted)
    chunks = list(client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_async_chat(client_async: openai.AsyncOpenAI, stage: Stage) -> None:
    stream = await client_async.chat.completions.create(
        model=stage.model, messages=MESSAGES, max_completion_tokens=5, temperature=0, stream=True
    )
    reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert reasons[-1] == "length"


async def test_a_stream_can_be_left(client_async: openai.AsyncOpenAI, stage: Stage) -> None:
    async with stage.left_async():
        stream = await client_async.chat.completions.create(
            model=stage.model, messages=MESSAGES, max_tokens=LONG, stream=True
        )
        await anext(aiter(stream))
        await stream.close()
    answer = await client_async.chat.completions.create(model=stage.model, messages=MESSAGES, max_tokens=2)
    assert answer.choices[0].message.content


def test_completions(client: openai.OpenAI, stage: Stage) -> None:
    answer = client.completions.create(model=stage.model, prompt="Once upon a time", max_tokens=6)
    assert answer.choices[0].text
    chunks = client.completions.create(model=stage.model, prompt="Once upon a time", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_models(client: openai.OpenAI, stage: Stage) -> None:
    names = [model.id for model in client.models.list()]
    assert any(name.split(":")[0] == stage.model for name in names)
    assert len(names) == len(set(names))


def test_tools(client: openai.OpenAI, stage: Stage) -> None:
    messages = list(TOOL_MESSAGES)
    answer = client.chat.completions.create(model=stage.model, messages=messages, tools=TOOLS, temperature=0)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert isinstance(json.loads(calls[0].function.arguments)["city"], str)
    call: Any = calls[0].to_dict()
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": calls[0].id, "content": "12 degrees"}]
    after = client.chat.completions.create(model=stage.model, messages=messages, tools=TOOLS, max_tokens=5)
    assert after.choices[0].message.content


def test_streamed_tools(client: openai.OpenAI, stage: Stage) -> None:
    arguments, name = "", ""
    stream = client.chat.completions.create(
        model=stage.model, messages=TOOL_MESSAGES, tools=TOOLS, temperature=0, stream=True
    )
    for chunk in stream:
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            if call.function is not None:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "get_weather"
    assert set(json.loads(arguments)) == {"city"}


def test_structured_output(client: openai.OpenAI, stage: Stage) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": THING}}
    answer = client.chat.completions.create(
        model=stage.model, messages=MESSAGES, response_format=form, max_tokens=300, temperature=0
    )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"name", "count"}


def test_embeddings(client: openai.OpenAI, stage: Stage) -> None:
    model = stage.needs_embeddings()
    answer = client.embeddings.create(model=model, input=["hello", "there"])  # asks for base64 by itself
    assert [entry.index for entry in answer.data] == [0, 1]
    plain = client.embeddings.create(model=model, input="hello", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-5)


def test_responses(client: openai.OpenAI, stage: Stage) -> None:
    answer = client.responses.create(model=stage.model, input="hi", max_output_tokens=6, temperature=0)
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 6
    kinds = [
        event.type
        for event in client.responses.create(
            model=stage.model, input="hi", max_output_tokens=6, temperature=0, stream=True
        )
    ]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_pictures(client: openai.OpenAI, stage: Stage) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    if not stage.seer:
        with pytest.raises(openai.APIStatusError, match="image input is not supported"):
            client.chat.completions.create(model=stage.model, messages=messages, max_tokens=5)
        return
    seen = client.chat.completions.create(model=stage.seer, messages=messages, max_tokens=5)
    assert seen.choices[0].message.content


async def test_the_connection_is_used_again(stage: Stage) -> None:
    wanted: dict[str, Any] = {"model": stage.model, "messages": MESSAGES, "max_tokens": 2}
    # The synchronous client closes its connection after each stream.
    with stage.few_connections() as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            await client.chat.completions.create(**wanted)
            assert [chunk async for chunk in await client.chat.completions.create(**wanted, stream=True)]
            await client.models.list()
            await client.chat.completions.create(**wanted)


def test_an_unknown_model_is_not_found(client: openai.OpenAI, stage: Stage) -> None:
    stage.needs_routing()
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="nope"):
            client.chat.completions.create(model="nope", messages=MESSAGES, stream=stream)


def test_a_bad_request_is_one(client: openai.OpenAI, stage: Stage) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=stage.model, messages="x")  # type: ignore[arg-type]
