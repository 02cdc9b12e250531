"""The package `openai` of JavaScript against slotgate."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.javascript_program import NODE_CONNECTIONS, JavaScript, JavaScriptError
from tests.clients.stage import LONG, PICTURE, THING, TOOL_QUESTION, WEATHER, Stage

Ask = Callable[..., Any]


@pytest.fixture
def ask(javascript: Callable[[str], JavaScript], stage: Stage) -> Ask:
    """Runs a check of the program."""
    return lambda check, **more: javascript("openai").ask(check, stage, **more)


def test_whole_and_streamed(ask: Ask, stage: Stage) -> None:
    whole = ask("whole")
    choice = whole["choices"][0]
    assert (choice["finish_reason"], whole["usage"]["completion_tokens"], whole["model"]) == ("length", 8, stage.model)
    streamed = ask("streamed")
    assert streamed["text"] == choice["message"]["content"]
    assert [reason for reason in streamed["reasons"] if reason] == ["length"]
    assert streamed["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_tools(ask: Ask) -> None:
    seen = ask("tools", question=TOOL_QUESTION, schema=WEATHER)
    assert seen["reason"] == "tool_calls"
    for function in (seen["calls"][0]["function"], seen["streamed"]):
        assert function["name"] == "get_weather"
        assert set(json.loads(function["arguments"])) == {"city"}
    assert seen["after"]


def test_structured_output(ask: Ask) -> None:
    assert set(ask("structured", schema=THING)) == {"name", "count"}


def test_embeddings(ask: Ask, stage: Stage) -> None:
    seen = ask("embeddings", embedder=stage.needs_embeddings())
    assert len(seen["embeddings"]) == 2
    assert seen["embedding"] == pytest.approx(seen["embeddings"][0], abs=1e-5)


def test_pictures(ask: Ask, stage: Stage) -> None:
    if stage.seer:
        assert ask("picture", model=stage.seer, picture=PICTURE)["choices"][0]["message"]["content"]
        return
    with pytest.raises(JavaScriptError, match="image input is not supported") as caught:
        ask("picture", picture=PICTURE)
    assert "APIError" in caught.value.kinds


def test_responses(ask: Ask) -> None:
    seen = ask("responses")
    assert seen["text"]
    assert seen["usage"]["output_tokens"] == 6
    assert (seen["events"][0], seen["events"][-1]) == ("response.created", "response.completed")


def test_a_stream_can_be_left(ask: Ask, stage: Stage) -> None:
    with stage.left():
        assert 1 <= ask("leaves", limit=LONG)["seen"] < LONG


def test_models(ask: Ask, stage: Stage) -> None:
    stage.needs_routing()
    seen = ask("catalog")
    assert stage.model in {name.split(":")[0] for name in seen["listed"]}
    assert seen["one"] == seen["listed"][0]


@pytest.mark.parametrize("check", ["unknown", "unknown_streamed"])
def test_an_unknown_model_is_not_found(ask: Ask, stage: Stage, check: str) -> None:
    stage.needs_routing()
    with pytest.raises(JavaScriptError, match="nope") as caught:
        ask(check)
    assert (caught.value.kinds[0], caught.value.status) == ("NotFoundError", 404)


def test_connections_are_used_again(ask: Ask, stage: Stage) -> None:
    with stage.few_connections(NODE_CONNECTIONS) as url:
        ask("several", url=url)
