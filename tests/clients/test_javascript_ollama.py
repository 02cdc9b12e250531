"""The package `ollama` of JavaScript against slotgate."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.javascript_program import NODE_CONNECTIONS, JavaScript, JavaScriptError
from tests.clients.stage import LONG, PICTURE, THING, TOOL_QUESTION, WEATHER, Stage

Ask = Callable[..., Any]


@pytest.fixture
def ask(javascript: Callable[[str], JavaScript], stage: Stage) -> Ask:
    """Runs a check of the program."""
    stage.needs("ollama")
    return lambda check, **more: javascript("ollama").ask(check, stage, **more)


def test_whole_and_streamed(ask: Ask, stage: Stage) -> None:
    whole = ask("whole")
    assert whole["message"]["content"]
    assert (whole["model"], whole["done_reason"], whole["eval_count"]) == (stage.model, "length", 8)
    streamed = ask("streamed")
    assert streamed["text"] == whole["message"]["content"]
    assert streamed["done"] == [False] * (len(streamed["done"]) - 1) + [True]
    assert streamed["tokens"] == 8


def test_generate(ask: Ask) -> None:
    generated = ask("generated")
    assert generated["whole"]
    assert generated["streamed"] == generated["whole"]


def test_tools(ask: Ask) -> None:
    seen = ask("tools", question=TOOL_QUESTION, schema=WEATHER)
    for calls in (seen["calls"], seen["streamed"]):
        assert calls[0]["function"]["name"] == "get_weather"
        assert set(calls[0]["function"]["arguments"]) == {"city"}
    assert seen["after"]


def test_structured_output(ask: Ask) -> None:
    assert set(ask("structured", schema=THING)) == {"name", "count"}


def test_embeddings(ask: Ask, stage: Stage) -> None:
    seen = ask("embeddings", embedder=stage.needs_embeddings())
    assert len(seen["embeddings"]) == 2
    assert seen["embedding"] == pytest.approx(seen["embeddings"][0], abs=1e-5)


def test_pictures(ask: Ask, stage: Stage) -> None:
    if stage.seer:
        assert ask("picture", model=stage.seer, picture=PICTURE)["eval_count"] == 8
        return
    with pytest.raises(JavaScriptError) as caught:
        ask("picture", picture=PICTURE)
    assert (caught.value.kinds[0], caught.value.status) == ("ResponseError", 400)
    assert "does not support multimodal requests" in caught.value.message


def test_a_stream_can_be_left(ask: Ask, stage: Stage) -> None:
    with stage.left():
        seen = ask("leaves", limit=LONG)
    assert seen["thrown"] == "AbortError"
    assert 1 <= seen["seen"] < LONG


def test_what_there_is(ask: Ask, stage: Stage) -> None:
    seen = ask("catalog")
    assert seen["listed"].count(f"{stage.model}:latest") == 1
    assert "completion" in seen["capabilities"]
    assert seen["version"]


@pytest.mark.parametrize("check", ["unknown", "unknown_streamed"])
def test_an_unknown_model_is_not_found(ask: Ask, check: str) -> None:
    with pytest.raises(JavaScriptError, match="model 'nope' not found") as caught:
        ask(check)
    assert (caught.value.kinds[0], caught.value.status) == ("ResponseError", 404)


def test_connections_are_used_again(ask: Ask, stage: Stage) -> None:
    with stage.few_connections(NODE_CONNECTIONS) as url:
        ask("several", url=url)
