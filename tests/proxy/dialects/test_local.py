import msgspec
import pytest

from proxy.dialects import local_reply
from scheduler.domain import Engine
from tests.proxy.dialects.support import call_of, captured, fixed_clock


@pytest.mark.parametrize("name", ["ollama/022", "ollama/035", "ollama/100", "ollama/102"])
def test_load_and_unload_as_captured(name: str) -> None:
    example = captured(name)
    call = call_of(example.path, example.body)
    assert local_reply(call, Engine.OLLAMA, fixed_clock) is None
    reply = local_reply(call, Engine.LLAMA_SERVER, fixed_clock)
    assert reply is not None
    status, headers, body = reply
    ours, theirs = msgspec.json.decode(body), msgspec.json.decode(example.answer)
    assert list(ours) == list(theirs)
    assert ours | {"created_at": ""} == theirs | {"created_at": ""}
    assert (status, dict(headers)["Content-Type"]) == (200, example.headers["content-type"])


@pytest.mark.parametrize("name", ["ollama/142", "ollama/143"])
def test_empty_embeddings_as_captured(name: str) -> None:
    example = captured(name)
    reply = local_reply(call_of(example.path, example.body), None)
    assert reply is not None
    assert (reply[0], reply[2]) == (example.status, example.answer)


def test_all_else_needs_an_engine() -> None:
    assert local_reply(call_of("/api/embed", {"model": "m", "input": "x"}), Engine.LLAMA_SERVER) is None
    assert local_reply(call_of("/api/generate", {"model": "m", "prompt": "x"}), Engine.LLAMA_SERVER) is None
    assert local_reply(call_of("/v1/chat/completions", {"messages": []}), Engine.LLAMA_SERVER) is None
    reply = local_reply(call_of("/api/embeddings", {"model": "m", "prompt": ""}), Engine.OLLAMA)
    assert reply is not None
    assert reply[2] == b'{"embedding":[]}'
