"""Whatever a client sends, only a `ClientError` may come of it: all routes, any bytes, any type in any known field."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import (
    ROUTES,
    Call,
    ClientError,
    Kind,
    Route,
    error_frame,
    heartbeat,
    local_reply,
    plan,
    read_call,
    read_model_name,
    rejection_error,
    render_error,
)
from proxy.dialects.reading import names
from scheduler.domain import Engine, Rejection
from scheduler.names import canonical
from tests.proxy.dialects.support import FACTS, LLAMA, OLLAMA, route_of

INFERENCE = [route for route in ROUTES.values() if route.kind is Kind.INFERENCE]
THINKER = msgspec.structs.replace(
    FACTS, chat_template="<think> enable_thinking", props={"modalities": {"vision": True}}
)
USER = [{"role": "user", "content": "x"}]
BASES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": USER},
    "/api/generate": {"prompt": "x"},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": USER},
    "/completion": {"prompt": "x"},
    "/completions": {"prompt": "x"},
    "/infill": {"input_prefix": "x", "input_suffix": "y"},
}
FIELDS = names(
    "model messages prompt suffix system template stream raw truncate shift logprobs top_logprobs dimensions context "
    "images tools options format think keep_alive input n n_cmpl max_tokens n_predict stop stop_sequences tool_choice "
    "response_format stream_options id_slot return_progress timings_per_token temperature seed metadata logit_bias "
    "content tokens input_prefix input_suffix query documents cache_prompt n_probs response_fields instructions text"
)
VALUES: list[Any] = [
    None, True, False, 0, 1, 5, -5, 2.0, 1.5, 1e300, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, "", "x", "\0",
    "9" * 400, "9" * 400 + "h", [], {}, [[]], [{}], [None], [1], ["x"], ["x", 1], {"a": 1}, {"": None}, [[[1]]], "😀",
]  # fmt: skip
OPTIONS = names("num_ctx num_predict num_keep seed top_k top_p temperature mirostat stop use_mmap other")
MESSAGE = names("role content thinking images tool_calls tool_name tool_call_id name")
PARTS: dict[str, dict[str, Any]] = {
    "function": {"tool_calls": [{"id": "a", "function": ...}]},
    "name": {"tool_calls": [{"id": "a", "function": {"name": ...}}]},
    "arguments": {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ...}}]},
    "id": {"tool_calls": [{"id": ..., "function": {"name": "f"}}]},
    "part": {"content": [...]},
    "url": {"content": [{"type": "image_url", "image_url": ...}]},
    "source": {"content": [{"type": "image", "source": {"data": ...}}]},
    "image": {"images": [...]},
}
"""Messages with a hole in them."""


def filled(shape: Any, value: Any) -> Any:
    if shape is ...:
        return value
    if isinstance(shape, dict):
        return {key: filled(item, value) for key, item in shape.items()}
    return [filled(item, value) for item in shape] if isinstance(shape, list) else shape


def carried_through(call: Call) -> None:
    """Do with a call all that is done before an engine answers; answers of an engine are of other tests."""
    canonical(call.model or "")
    error_frame(call, "why")
    heartbeat(call)
    local_reply(call, None)
    for rejection in Rejection:
        render_error(call.dialect, *rejection_error(call, rejection, "why"))
    for backend, facts in ((LLAMA, FACTS), (LLAMA, THINKER), (OLLAMA, FACTS)):
        if local_reply(call, backend.engine) is not None or backend.engine not in call.engines:
            continue
        with contextlib.suppress(ClientError):
            plan(call, backend, facts)


def attempt(route: Route, body: bytes) -> None:
    try:
        call = read_call(route, body, [])
    except ClientError as error:
        render_error(route.dialect, error.status, error.kind, error.message)
    else:
        carried_through(call)


@pytest.mark.parametrize("route", INFERENCE, ids=lambda route: route.path)
def test_any_type_in_any_field(route: Route) -> None:
    base = {"model": "smol"} | BASES.get(route.path, {})
    for field in FIELDS:
        for value in VALUES:
            for more in ({}, {"stream": True}, {"Stream": False}):
                attempt(route, msgspec.json.encode(more | base | {field: value}))


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/api/generate"])
def test_any_type_inside_fields(path: str) -> None:
    base = {"model": "smol"} | BASES[path]
    for value in VALUES:
        for option in OPTIONS:
            attempt(route_of(path), msgspec.json.encode(base | {"options": {option: value}}))
        for name in MESSAGE:
            talk = [*USER, {"role": "tool", name: value}, {"role": "assistant", name: value}]
            attempt(route_of(path), msgspec.json.encode(base | {"messages": talk}))
        for shape in PARTS.values():
            talk = [{"role": "assistant", **filled(shape, value)}, {"role": "tool", "content": "x"}]
            attempt(route_of(path), msgspec.json.encode(base | {"messages": talk}))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(FIELDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner),
    max_leaves=8,
)
fragments = st.sampled_from(
    [*'{}[],:"\\ \n-+.eE0', "1e999", "9" * 4400, "NaN", "true", "null", '"model"', '"\\ud83d"', '"\\ude00"', "\\\\",
     "\x00", "\ufeff", "é", "'", "//", '"stream":', '{"model":"smol",', "[" * 2000]
)  # fmt: skip
bodies = (
    st.binary(max_size=60)
    | st.lists(fragments, max_size=14).map(lambda parts: "".join(parts).encode())
    | st.dictionaries(st.sampled_from(FIELDS), values, max_size=6).map(
        lambda fields: msgspec.json.encode({"model": "smol"} | fields)
    )
)


@given(st.sampled_from(INFERENCE), bodies)
def test_any_body(route: Route, body: bytes) -> None:
    attempt(route, body)


@given(bodies)
def test_any_body_of_show(body: bytes) -> None:
    with contextlib.suppress(ClientError):
        assert read_model_name(route_of("/api/show"), body)


@pytest.mark.parametrize("route", INFERENCE, ids=lambda route: route.path)
def test_depth(route: Route) -> None:
    """What can just be read may be too deep to be written again, which happens further up the stack or further down."""
    base = msgspec.json.encode({"Model": "smol"} | BASES.get(route.path, {}))[:-1]
    for depth in (*range(600, 1000, 4), 100_000):
        nested = b"[" * depth + b"]" * depth
        for field in (b"x", b"tools", b"format"):
            attempt(route, base + b',"' + field + b'":' + nested + b"}")
        attempt(route, base + b',"format":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")


def test_every_engine_was_planned_for() -> None:
    assert {backend.engine for backend in (LLAMA, OLLAMA)} == set(Engine)
