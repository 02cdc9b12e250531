"""Routes of the emulated llama-server that the contract does not ask the real one about."""

from typing import Any

import pytest

from proxy.emulated import EmulatedEngine
from tests.contract.shapes import events
from tests.proxy.emulated.support import chat_body, client_of

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]


async def test_a_tool_is_called_and_its_result_answered() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        body = chat_body(tools=TOOLS)
        first = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        call = first["message"]["tool_calls"][0]
        body["messages"] += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12"}]
        second = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert (second["finish_reason"], bool(second["message"]["content"])) == ("stop", True)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": chat_body(),
    "/v1/messages/count_tokens": chat_body(),
    "/apply-template": chat_body(),
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/embeddings": {"input": "a"},
    "/rerank": {"query": "a", "documents": ["b"]},
}
FIELDS = [
    "messages", "prompt", "input", "input_prefix", "content", "tokens", "query", "documents", "top_n", "stop", "tools",
    "tool_choice", "response_format", "response_fields", "stream_options", "text", "json_schema", "seed", "n",
    "id_slot", "system",
]  # fmt: skip
VALUES: list[Any] = [None, True, 5, -5, 1.5, 1e300, 2**63, "x", [], [5], [None], [{}], {}, {"a": 1}, [[1]]]


@pytest.mark.parametrize("path", BODIES)
async def test_a_wrong_type_is_answered(path: str) -> None:
    limits = {"n_predict": 2, "max_tokens": 2}
    async with EmulatedEngine(infill=True, embeddings=True, reranking=True) as engine, client_of(engine) as client:
        for field in FIELDS:
            for value in VALUES:
                for stream in (False, True) if "messages" in field or field in {"stop", "stream_options"} else (True,):
                    body = BODIES[path] | limits | {"stream": stream, field: value}
                    answer = await client.post(path, json=body)
                    assert answer.status_code in {200, 400, 500}, (field, value, answer.text)


async def test_infill_answers_when_the_model_can() -> None:
    async with EmulatedEngine(infill=True) as engine, client_of(engine) as client:
        answer = await client.post("/infill", json={"input_prefix": "a", "input_suffix": "b", "n_predict": 3})
        assert answer.json()["tokens_predicted"] == 3


async def test_without_metrics_they_are_off() -> None:
    async with EmulatedEngine(metrics=False) as engine, client_of(engine) as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 501
        assert answer.json()["error"]["message"].endswith("Start it with `--metrics`")


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer k2"}, {"X-Api-Key": "k1"}])
async def test_any_of_the_keys_opens(headers: dict[str, str]) -> None:
    async with EmulatedEngine(api_keys=("k1", "k2")) as engine, client_of(engine) as client:
        assert (await client.get("/slots", headers=headers)).status_code == 200
        assert (await client.get("/slots")).status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_pieces_that_are_no_text_are_bytes() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        tokens = (await client.post("/tokenize", json={"content": "aaa→", "with_pieces": True})).json()["tokens"]
        assert any(isinstance(token["piece"], list) for token in tokens)
        ids = [token["id"] for token in tokens]
        assert (await client.post("/detokenize", json={"tokens": ids})).json()["content"] == "aaa→"


async def test_text_ends_by_itself() -> None:
    async with EmulatedEngine(answer_tokens=(7, 7)) as engine, client_of(engine) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))
        pieces = [chunk["choices"][0] for _, chunk in events(answer.content)[:-1]]
        assert sum(1 for piece in pieces if piece["delta"].get("content")) == 7
        assert pieces[-1]["finish_reason"] == "stop"


async def test_head_is_get_without_a_body() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        answer = await client.head("/health")
        assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "15", b"")
