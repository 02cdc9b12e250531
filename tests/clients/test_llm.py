"""The `llm` package and its command with the plugin `llm-ollama`, against slotgate: told nothing but `OLLAMA_HOST`."""

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ollama
import pytest

from tests.clients.stage import LONG, PICTURE, QUESTION, THING, TOOL_QUESTION, Stage

if TYPE_CHECKING:
    import llm

LIMIT: dict[str, Any] = {"num_predict": 8, "seed": 1, "temperature": 0}


@pytest.fixture
def environment(stage: Stage, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings in the environment. The test's model is itself in a plugin of llm's, which is not to be loaded."""
    stage.needs("ollama")
    values = {"OLLAMA_HOST": stage.url, "LLM_LOAD_PLUGINS": "llm-ollama", "LLM_USER_PATH": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        from llm_ollama.registry import cache

        cache.set_dir(tmp_path)
        yield values


@pytest.fixture
def model(environment: dict[str, str], stage: Stage) -> "llm.Model":
    """The model, as llm finds it by itself."""
    import llm

    return llm.get_model(f"ollama/{stage.model}")


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"12 degrees in {city}"


def test_a_prompt(model: "llm.Model") -> None:
    whole = model.prompt(QUESTION, stream=False, **LIMIT)
    assert whole.text()
    assert whole.usage().output == 8
    assert "".join(model.prompt(QUESTION, stream=True, **LIMIT)) == whole.text()


def test_a_conversation(model: "llm.Model") -> None:
    talk = model.conversation()
    first = talk.prompt(QUESTION, **LIMIT)
    assert first.text()
    second = talk.prompt("And on.", **LIMIT)
    assert second.text()
    assert (second.usage().input or 0) > (first.usage().input or 0)


async def test_an_async_prompt(environment: dict[str, str], stage: Stage) -> None:
    import llm

    model = llm.get_async_model(f"ollama/{stage.model}")
    assert await model.prompt(QUESTION, **LIMIT).text()


def test_tools(model: "llm.Model") -> None:
    assert model.supports_tools
    chain = model.chain(TOOL_QUESTION, tools=[get_weather], options={"temperature": 0, "num_predict": 60})
    first, second = list(chain.responses())[:2]
    (call,) = first.tool_calls()
    assert (call.name, set(call.arguments)) == ("get_weather", {"city"})
    assert second.text()


def test_structured_output(model: "llm.Model") -> None:
    answer = model.prompt("A thing as JSON", schema=THING, num_predict=300, temperature=0)
    assert set(json.loads(answer.text())) == {"name", "count"}


def test_embeddings(environment: dict[str, str], stage: Stage) -> None:
    import llm

    model = llm.get_embedding_model(f"ollama/{stage.needs_embeddings()}")
    vectors = list(model.embed_multi(["hello", "there"]))
    assert model.embed("hello") == pytest.approx(vectors[0], abs=1e-5)


def test_pictures(environment: dict[str, str], stage: Stage, model: "llm.Model") -> None:
    import llm

    picture = llm.Attachment(type="image/png", content=b64decode(PICTURE))
    if not stage.seer:
        with pytest.raises(ValueError, match="does not support attachments"):
            model.prompt("What is it?", attachments=[picture], **LIMIT).text()
        return
    seer = llm.get_model(f"ollama/{stage.seer}")
    assert seer.prompt("What is it?", attachments=[picture], **LIMIT).text()


def test_a_stream_can_be_left(model: "llm.Model", stage: Stage) -> None:
    with stage.left():
        pieces = iter(model.prompt(QUESTION, num_predict=LONG))
        assert next(pieces)
        pieces.close()


def test_an_unknown_model_is_not_found(environment: dict[str, str]) -> None:
    import llm
    from llm_ollama.models.chat import OllamaChatModel

    with pytest.raises(llm.UnknownModelError):
        llm.get_model("ollama/nope")
    gone = OllamaChatModel(model_id="gone", ollama_name="nope", capabilities=["completion"])
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found"):
        gone.prompt(QUESTION).text()


def command(environment: dict[str, str], *arguments: str) -> str:
    """What `llm` prints."""
    program = Path(sys.executable).with_name("llm")
    done = subprocess.run(
        [program, *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_the_command(environment: dict[str, str], stage: Stage) -> None:
    name = f"ollama/{stage.model}:latest"
    assert name in command(environment, "models")
    assert command(environment, "-m", name, "-o", "num_predict", "8", QUESTION).strip()
