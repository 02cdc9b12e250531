"""The package `@langchain/ollama` against slotgate."""

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
    return lambda check, **more: javascript("langchain_ollama").ask(check, stage, **more)


def test_whole_and_streamed(ask: Ask) -> None:
    whole = ask("whole")
    assert whole["text"]
    assert whole["usage"]["output_tokens"] == 8
    streamed = ask("streamed")
    assert streamed["text"] == whole["text"]
    assert streamed["usage"]["output_tokens"] == 8


def test_plain_text(ask: Ask) -> None:
    assert ask("generated")


def test_tools(ask: Ask) -> None:
    seen = ask("tools", question=TOOL_QUESTION, schema=WEATHER)
    for calls in (seen["calls"], seen["streamed"]):
        assert [(call["name"], set(call["args"])) for call in calls] == [("get_weather", {"city"})]
    assert seen["after"]


def test_structured_output(ask: Ask) -> None:
    assert set(ask("structured", schema=THING)) == {"name", "count"}


def test_embeddings(ask: Ask, stage: Stage) -> None:
    seen = ask("embeddings", embedder=stage.needs_embeddings())
    assert len(seen["embeddings"]) == 2
    assert seen["embedding"] == pytest.approx(seen["embeddings"][0], abs=1e-5)


def test_pictures(ask: Ask, stage: Stage) -> None:
    if stage.seer:
        assert ask("picture", model=stage.seer, picture=PICTURE)
        return
    with pytest.raises(JavaScriptError, match="does not support multimodal requests") as caught:
        ask("picture", picture=PICTURE)
    assert (caught.value.kinds[0], caught.value.status) == ("ResponseError", 400)


def test_a_stream_can_be_left(ask: Ask, stage: Stage) -> None:
    with stage.left():
        assert 1 <= ask("leaves", limit=LONG)["seen"] < LONG


def test_an_unknown_model_is_not_found(ask: Ask) -> None:
    with pytest.raises(JavaScriptError, match="model 'nope' not found") as caught:
        ask("unknown")
    assert (caught.value.kinds[0], caught.value.status) == ("ResponseError", 404)


def test_connections_are_used_again(ask: Ask, stage: Stage) -> None:
    with stage.few_connections(NODE_CONNECTIONS) as url:
        ask("several", url=url)
