"""Embedding and rerank batches on real engines: the whole answer for the client, and nothing in the engines' queues."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.real_engine import MODEL_NAME
from tests.slotgate_process import SlotgateProcess, real_config, slotgate
from tests.stories.gauges import gauges

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

LIMIT = 2
TEXTS = [f"{number} " + "is a number that has a story of its own. " * (number % 7) for number in range(40)]


def box(factory: pytest.TempPathFactory, flags: str) -> Iterator[SlotgateProcess]:
    directory = factory.mktemp("box")
    with slotgate(directory, real_config(directory / "state", running_limit=LIMIT, flags=flags)) as running:
        running.wait_ready(2)
        yield running


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlotgateProcess]:
    yield from box(tmp_path_factory, "--embeddings --pooling mean")


@pytest.fixture(scope="module")
def reranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlotgateProcess]:
    yield from box(tmp_path_factory, "--reranking")


async def ask(running: SlotgateProcess, path: str, **body: Any) -> httpx.Response:
    async with gauges(running, 0.02) as seen, httpx.AsyncClient(base_url=running.url, timeout=120) as client:
        answer = await client.post(path, json={"model": MODEL_NAME} | body)
    assert answer.status_code == 200, answer.text
    assert seen.samples > 2
    assert 0 < seen.processing <= LIMIT
    assert seen.deferred == 0
    assert sorted(answer.headers["X-Slotgate-Backend"].split(",")) == ["cpu-0", "cpu-1"]
    return answer


def vectors_of(path: str, answer: Any) -> list[list[float]]:
    if path == "/api/embed":
        return list(answer["embeddings"])
    entries = answer if isinstance(answer, list) else answer["data"]
    assert [entry["index"] for entry in entries] == list(range(len(entries)))
    return [entry["embedding"] if path.startswith("/v1") else entry["embedding"][0] for entry in entries]


@pytest.mark.parametrize(
    ("path", "field"), [("/api/embed", "input"), ("/v1/embeddings", "input"), ("/embedding", "content")]
)
async def test_each_text_gets_its_own_vector(embedding: SlotgateProcess, path: str, field: str) -> None:
    answer = (await ask(embedding, path, **{field: TEXTS})).json()
    vectors = vectors_of(path, answer)
    assert len(vectors) == len(TEXTS)
    async with httpx.AsyncClient(base_url=embedding.url, timeout=120) as client:
        singles = [
            (await client.post(path, json={"model": MODEL_NAME, field: TEXTS[number]})).json()
            for number in range(0, len(TEXTS), 8)
        ]
    for number, single in zip(range(0, len(TEXTS), 8), singles, strict=True):
        assert vectors[number] == pytest.approx(vectors_of(path, single)[0], abs=1e-2)
    whole, single = [one if isinstance(one, dict) else one[0] for one in (answer, singles[0])]
    assert list(whole) == list(single), "it has the form of a single one"


async def test_documents_are_reranked_best_first(reranking: SlotgateProcess) -> None:
    answer = (await ask(reranking, "/v1/rerank", query="Which number?", documents=TEXTS)).json()
    scores = [entry["relevance_score"] for entry in answer["results"]]

    assert list(answer) == ["model", "object", "usage", "results"]
    assert sorted(entry["index"] for entry in answer["results"]) == list(range(len(TEXTS)))
    assert scores == sorted(scores, reverse=True)
    assert answer["usage"]["total_tokens"] > len(TEXTS)

    best = (await ask(reranking, "/v1/rerank", query="Which number?", documents=TEXTS, top_n=3)).json()
    assert len(best["results"]) == 3
