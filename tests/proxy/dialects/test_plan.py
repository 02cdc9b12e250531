from typing import Any

import msgspec
import pytest

from proxy.dialects import can_name_slot, plan
from proxy.dialects.assemble import ChatAssembly
from proxy.dialects.plan import Plan
from proxy.dialects.progress import ProgressFilter
from proxy.dialects.reply import EmbedReply, OllamaReply
from scheduler.domain import Engine
from tests.proxy.dialects.support import FACTS, LLAMA, OLLAMA, answered, ask, call_of, captured, fixed_clock
from tests.real_engine import RealEngine

USER = [{"role": "user", "content": "x"}]
ALL: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"model": "m", "messages": USER}),
    ("/api/generate", {"model": "m"}),
    ("/api/embed", {"model": "m", "input": "x"}),
    ("/v1/chat/completions", {"messages": USER, "id_slot": 1, "stream": True}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x", "stream": True}),
    ("/v1/embeddings", {"input": "x"}),
    ("/v1/messages", {"messages": USER, "max_tokens": 5, "stream": True}),
]


def planned(path: str, body: dict[str, Any] | bytes) -> Plan:
    return plan(call_of(path, body), LLAMA, FACTS, clock_ns=fixed_clock)


@pytest.mark.parametrize(("path", "body"), ALL)
def test_an_ollama_gets_and_gives_the_same_bytes(path: str, body: dict[str, Any]) -> None:
    raw = b" " + msgspec.json.encode(body) + b"\n"
    call = call_of(path, raw, [("Cookie", "x"), ("User-Agent", "me")])
    made = plan(call, OLLAMA, msgspec.structs.replace(FACTS, engine=Engine.OLLAMA))
    assert (made.outgoing.method, made.outgoing.path, made.outgoing.body) == ("POST", path, raw)
    assert made.outgoing.headers == [("Content-Type", "application/json"), ("User-Agent", "me")]
    assert made.transform is None
    assert made.error_body is None
    assert made.streams is call.stream


@pytest.mark.parametrize("path", ["/completion", "/completions", "/infill"])
def test_an_end_mark_is_asked_for_only_where_it_may_come(path: str) -> None:
    body = {"prompt": "x", "stream": True}
    shown: list[Any] = [None, [], ["content", "stop"], ["stop_type"]]
    hidden: list[Any] = [["content"], ["/stop"], ["generation_settings/stop"], 5, "stop"]
    for fields, complete in [(fields, False) for fields in shown] + [(fields, True) for fields in hidden]:
        made = planned(path, body | {"response_fields": fields})
        made.watch.see(b'data: {"content":""}\n\n')
        assert made.watch.complete() is complete
    assert not planned(
        "/v1/chat/completions", {"messages": USER, "stream": True, "response_fields": ["x"]}
    ).watch.complete()


@pytest.mark.real
@pytest.mark.parametrize("fields", [["content"], ["content", "stop"], ["stop_type"], []])
def test_streams_with_fewer_fields_are_whole(real_engine: RealEngine, fields: list[str]) -> None:
    body = {"prompt": "x", "n_predict": 2, "stream": True, "response_fields": fields}
    assert answered(real_engine, "/completion", body)[0] == 200


def test_whether_the_engines_last_bytes_are_the_clients() -> None:
    made = planned("/v1/chat/completions", {"messages": USER, "stream": True})
    assert made.transform is not None
    before = made.untouched
    event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    for piece in (event, b"data: {"):
        made.watch.see(piece)
        made.transform.feed(piece)
    assert (before, made.untouched, made.watch.midline) == (False, True, True)
    assert not planned("/api/chat", {"model": "m", "messages": USER}).untouched
    assert planned("/v1/messages", {"messages": USER, "max_tokens": 5, "stream": True}).untouched
    ollama = plan(call_of("/api/chat", {"model": "m", "messages": USER}), OLLAMA, FACTS)
    for piece, midline in ((b'{"a":1}\n', False), (b'{"a"', True)):
        ollama.watch.see(piece)
        assert ollama.watch.midline is midline


def test_streams_of_llama_server_ask_for_progress() -> None:
    raw = b'{"messages":[],"stream":true,"x": {"y":[1, 2]} }'
    made = planned("/v1/chat/completions", raw)
    assert made.outgoing.body == b'{"messages":[],"stream":true,"x": {"y":[1, 2]},"return_progress":true}'
    assert isinstance(made.transform, ProgressFilter)
    assert made.streams
    untouched: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": USER, "stream": True, "return_progress": False}),
        ("/v1/chat/completions", {"messages": USER, "stop": ["x"]}),
        ("/v1/messages", {"messages": USER, "max_tokens": 5, "stream": True}),
        ("/v1/responses", {"input": "x", "stream": True, "timings_per_token": True}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"content": "x"}),
        ("/rerank", {"query": "x", "documents": []}),
        ("/v1/messages/count_tokens", {"messages": USER}),
        ("/infill", {"input_prefix": "x"}),
    ]
    for path, body in untouched:
        made = planned(path, body)
        assert (made.transform, made.outgoing.body) == (None, msgspec.json.encode(body)), path


def test_whole_answers_of_llama_server_are_put_together() -> None:
    made = planned("/v1/chat/completions", b'{"messages":[],"stream":false}')
    assert made.outgoing.body == (
        b'{"messages":[],"stream":false,"stream":true,"return_progress":true,"stream_options":{"include_usage":true}}'
    )
    assert isinstance(made.transform, ChatAssembly)
    assert made.streams


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER, "n": 2}),
        ("/v1/chat/completions", {"messages": USER, "verbose": True}),
        ("/v1/chat/completions", {"messages": USER, "stop": "x"}),
        ("/v1/chat/completions", {"messages": USER, "tools": [{}], "logprobs": True}),
        ("/v1/chat/completions", {"messages": USER, "stream_options": {}}),
        ("/v1/completions", {"prompt": ["a"]}),
        ("/completion", {"prompt": [1, 2]}),
        ("/completion", {"prompt": "x", "response_fields": ["content"]}),
        ("/completion", {"prompt": "x", "return_tokens": True}),
    ],
)
def test_what_cannot_be_put_together_passes_as_it_is(path: str, body: dict[str, Any]) -> None:
    made = planned(path, body)
    assert (made.transform, made.streams, made.outgoing.body) == (None, False, msgspec.json.encode(body))


def test_clients_name_no_slots() -> None:
    body = msgspec.json.decode(planned("/v1/chat/completions", {"messages": USER, "id_slot": 3}).outgoing.body)
    assert body["id_slot"] == -1
    made = planned("/v1/messages", {"messages": USER, "max_tokens": 5, "id_slot": 3})
    assert msgspec.json.decode(made.outgoing.body)["id_slot"] == -1


NAMING: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"model": "m", "messages": USER}),
    ("/api/generate", {"model": "m", "prompt": "x"}),
    ("/api/generate", {"model": "m", "prompt": "x", "raw": True, "stream": False}),
    ("/api/generate", {"model": "m", "prompt": "x", "suffix": "y"}),
    ("/v1/chat/completions", {"messages": USER, "id_slot": 3}),
    ("/v1/chat/completions", {"messages": USER, "stop": "x"}),
    ("/v1/chat/completions", {"messages": USER, "stream": True}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/completion", {"prompt": [1, 2], "n_predict": 4}),
    ("/completions", {"prompt": "x", "stream": True}),
    ("/infill", {"input_prefix": "x", "input_suffix": "y"}),
]
NOT_NAMING: list[tuple[str, dict[str, Any]]] = [
    ("/api/embed", {"model": "m", "input": "x"}),
    ("/api/chat", {"model": "m", "messages": []}),
    ("/api/generate", {"model": "m", "prompt": "x", "context": [1]}),
    ("/v1/messages", {"messages": USER, "max_tokens": 5}),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/v1/chat/completions", {"messages": USER, "n": 2}),
    ("/completion", {"prompt": ["x", "y"]}),
    ("/v1/embeddings", {"input": "x"}),
    ("/tokenize", {"content": "x"}),
]


@pytest.mark.parametrize(("path", "body"), NAMING)
def test_slotgate_names_slots(path: str, body: dict[str, Any]) -> None:
    call = call_of(path, body)
    assert can_name_slot(call)
    for slot in (0, 2):
        assert msgspec.json.decode(plan(call, LLAMA, FACTS, slot).outgoing.body)["id_slot"] == slot
    unnamed = msgspec.json.decode(plan(call, LLAMA, FACTS, None).outgoing.body)
    assert unnamed.get("id_slot", -1) == -1


@pytest.mark.parametrize(("path", "body"), NOT_NAMING)
def test_where_no_slot_can_be_named(path: str, body: dict[str, Any]) -> None:
    call = call_of(path, body)
    assert not can_name_slot(call)
    if Engine.LLAMA_SERVER in call.engines:
        assert b"id_slot" not in plan(call, LLAMA, FACTS, 2).outgoing.body


def test_an_ollama_is_told_no_slot() -> None:
    call = call_of("/api/chat", {"model": "m", "messages": USER})
    assert plan(call, OLLAMA, FACTS, 2).outgoing.body == call.body


def test_keys_of_other_case_reach_llama_server_as_they_were_read() -> None:
    made = planned("/v1/chat/completions", b'{"Messages":[],"STREAM":true}')
    assert msgspec.json.decode(made.outgoing.body) == {"messages": [], "stream": True, "return_progress": True}


def test_ollamas_dialect_is_translated() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/api/chat", {"model": "m", "messages": USER, "stream": False}, "/v1/chat/completions"),
        ("/api/generate", {"model": "m", "prompt": "x"}, "/v1/chat/completions"),
        ("/api/generate", {"model": "m", "prompt": "x", "raw": True}, "/completion"),
        ("/api/generate", {"model": "m", "prompt": "x", "suffix": "y"}, "/infill"),
    ]
    for path, body, wanted in cases:
        made = planned(path, body)
        assert made.outgoing.path == wanted
        assert isinstance(made.transform, OllamaReply)
        assert made.streams
        assert made.error_body is not None
        assert not made.watch.complete()
    made = planned("/api/embed", {"model": "m", "input": "x"})
    assert isinstance(made.transform, EmbedReply)
    assert (made.outgoing.path, made.streams, made.watch.complete()) == ("/v1/embeddings", False, True)


@pytest.mark.real
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "Once upon a time"}),
        ("/detokenize", {"tokens": [1, 2, 3]}),
        ("/apply-template", {"messages": USER}),
        ("/v1/messages/count_tokens", {"messages": USER}),
        ("/embedding", {"content": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": "many"}),
        ("/completion", {"prompt": "x", "stream": True, "n_predict": "many"}),
    ],
)
def test_real_answers_without_change(real_engine: RealEngine, path: str, body: dict[str, Any]) -> None:
    status, planned_body = answered(real_engine, path, body)
    own_status, own = ask(real_engine, path, msgspec.json.encode(body))
    if path == "/v1/messages/count_tokens":
        assert msgspec.json.decode(own)["input_tokens"] > 5
    assert (status, planned_body) == (own_status, own)


@pytest.mark.real
def test_real_anthropic_errors_are_reshaped(real_engine: RealEngine) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 4}
    status, out = answered(real_engine, "/v1/messages", body)
    example = msgspec.json.decode(captured("ollama/084").answer)
    answer = msgspec.json.decode(out)
    assert status == 400
    assert (list(answer), list(answer["error"])) == (list(example), list(example["error"]))
    assert "exceeds the available context size" in answer["error"]["message"]
