"""The `langchain-ollama` package against slotgate."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError

from tests.clients.stage import LONG, PICTURE, QUESTION, THING, TOOL_QUESTION, Stage


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"12 degrees in {city}"


def model_of(stage: Stage, **more: Any) -> ChatOllama:
    stage.needs("ollama")
    values: dict[str, Any] = {"model": stage.model, "num_predict": 8, "seed": 1, "temperature": 0} | more
    return ChatOllama(base_url=stage.url, **values)


def test_invoke_and_stream(stage: Stage) -> None:
    model = model_of(stage)
    whole = model.invoke(QUESTION)
    assert isinstance(whole, AIMessage)
    assert whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(str(part.content) for part in model.stream(QUESTION)) == whole.content


async def test_async_invoke_and_stream(stage: Stage) -> None:
    model = model_of(stage)
    whole = await model.ainvoke([HumanMessage(QUESTION)])
    assert "".join([str(part.content) async for part in model.astream(QUESTION)]) == whole.content
    batch = await model.abatch([QUESTION] * 5)
    assert {message.content for message in batch} == {whole.content}


def test_plain_text(stage: Stage) -> None:
    stage.needs("ollama")
    assert OllamaLLM(model=stage.model, base_url=stage.url, num_predict=5).invoke("Once upon a time")


def test_tools(stage: Stage) -> None:
    model = model_of(stage, num_predict=100).bind_tools([get_weather])
    first = model.invoke(TOOL_QUESTION)
    assert isinstance(first, AIMessage)
    (call,) = first.tool_calls
    assert call["name"] == "get_weather"
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=str(call["id"]))
    assert model.invoke([HumanMessage(TOOL_QUESTION), first, result]).content


def test_structured_output(stage: Stage) -> None:
    model = model_of(stage, num_predict=300).with_structured_output(THING, method="json_schema")
    value = model.invoke("A thing as JSON")
    assert isinstance(value, dict)
    assert set(value) == {"name", "count"}


def test_embeddings(stage: Stage) -> None:
    stage.needs("ollama")
    embedder = OllamaEmbeddings(model=stage.needs_embeddings(), base_url=stage.url)
    vectors = embedder.embed_documents(["hello", "there"])
    assert vectors[0] == pytest.approx(embedder.embed_query("hello"), abs=1e-5)


def test_pictures(stage: Stage) -> None:
    image = {"type": "image_url", "image_url": f"data:image/png;base64,{PICTURE}"}
    message = HumanMessage([{"type": "text", "text": "What is it?"}, image])
    if not stage.seer:
        with pytest.raises(ResponseError, match="does not support multimodal requests"):
            model_of(stage).invoke([message])
        return
    assert model_of(stage, model=stage.seer).invoke([message]).content


async def test_a_stream_can_be_left(stage: Stage) -> None:
    async with stage.left_async():
        stream = model_of(stage, num_predict=LONG).astream(QUESTION)
        assert await anext(stream)
        await stream.aclose()
    with stage.left():
        parts = model_of(stage, num_predict=LONG).stream(QUESTION)
        assert next(parts)
        parts.close()


def test_the_connection_is_used_again(stage: Stage) -> None:
    stage.needs("ollama")
    with stage.few_connections() as url:
        model = ChatOllama(model=stage.model, base_url=url, num_predict=2)
        model.invoke(QUESTION)
        assert list(model.stream(QUESTION))
        model.invoke(QUESTION)


def test_an_unknown_model_is_not_found(stage: Stage) -> None:
    stage.needs("ollama")
    with pytest.raises(ResponseError, match="not found") as caught:
        ChatOllama(model="nope", base_url=stage.url).invoke(QUESTION)
    assert caught.value.status_code == 404
