import base64
import struct

import pytest

from proxy.emulated import EmulatedEngine
from tests.proxy.emulated.support import client_of


async def test_vectors_in_both_encodings_are_the_same() -> None:
    async with EmulatedEngine(embeddings=True) as engine, client_of(engine) as client:
        plain = (await client.post("/v1/embeddings", json={"input": ["hello", "you"]})).json()
        packed = (await client.post("/v1/embeddings", json={"input": "hello", "encoding_format": "base64"})).json()
        native = (await client.post("/embedding", json={"content": "hello"})).json()
        vector = plain["data"][0]["embedding"]
        unpacked = struct.unpack("<64f", base64.b64decode(packed["data"][0]["embedding"]))
        assert list(unpacked) == pytest.approx(vector, abs=1e-6)
        assert native[0]["embedding"] == [vector]
        assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        assert len(engine.requests[0].jobs) == 2


async def test_the_nearest_document_comes_first() -> None:
    async with EmulatedEngine(reranking=True) as engine, client_of(engine) as client:
        body = {"query": "red fox", "documents": ["a blue whale", "the red fox", "green"], "top_n": 2}
        results = (await client.post("/v1/rerank", json=body)).json()["results"]
        assert results[0]["index"] == 1
        assert len(results) == 2
        for wrong in ({"documents": ["a"]}, {"query": "a"}, {"query": "a", "documents": []}):
            assert (await client.post("/rerank", json=wrong)).status_code == 400


@pytest.mark.parametrize(
    ("top", "left"), [(-4294967295, 1), (4294967298, 2), (2**63 + 1, 1), (True, 1), (1.9, 1), (-0.5, 0), (None, 3)]
)
async def test_how_many_documents_are_wanted(top: object, left: int) -> None:
    async with EmulatedEngine(reranking=True) as engine, client_of(engine) as client:
        body = {"query": "a", "documents": ["a", "b", "c"], "top_n": top}
        assert len((await client.post("/v1/rerank", json=body)).json()["results"]) == left


@pytest.mark.parametrize("top", [-1, 4294967298.0, 3e9, -1.5, 1e300])
async def test_fewer_documents_than_none(top: float) -> None:
    async with EmulatedEngine(reranking=True) as engine, client_of(engine) as client:
        answer = await client.post("/v1/rerank", json={"query": "a", "documents": ["a", "b"], "top_n": top})
        assert answer.status_code == 500
        assert answer.json()["error"] == {"code": 500, "message": "vector::_M_default_append", "type": "server_error"}
