"""The `anthropic` package against slotgate."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from tests.clients.stage import LONG, PICTURE, QUESTION, TOOL_QUESTION, WEATHER, Stage

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOOL_MESSAGES: Any = [{"role": "user", "content": TOOL_QUESTION}]
COLD = {"temperature": 0}
"""The package itself has no such parameter any more."""
TOOLS: Any = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}]


@pytest.fixture
def client(slotgate_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=slotgate_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def client_async(slotgate_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=slotgate_url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic, stage: Stage) -> None:
    answer = client.messages.create(model=stage.model, max_tokens=8, messages=MESSAGES, extra_body=COLD)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 8)
    more = client.messages.create(model=stage.model, max_tokens=8, messages=MESSAGES, system="Be brief.")
    assert more.usage.output_tokens <= 8


def test_a_streamed_message(client: anthropic.Anthropic, stage: Stage) -> None:
    with client.messages.stream(model=stage.model, max_tokens=8, messages=MESSAGES, extra_body=COLD) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert last.content[0].type == "text"
    assert text == last.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 8)


async def test_async_messages(client_async: anthropic.AsyncAnthropic, stage: Stage) -> None:
    answer = await client_async.messages.create(model=stage.model, max_tokens=4, messages=MESSAGES, extra_body=COLD)
    assert answer.usage.output_tokens == 4


def test_a_stream_can_be_left(client: anthropic.Anthropic, stage: Stage) -> None:
    with stage.left():
        with client.messages.stream(model=stage.model, max_tokens=LONG, messages=MESSAGES) as stream:
            assert next(iter(stream.text_stream))


def test_tools(client: anthropic.Anthropic, stage: Stage) -> None:
    wanted: Any = {"model": stage.model, "tools": TOOLS, "extra_body": COLD}
    answer = client.messages.create(max_tokens=100, messages=TOOL_MESSAGES, **wanted)
    assert answer.stop_reason == "tool_use"
    block = answer.content[-1]
    assert block.type == "tool_use"
    assert (block.name, set(block.input)) == ("get_weather", {"city"})
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"}
    messages = [
        *TOOL_MESSAGES,
        {"role": "assistant", "content": [block.to_dict()]},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(max_tokens=5, messages=messages, **wanted)
    assert after.content[0].type == "text"


def test_streamed_tools(client: anthropic.Anthropic, stage: Stage) -> None:
    with client.messages.stream(
        model=stage.model, max_tokens=100, messages=TOOL_MESSAGES, tools=TOOLS, extra_body=COLD
    ) as stream:
        last = stream.get_final_message()
    block = last.content[-1]
    assert block.type == "tool_use"
    assert set(block.input) == {"city"}


def test_tokens_can_be_counted_where_the_engine_can(client: anthropic.Anthropic, stage: Stage) -> None:
    if stage.engine == "ollama":
        with pytest.raises(anthropic.NotFoundError):
            client.messages.count_tokens(model=stage.model, messages=MESSAGES)
    else:
        counted = client.messages.count_tokens(model=stage.model, messages=MESSAGES)
        answer = client.messages.create(model=stage.model, max_tokens=1, messages=MESSAGES)
        assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_pictures(client: anthropic.Anthropic, stage: Stage) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    messages: Any = [{"role": "user", "content": parts}]
    if not stage.seer:
        with pytest.raises(anthropic.APIStatusError, match="image input is not supported"):
            client.messages.create(model=stage.model, max_tokens=5, messages=messages)
        return
    seen = client.messages.create(model=stage.seer, max_tokens=5, messages=messages)
    assert seen.usage.output_tokens == 5


def test_the_connection_is_used_again(stage: Stage) -> None:
    with stage.few_connections() as url, anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        client.messages.create(model=stage.model, max_tokens=2, messages=MESSAGES)
        with client.messages.stream(model=stage.model, max_tokens=2, messages=MESSAGES) as stream:
            assert stream.get_final_message().usage.output_tokens == 2
        client.messages.create(model=stage.model, max_tokens=2, messages=MESSAGES)


def test_models(client: anthropic.Anthropic, stage: Stage) -> None:
    names = [model.id for model in client.models.list()]
    assert any(name.split(":")[0] == stage.model for name in names)


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic, stage: Stage) -> None:
    stage.needs_routing()
    with pytest.raises(anthropic.NotFoundError, match="nope"):
        client.messages.create(model="nope", max_tokens=8, messages=MESSAGES)
