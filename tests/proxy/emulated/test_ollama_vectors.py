import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.proxy.emulated.support import client_of

MODELS = [EmulatedModel("e", capabilities=("embedding",), train_context=64), EmulatedModel("text")]


async def post(path: str, **body: object) -> httpx.Response:
    async with EmulatedEngine("ollama", models=MODELS) as engine, client_of(engine) as client:
        return await client.post(path, json={"model": "e", **body})


async def test_long_texts_are_cut_or_refused() -> None:
    cut = await post("/api/embed", input="word " * 100)
    assert cut.json()["prompt_eval_count"] == 62
    refused = await post("/api/embed", input="word " * 100, truncate=False)
    assert (refused.status_code, refused.json()) == (400, {"error": "the input length exceeds the context length"})


async def test_fewer_dimensions_keep_length_one() -> None:
    vector = (await post("/api/embed", input="hello", dimensions=8)).json()["embeddings"][0]
    assert len(vector) == 8
    assert sum(value * value for value in vector) == pytest.approx(1)


@pytest.mark.parametrize(("path", "status"), [("/api/embed", 501), ("/api/embeddings", 500), ("/v1/embeddings", 501)])
async def test_a_model_for_text_has_no_vectors(path: str, status: int) -> None:
    answer = await post(path, model="text", input="x", prompt="x")
    assert answer.status_code == status
    assert "does not support embeddings" in answer.text


async def test_nothing_in_nothing_out() -> None:
    assert (await post("/api/embeddings", prompt="")).json() == {"embedding": []}
    assert (await post("/v1/embeddings", input="")).status_code == 400
    assert (await post("/api/embed", input="")).json() == {"model": "e", "embeddings": []}


async def test_an_empty_text_among_others_has_a_vector() -> None:
    for texts in (["a", "", "b"], ["", "a", "b"], ["", "", ""]):
        answer = await post("/api/embed", input=texts)
        assert [len(vector) for vector in answer.json()["embeddings"]] == [64, 64, 64]


async def test_what_is_no_text() -> None:
    for wrong in (5, ["a", 5], {"a": 1}):
        answer = await post("/api/embed", input=wrong)
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid input type"})
