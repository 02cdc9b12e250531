from typing import Any

import msgspec
import pytest

from proxy.dialects import error_frame, heartbeat
from tests.proxy.dialects.support import call_of, captured, fixed_clock

USER = [{"role": "user", "content": "x"}]
STREAMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": USER, "stream": True}),
    ("/v1/completions", {"prompt": "x", "stream": True}),
    ("/v1/responses", {"input": "x", "stream": True}),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "stream": True}),
    ("/completion", {"prompt": "x", "stream": True}),
]


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_sse(path: str, body: dict[str, Any]) -> None:
    call = call_of(path, body)
    beat = heartbeat(call, fixed_clock)
    assert beat is not None
    assert beat[1] == b": queued\n\n"
    assert ("Content-Type", "text/event-stream") in beat[0]
    frame = error_frame(call, 'it "broke"')
    assert frame.startswith((b"data: {", b"event: error\n"))  # after a heartbeat or a whole event
    assert error_frame(call, "x", midline=True) == b"\n\n" + error_frame(call, "x")
    assert frame.endswith(b"}\n\n")
    line = frame.strip().split(b"\n")[-1]
    record = msgspec.json.decode(line.removeprefix(b"data: "))
    message = record["message"] if path == "/v1/responses" else record["error"]["message"]
    assert message == 'it "broke"'
    assert b"[DONE]" not in frame
    assert (b"event: error\n" in frame) == (path in ("/v1/responses", "/v1/messages"))


def test_ndjson() -> None:
    chat = call_of("/api/chat", {"model": "smol", "messages": USER})
    generate = call_of("/api/generate", {"model": "smol", "prompt": "x"})
    for call, name in ((chat, "ollama/030"), (generate, "ollama/020")):
        beat = heartbeat(call, fixed_clock)
        assert beat is not None
        headers, record = beat
        example = captured(name)
        assert headers == [("Content-Type", example.headers["content-type"])]
        assert record.endswith(b"}\n")
        ours, theirs = msgspec.json.decode(record), msgspec.json.decode(example.answer.splitlines()[0])
        assert list(ours) == list(theirs)
        assert ours["done"] is False
        text = ours["message"]["content"] if "message" in ours else ours["response"]
        assert text == ""
        assert error_frame(call, "x") == b'{"error":"x"}\n'
        assert error_frame(call, "x", midline=True) == b'\n{"error":"x"}\n'
    killed = captured("ollama/113").answer.splitlines()[-1]
    assert error_frame(chat, msgspec.json.decode(killed)["error"]) == killed + b"\n"


def test_whole_answers_have_neither() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {"model": "m", "messages": USER, "stream": False}),
        ("/api/generate", {"model": "m"}),
        ("/v1/chat/completions", {"messages": USER}),
    ]
    for path, body in cases:
        call = call_of(path, body)
        assert heartbeat(call) is None
        assert error_frame(call, "x") == b""
