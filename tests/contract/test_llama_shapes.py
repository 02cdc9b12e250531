"""The emulated llama-server's answers have the real one's structure: status, heads, keys in order, kinds, frames."""

from typing import Any

import httpx
import pytest

from tests.contract.conftest import Subject
from tests.contract.shapes import shape, stream_shape

pytestmark = pytest.mark.real

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Count from one to five."}], "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}


def head(answer: httpx.Response) -> list[str]:
    """Names of the headers in order, with the values that do not depend on the body."""
    kept = {"content-type", "keep-alive", "connection", "transfer-encoding", "x-accel-buffering", "server"}
    found = []
    for name, value in answer.headers.raw:
        text = name.decode()
        found.append(f"{text}: {value.decode()}" if text.lower() in kept else text)
    return found


WHOLE = {
    "chat": ("/v1/chat/completions", CHAT | {"max_tokens": 6}),
    "chat-two-choices": ("/v1/chat/completions", CHAT | {"max_tokens": 2, "n": 2}),
    "chat-stop-word": ("/v1/chat/completions", CHAT | {"max_tokens": 30, "stop": [" "]}),
    "chat-json-schema": (
        "/v1/chat/completions",
        CHAT | {"max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ),
    "chat-tools-not-supported": ("/v1/chat/completions", CHAT | {"max_tokens": 4, "tools": [TOOL]}),
    "chat-empty-messages": ("/v1/chat/completions", {"messages": [], "max_tokens": 2}),
    "completions": ("/v1/completions", TEXT | {"max_tokens": 6}),
    "completions-two-prompts": ("/v1/completions", {"prompt": ["a b", "c d"], "max_tokens": 2}),
    "native": ("/completion", TEXT | {"n_predict": 6}),
    "native-two-prompts": ("/completion", {"prompt": ["a b", "c d"], "n_predict": 2}),
    "native-empty-prompt": ("/completion", {"prompt": "", "n_predict": 2}),
    "native-some-fields": ("/completion", TEXT | {"n_predict": 2, "response_fields": ["content", "stop_type"]}),
    "native-return-tokens": ("/completion", TEXT | {"n_predict": 2, "return_tokens": True}),
    "native-no-tokens-wanted": ("/completion", TEXT | {"n_predict": 0}),
    "messages": ("/v1/messages", CHAT | {"max_tokens": 6}),
    "messages-system": ("/v1/messages", CHAT | {"max_tokens": 6, "system": "Be brief."}),
    "messages-stop-word": ("/v1/messages", CHAT | {"max_tokens": 30, "stop_sequences": [" "]}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 6}),
    "count-tokens": ("/v1/messages/count_tokens", CHAT),
    "input-tokens": ("/v1/chat/completions/input_tokens", CHAT),
    "tokenize": ("/tokenize", {"content": "Hello world"}),
    "tokenize-with-pieces": ("/tokenize", {"content": "Hello world", "with_pieces": True}),
    "tokenize-nothing": ("/tokenize", {}),
    "detokenize": ("/detokenize", {"tokens": [1, 2]}),
    "slot-save": ("/slots/0?action=save", {"filename": "a.bin"}),
    "slot-restore": ("/slots/0?action=restore", {"filename": "a.bin"}),
    "slot-erase": ("/slots/0?action=erase", {}),
    "slot-of-no-such-number": ("/slots/9?action=save", {"filename": "a.bin"}),
}

ERRORS = {
    "chat-no-messages": ("/v1/chat/completions", {}),
    "chat-messages-no-list": ("/v1/chat/completions", {"messages": "x"}),
    "chat-bad-max-tokens": ("/v1/chat/completions", CHAT | {"max_tokens": "many"}),
    "chat-too-many-choices": ("/v1/chat/completions", CHAT | {"n": 3}),
    "chat-picture": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}
            ]
        },
    ),
    "native-no-prompt": ("/completion", {}),
    "messages-none": ("/v1/messages", {"max_tokens": 4}),
    "responses-no-input": ("/v1/responses", {}),
    "template-no-messages": ("/apply-template", {}),
    "embeddings-off": ("/v1/embeddings", {"input": "x"}),
    "native-embeddings-off": ("/embedding", {"content": "x"}),
    "reranking-off": ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    "infill-off": ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    "props-off": ("/props", {}),
    "slot-bad-name": ("/slots/0?action=save", {"filename": "../a.bin"}),
    "slot-missing-file": ("/slots/0?action=restore", {"filename": "none.bin"}),
    "slot-bad-action": ("/slots/0?action=eat", {"filename": "a.bin"}),
    "slot-bad-id": ("/slots/x?action=erase", {}),
    "no-such-path": ("/nothing", {}),
    "ollama-path": ("/api/chat", CHAT),
}


@pytest.mark.parametrize("case", WHOLE)
async def test_whole_answers_have_the_real_structure(case: str, real: Subject, emulated: Subject) -> None:
    path, body = WHOLE[case]
    for one in (real, emulated):  # a file to restore from
        await one.post("/slots/0?action=save", {"filename": "a.bin"})
    expected, found = await real.post(path, body), await emulated.post(path, body)
    assert found.status_code == expected.status_code == 200, expected.text
    assert head(found) == head(expected)
    assert shape(found.json()) == shape(expected.json())


@pytest.mark.parametrize("case", ERRORS)
async def test_errors_are_the_real_ones(case: str, real: Subject, emulated: Subject) -> None:
    path, body = ERRORS[case]
    expected, found = await real.post(path, body), await emulated.post(path, body)
    assert found.status_code == expected.status_code
    assert head(found) == head(expected)
    assert found.json() == expected.json()


@pytest.mark.parametrize("body", ['{"a', "{bad", "", "[1,2]", "nonsense"])
async def test_what_is_no_json_object_is_refused_in_the_same_form(body: str, real: Subject, emulated: Subject) -> None:
    expected, found = [
        await one.client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        for one in (real, emulated)
    ]
    assert found.status_code == expected.status_code, expected.text
    assert head(found) == head(expected)
    assert shape(found.json()) == shape(expected.json())
    assert found.json()["error"]["type"] == expected.json()["error"]["type"]


STREAMS = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat-usage": ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}),
    "chat-timings": ("/v1/chat/completions", CHAT | {"timings_per_token": True}),
    "chat-progress": ("/v1/chat/completions", CHAT | {"return_progress": True}),
    "chat-everything": (
        "/v1/chat/completions",
        CHAT | {"return_progress": True, "timings_per_token": True, "stream_options": {"include_usage": True}},
    ),
    "completions": ("/v1/completions", TEXT),
    "completions-timings": ("/v1/completions", TEXT | {"timings_per_token": True}),
    "completions-progress": ("/v1/completions", TEXT | {"return_progress": True}),
    "native": ("/completion", TEXT),
    "native-timings": ("/completion", TEXT | {"timings_per_token": True}),
    "native-progress": ("/completion", TEXT | {"return_progress": True}),
    "messages": ("/v1/messages", CHAT),
    "messages-progress": ("/v1/messages", CHAT | {"return_progress": True}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "responses-progress": ("/v1/responses", {"input": "hi", "return_progress": True}),
}


@pytest.mark.parametrize("case", STREAMS)
async def test_streams_have_the_real_frames(case: str, real: Subject, emulated: Subject) -> None:
    path, body = STREAMS[case]
    limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
    wanted = body | {"stream": True, limit: 5}
    expected, found = await real.post(path, wanted), await emulated.post(path, wanted)
    assert found.status_code == expected.status_code == 200, expected.text
    assert head(found) == head(expected)
    assert stream_shape(found.content) == stream_shape(expected.content)


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/models", "/lora-adapters", "/nothing", "/v1/chat/completions"]
)
async def test_what_can_be_got_has_the_real_structure(path: str, real: Subject, emulated: Subject) -> None:
    expected, found = await real.get(path), await emulated.get(path)
    assert found.status_code == expected.status_code
    assert head(found) == head(expected)
    assert shape(found.json()) == shape(expected.json())


async def test_props_differ_only_in_what_the_model_is(real: Subject, emulated: Subject) -> None:
    expected, found = (await real.get("/props")).json(), (await emulated.get("/props")).json()
    assert shape(found) == shape(expected)
    own = {"model_ftype", "model_path", "media_marker", "build_info"}
    own |= {"ui", "cors_proxy_enabled", "endpoint_props"}  # flags of the real one's start
    assert {name: value for name, value in found.items() if name not in own} == {
        name: value for name, value in expected.items() if name not in own
    }


async def test_metrics_have_the_same_lines(real: Subject, emulated: Subject) -> None:
    def names(answer: httpx.Response) -> list[str]:
        return [line if line.startswith("#") else line.split()[0] for line in answer.text.splitlines()]

    expected, found = await real.get("/metrics"), await emulated.get("/metrics")
    assert names(found) == names(expected)
    assert head(found) == head(expected)


async def test_slots_show_the_same_before_and_after_use(real: Subject, emulated: Subject) -> None:
    for one in (real, emulated):
        await one.post("/v1/chat/completions", CHAT | {"max_tokens": 3, "stream": True, "id_slot": 1})
    expected, found = await real.slots(), await emulated.slots()
    assert shape(found[1]) == shape(expected[1])
    kept = {"n_ctx", "is_processing", "n_prompt_tokens_processed", "n_prompt_tokens_cache", "params", "next_token"}
    assert {name: found[1][name] for name in kept} == {name: expected[1][name] for name in kept}


async def test_the_chat_template_gives_the_same_text(real: Subject, emulated: Subject) -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye\nnow"},
    ]
    for given in (messages, [{"role": "system", "content": "Be brief."}, *messages]):
        body = {"messages": given}
        expected, found = await real.post("/apply-template", body), await emulated.post("/apply-template", body)
        assert found.json() == expected.json()


async def test_a_key_is_asked_for_in_the_same_words(real: Subject, emulated: Subject) -> None:
    for path in ("/v1/models", "/nothing", "/slots"):
        expected, found = [
            await one.client.get(path, headers={"Authorization": "Bearer wrong"}) for one in (real, emulated)
        ]
        assert found.status_code == expected.status_code == 401
        assert head(found) == head(expected)
        assert found.json() == expected.json()


async def test_preflight_is_answered_the_same(real: Subject, emulated: Subject) -> None:
    headers = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    expected, found = [await one.client.options("/v1/chat/completions", headers=headers) for one in (real, emulated)]
    assert found.status_code == expected.status_code == 200
    assert found.headers.raw == expected.headers.raw
