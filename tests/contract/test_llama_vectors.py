"""Embeddings and reranking: the emulated llama-server's answers have the real one's structure."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.contract.conftest import CONTEXT, SLOTS, Subject, client_of
from tests.contract.shapes import shape
from tests.real_engine import KEY, MODEL_NAME, start_engine, stop_engine

pytestmark = pytest.mark.real

EMBEDDINGS, RERANKING = ["--embeddings", "--pooling", "mean"], ["--reranking"]


def url_of(flags: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="slotgate-contract-") as directory:
        engine = start_engine(Path(directory), tcp=True, slots=SLOTS, context_tokens=CONTEXT, flags=flags)
        yield engine.url
        stop_engine(engine)


@pytest.fixture(scope="module")
def embedding_url() -> Iterator[str]:
    yield from url_of(EMBEDDINGS)


@pytest.fixture(scope="module")
def reranking_url() -> Iterator[str]:
    yield from url_of(RERANKING)


@pytest.fixture
async def emulated() -> AsyncIterator[Subject]:
    model = EmulatedModel(MODEL_NAME, capabilities=("embedding",))
    values: dict[str, Any] = {"models": [model], "slots": SLOTS, "context": CONTEXT, "api_keys": (KEY,)}
    engine = EmulatedEngine(speed=100, embeddings=True, reranking=True, **values)
    async with engine, client_of(engine.url) as client:
        yield Subject(engine.url, client, "emulated")


EMBED: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("/v1/embeddings", {"input": "a b"}),
    "two": ("/v1/embeddings", {"input": ["a b", "c d"], "model": "q"}),
    "base64": ("/v1/embeddings", {"input": ["a b", "c d"], "encoding_format": "base64"}),
    "tokens": ("/v1/embeddings", {"input": [1, 2, 3]}),
    "lists-of-tokens": ("/v1/embeddings", {"input": [[1, 2, 3], [4, 5]]}),
    "mixed": ("/v1/embeddings", {"input": ["a", 2, 3]}),
    "objects": ("/v1/embeddings", {"input": ["a", {"prompt_string": "b"}]}),
    "content-is-native": ("/v1/embeddings", {"content": ["a", "b"]}),
    "native": ("/embedding", {"content": ["a b", "c d"]}),
    "native-input-first": ("/embedding", {"input": ["a b", "c d"], "content": ["x"]}),
    "native-one": ("/embeddings", {"input": "a b"}),
    "none": ("/v1/embeddings", {"input": []}),
    "none-native": ("/embedding", {"content": []}),
    "nothing": ("/v1/embeddings", {}),
    "empty": ("/v1/embeddings", {"input": ["a", ""]}),
    "null-among": ("/v1/embeddings", {"input": ["a", None]}),
    "bool-among": ("/v1/embeddings", {"input": ["a", True]}),
    "empty-native": ("/embedding", {"content": ["", "a"]}),
    "text-as-tokens": ("/v1/embeddings", {"input": [["a", 2], [2, 3]]}),
    "too-deep": ("/v1/embeddings", {"input": [["a"], [2, 3]]}),
}
RERANK: dict[str, tuple[str, dict[str, Any]]] = {
    "three": ("/rerank", {"query": "q", "documents": ["a b", "c d", "hello"]}),
    "best": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": 1}),
    "none-wanted": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": 0}),
    "wanted-as-text": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": "1"}),
    "wanted-as-float": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": 1.5}),
    "wanted-below-none": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": -1}),
    "wanted-of-64-bits": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": -4294967295}),
    "wanted-of-64-bits-without-sign": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": 2**63 + 1}),
    "wanted-as-large-float": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": 4294967298.0}),
    "wanted-as-truth": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "top_n": True}),
    "texts": ("/reranking", {"query": "q", "texts": ["a b", "c d"]}),
    "texts-and-documents": ("/rerank", {"query": "q", "texts": [], "documents": ["a b", "c d"], "return_text": True}),
    "texts-and-no-list": ("/rerank", {"query": "q", "texts": ["a b", "c d"], "documents": "a"}),
    "texts-shown": ("/v1/reranking", {"query": "q", "texts": ["a b", "c d"], "return_text": True}),
    "texts-not-shown": ("/v1/rerank", {"query": "q", "documents": ["a b", "c d"], "return_text": True}),
    "one-is-empty": ("/v1/rerank", {"query": "q", "documents": ["a", ""]}),
    "no-documents": ("/v1/rerank", {"query": "q", "documents": []}),
    "no-list": ("/v1/rerank", {"query": "q", "documents": "a"}),
    "no-texts": ("/v1/rerank", {"query": "q", "documents": ["a", 5]}),
    "no-query": ("/v1/rerank", {"documents": ["a"]}),
}


async def same(url: str, emulated: Subject, path: str, body: dict[str, Any]) -> None:
    async with client_of(url) as real:
        expected, found = await real.post(path, json=body), await emulated.post(path, body)
    assert found.status_code == expected.status_code, expected.text[:500]
    assert shape(found.json()) == shape(expected.json())
    if expected.status_code >= 400:
        assert found.json() == expected.json()


@pytest.mark.parametrize("case", EMBED)
async def test_embeddings(case: str, embedding_url: str, emulated: Subject) -> None:
    await same(embedding_url, emulated, *EMBED[case])


@pytest.mark.parametrize("case", RERANK)
async def test_reranking(case: str, reranking_url: str, emulated: Subject) -> None:
    await same(reranking_url, emulated, *RERANK[case])
