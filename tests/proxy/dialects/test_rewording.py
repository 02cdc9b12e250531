from typing import Any

import msgspec
import pytest

from proxy.dialects.rewording import llama_error
from tests.proxy.dialects.support import call_of, captured

USER = [{"role": "user", "content": "x"}]


def reworded(path: str, body: dict[str, Any], status: int, answer: bytes) -> tuple[int, bytes]:
    reword = llama_error(call_of(path, body))
    assert reword is not None
    found, headers, out = reword(status, answer)
    assert dict(headers)["Content-Type"].startswith("application/json")
    return found, out


@pytest.mark.parametrize(
    ("path", "body", "theirs", "ours"),
    [
        ("/api/embed", {"model": "smol", "input": "x"}, "llama-server/037", "ollama/040"),
        ("/api/embeddings", {"model": "smol", "prompt": "x"}, "llama-server/037", "ollama/042"),
        ("/api/generate", {"model": "smol", "prompt": "x", "suffix": "y"}, "llama-server/038", "ollama/158"),
    ],
)
def test_as_captured(path: str, body: dict[str, Any], theirs: str, ours: str) -> None:
    engine, wanted = captured(theirs), captured(ours)
    assert reworded(path, body, engine.status, engine.answer) == (wanted.status, wanted.answer)


def test_ollama_hands_the_rest_on_as_text() -> None:
    engine = captured("llama-server/053")
    status, out = reworded("/api/chat", {"model": "m", "messages": USER}, engine.status, engine.answer)
    assert (status, msgspec.json.decode(out)) == (400, {"error": engine.answer.decode()})
    wanted = captured("ollama/062")
    assert (
        msgspec.json.decode(msgspec.json.decode(wanted.answer)["error"]).keys()
        == msgspec.json.decode(engine.answer).keys()
    )
    for answer, text in ((b"not json\n", "not json"), (b"", "the engine gave no reason")):
        status, out = reworded("/api/chat", {"model": "m", "messages": USER}, 500, answer)
        assert (status, msgspec.json.decode(out)) == (500, {"error": text})


def test_ollamas_own_words() -> None:
    def error(message: str, kind: str = "server_error") -> bytes:
        return msgspec.json.encode({"error": {"code": 500, "message": message, "type": kind}})

    chat = {"model": "embed", "messages": USER}
    off = error("This server does not support completions. Start it without `--embeddings`", "not_supported_error")
    assert reworded("/api/chat", chat, 501, off) == (400, captured("ollama/150").answer)
    status, out = reworded("/api/generate", {"model": "embed", "prompt": "x"}, 501, off)
    assert (status, out) == (400, b'{"error":"\\"embed\\" does not support generate"}')
    status, out = reworded("/api/chat", chat, 500, error("image input is not supported - hint: mmproj"))
    assert (status, out) == (captured("ollama/037").status, captured("ollama/037").answer)
    long = error("input (530 tokens) is too large to process. increase the physical batch size")
    wanted = captured("ollama/145")
    for answer in (long, error("x", "exceed_context_size_error")):
        assert reworded("/api/embed", {"model": "m", "input": "x"}, 500, answer) == (wanted.status, wanted.answer)


def test_anthropic_gets_its_own_form() -> None:
    engine = captured("llama-server/053")
    status, out = reworded("/v1/messages", {"messages": USER, "max_tokens": 4}, engine.status, engine.answer)
    answer = msgspec.json.decode(out)
    assert status == 400
    assert list(answer) == ["type", "error", "request_id"]
    assert answer["error"] == {
        "type": "invalid_request_error",
        "message": msgspec.json.decode(engine.answer)["error"]["message"],
    }
    _, out = reworded("/v1/messages", {"messages": USER, "max_tokens": 4}, 500, b"oops")
    assert msgspec.json.decode(out)["error"] == {"type": "api_error", "message": "oops"}


def test_other_dialects_get_what_the_engine_said() -> None:
    assert llama_error(call_of("/v1/chat/completions", {"messages": USER})) is None
    assert llama_error(call_of("/completion", {"prompt": "x"})) is None
