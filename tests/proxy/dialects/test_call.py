from typing import Any

import msgspec
import pytest

from proxy.dialects import ClientError, read_call, read_model_name, render_error
from proxy.dialects.call import MAX_FIELDS, MAX_INPUTS, MAX_MESSAGES, MAX_NAME_CHARS
from scheduler.domain import Dialect, Engine, Operation
from tests.proxy.dialects.support import NOW_NS, call_of, captured, fixed_clock, route_of


def refusal(path: str, body: dict[str, Any] | bytes) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call_of(path, body)
    return caught.value


@pytest.mark.parametrize(
    "name",
    ["ollama/052", "ollama/053", "ollama/054", "ollama/055", "ollama/056", "ollama/057", "ollama/059", "ollama/060",
     "ollama/076", "ollama/084"],
)  # fmt: skip
def test_refusals_as_captured(name: str) -> None:
    example = captured(name)
    error = refusal(example.path, example.body)
    route = route_of(example.path)
    status, headers, body = render_error(route.dialect, error.status, error.kind, error.message)
    assert status == example.status
    assert dict(headers)["Content-Type"] == example.headers["content-type"]
    ours, theirs = msgspec.json.decode(body), msgspec.json.decode(example.answer)
    if route.dialect is Dialect.ANTHROPIC:
        assert ours.pop("request_id")[:4] == theirs.pop("request_id")[:4] == "req_"
        assert list(ours) == list(theirs)
        assert ours == theirs
    else:
        assert body == example.answer


def test_a_call_keeps_what_came() -> None:
    body = b'{ "messages":[{"role":"user","content":"hi"}], "model":"smol" }'
    headers = [
        ("Content-Type", "application/x-www-form-urlencoded"), ("Host", "x"), ("Origin", "http://evil"),
        ("Cookie", "a"),
        ("Authorization", "Bearer k"), ("X-Api-Key", "k"), ("X-Conversation-Id", "c"), ("Accept-Encoding", "gzip"),
        ("User-Agent", "me"), ("anthropic-version", "2023-06-01"),
    ]  # fmt: skip
    call = read_call(route_of("/api/chat"), body, headers, fixed_clock)
    assert (call.model, call.stream, call.seats, call.body, call.arrived_ns) == ("smol", True, 1, body, NOW_NS)
    assert call.headers == [("User-Agent", "me"), ("anthropic-version", "2023-06-01")]
    assert call.operation is Operation.CHAT
    assert call.engines == frozenset(Engine)
    assert call.prompt_bytes == len(body)


def test_other_dialects_decode_errors() -> None:
    assert refusal("/v1/chat/completions", b"[]").message == (
        "json: cannot unmarshal array into Go value of type openai.ChatCompletionRequest"
    )
    assert refusal("/v1/messages", b'"x"').message.endswith("of type anthropic.MessagesRequest")
    assert refusal("/completion", b"{").message == "[json.exception.parse_error.101] parse error: unexpected EOF"
    assert refusal("/completion", b'{"a":1e999}').message == (
        "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    )
    assert refusal("/completion", b"[]").message == "the request body must be a JSON object, not array"


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/completion"])
def test_compressed_bodies_are_refused(path: str) -> None:
    with pytest.raises(ClientError, match="Content-Encoding: 'gzip' is not supported") as caught:
        call_of(path, b"\x1f\x8b", [("Content-encoding", "gzip")])
    assert caught.value.status == 415
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "prompt": "x"}
    assert call_of(path, body, [("Content-Encoding", " Identity ")]).headers == []


def test_what_is_no_request_any_more() -> None:
    many = {f"K{number}": 1 for number in range(MAX_FIELDS + 1)}
    assert refusal("/api/chat", many).message.startswith("more than 1000 fields")
    assert refusal("/v1/messages", {"messages": [0] * (MAX_MESSAGES + 1)}).status == 400
    assert refusal("/v1/messages", {"Messages": [0] * (MAX_MESSAGES + 1)}).message.startswith("more than 100000 mess")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/embed", "Input"),
        ("/v1/embeddings", "input"),
        ("/v1/embeddings", "content"),
        ("/embedding", "content"),
        ("/rerank", "documents"),
        ("/rerank", "texts"),
        ("/completion", "prompt"),
        ("/v1/completions", "prompt"),
        ("/v1/responses", "input"),
    ],
)
def test_more_inputs_than_one_request_may_have(path: str, name: str) -> None:
    error = refusal(path, {"model": "m", "query": "q", name: ["a"] * (MAX_INPUTS + 1)})
    assert (error.status, error.message) == (400, f"more than 100000 inputs in one request ({name.lower()})")
    assert call_of(path, {"model": "m", "query": "q", name: ["a"] * 100}).model == "m"


def test_one_prompt_may_have_any_number_of_tokens() -> None:
    call = call_of("/completion", {"prompt": [1] * (MAX_INPUTS + 1)})
    assert (call.seats, call.batch) == (1, "")
    assert refusal("/v1/responses", {"input": [1] * (MAX_INPUTS + 1)}).status == 400


def test_keys_of_other_case() -> None:
    call = call_of("/v1/chat/completions", b'{"Model":"a","model":"b","Stream":true,"messages":[]}')
    assert (call.model, call.stream, call.exact_keys) == ("b", True, False)
    assert call_of("/v1/chat/completions", b'{"model":"b"}').exact_keys
    # llama-server's own API matches exactly, so another spelling is another field.
    assert call_of("/completion", b'{"Stream":true,"prompt":"x"}').stream is False


def test_model_names_for_show() -> None:
    route = route_of("/api/show")
    assert read_model_name(route, b'{"model":"a"}') == "a"
    assert read_model_name(route, b'{"Name":"b"}') == "b"
    for body, words in (
        (b"{}", "model is required"),
        (b"", "missing request body"),
        (b'{"model":1}', "ShowRequest.model"),
    ):
        with pytest.raises(ClientError, match=words):
            read_model_name(route, body)


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/api/chat", {"model": "m", "messages": [], "options": {"num_predict": 7}}, 7),
        ("/api/generate", {"model": "m", "prompt": "x", "options": {"num_predict": -2}}, None),
        ("/api/generate", {"model": "m", "prompt": "x"}, None),
        ("/v1/chat/completions", {"messages": [], "max_tokens": 7}, 7),
        ("/v1/chat/completions", {"messages": [], "max_completion_tokens": 7, "max_tokens": 9}, 7),
        ("/v1/responses", {"input": "x", "max_output_tokens": 7}, 7),
        ("/v1/embeddings", {"input": "x", "max_tokens": 7}, None),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 7}, 7),
        ("/completion", {"prompt": "x", "n_predict": 7}, 7),
        ("/infill", {"input_prefix": "x", "n_predict": 0}, None),
        ("/tokenize", {"content": "x", "n_predict": 7}, None),
    ],
)
def test_the_clients_own_limit(path: str, body: dict[str, Any], limit: int | None) -> None:
    if path == "/api/chat":
        body = body | {"messages": [{"role": "user", "content": "x"}]}
    assert call_of(path, body).max_output_tokens == limit


@pytest.mark.parametrize("path", ["/api/chat", "/api/embed", "/v1/completions", "/v1/messages", "/completion"])
def test_names_have_an_end(path: str) -> None:
    """They are remembered and logged: some dozen of 20 MB took gigabytes."""
    body = {"input": "x", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert call_of(path, body | {"model": "m" * MAX_NAME_CHARS}).model == "m" * MAX_NAME_CHARS
    error = refusal(path, body | {"model": "m" * (MAX_NAME_CHARS + 1)})
    assert (error.status, len(error.message) < 200) == (404, True)
    with pytest.raises(ClientError, match="not found"):
        read_model_name(route_of("/api/show"), msgspec.json.encode({"model": "m" * (MAX_NAME_CHARS + 1)}))
