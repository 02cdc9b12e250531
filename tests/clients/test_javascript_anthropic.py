"""The package `@anthropic-ai/sdk` against slotgate."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.javascript_program import NODE_CONNECTIONS, JavaScript, JavaScriptError
from tests.clients.stage import LONG, PICTURE, TOOL_QUESTION, WEATHER, Stage

Ask = Callable[..., Any]


@pytest.fixture
def ask(javascript: Callable[[str], JavaScript], stage: Stage) -> Ask:
    """Runs a check of the program."""
    return lambda check, **more: javascript("anthropic").ask(check, stage, **more)


def test_whole_and_streamed(ask: Ask) -> None:
    whole = ask("whole")
    assert whole["content"][0]["text"]
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 8)
    streamed = ask("streamed")
    assert streamed["seen"] == streamed["message"]["content"][0]["text"] == whole["content"][0]["text"]
    assert streamed["message"]["usage"]["output_tokens"] == 8


def test_tools(ask: Ask) -> None:
    seen = ask("tools", question=TOOL_QUESTION, schema=WEATHER)
    assert seen["reason"] == "tool_use"
    for call in (seen["call"], seen["streamed"]):
        assert (call["type"], call["name"], set(call["input"])) == ("tool_use", "get_weather", {"city"})
    assert seen["after"]["text"]


def test_pictures(ask: Ask, stage: Stage) -> None:
    if stage.seer:
        assert ask("picture", model=stage.seer, picture=PICTURE)["usage"]["output_tokens"] == 5
        return
    with pytest.raises(JavaScriptError, match="image input is not supported") as caught:
        ask("picture", picture=PICTURE)
    assert "APIError" in caught.value.kinds


def test_a_stream_can_be_left(ask: Ask, stage: Stage) -> None:
    with stage.left():
        assert 1 <= ask("leaves", limit=LONG)["seen"] < LONG


def test_tokens_can_be_counted_where_the_engine_can(ask: Ask, stage: Stage) -> None:
    if stage.engine == "ollama":
        with pytest.raises(JavaScriptError) as caught:
            ask("counted")
        assert caught.value.kinds[0] == "NotFoundError"
    else:
        assert ask("counted")["input_tokens"] > 5


def test_models(ask: Ask, stage: Stage) -> None:
    assert stage.model in {name.split(":")[0] for name in ask("catalog")["listed"]}


@pytest.mark.parametrize("check", ["unknown", "unknown_streamed"])
def test_an_unknown_model_is_not_found(ask: Ask, stage: Stage, check: str) -> None:
    stage.needs_routing()
    with pytest.raises(JavaScriptError, match="nope") as caught:
        ask(check)
    assert (caught.value.kinds[0], caught.value.status) == ("NotFoundError", 404)


def test_connections_are_used_again(ask: Ask, stage: Stage) -> None:
    with stage.few_connections(NODE_CONNECTIONS) as url:
        ask("several", url=url)
