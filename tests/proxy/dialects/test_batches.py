import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.dialects import Batch, Call, ClientError, Route, batches, find, read_call
from proxy.dialects.contract import EngineError
from tests.proxy.dialects.support import NOW_NS

LATER_NS = NOW_NS + 5_000_000


def batch_of(path: str, **fields: Any) -> Batch:
    route = find("POST", path)
    assert isinstance(route, Route)
    call = read_call(route, json.dumps({"model": "smol"} | fields).encode(), [], lambda: NOW_NS)
    assert call.batch
    return Batch(call, lambda: LATER_NS)


def answered(batch: Batch, *pieces: tuple[Sequence[int], Any]) -> Any:
    for indexes, answer in pieces:
        batch.take(indexes, json.dumps(answer).encode())
    return json.loads(batch.answer())


def fields_of(call: Call) -> Any:
    fields = json.loads(call.body)
    assert fields == call.fields
    return fields


def test_a_piece_is_the_same_call_with_fewer_inputs() -> None:
    batch = batch_of("/api/embed", input=["a", "b", "c"], dimensions=2, options={"num_ctx": 512})

    piece = batch.piece([2, 0])

    assert fields_of(piece) == {"model": "smol", "input": ["c", "a"], "dimensions": 2, "options": {"num_ctx": 512}}
    assert (len(batch), piece.seats, piece.model, piece.route) == (3, 2, "smol", batch.call.route)


def test_ollama() -> None:
    batch = batch_of("/api/embed", input=["a", "b", "c"])
    first = {"model": "smol", "embeddings": [[2.0], [0.5]], "total_duration": 9, "prompt_eval_count": 3}
    second = {"model": "smol", "embeddings": [[1.0]], "total_duration": 7, "load_duration": 4, "prompt_eval_count": 2}

    assert answered(batch, ([2, 0], first), ([1], second)) == {
        "model": "smol",
        "embeddings": [[0.5], [1.0], [2.0]],
        "total_duration": 5_000_000,
        "prompt_eval_count": 5,
    }
    assert batch.prompt_tokens == 5


def test_openai() -> None:
    batch = batch_of("/v1/embeddings", input=["a", "b", "c"])

    def vector(index: int, number: float) -> dict[str, Any]:
        return {"embedding": [number], "index": index, "object": "embedding"}

    def answer(tokens: int, *data: Any) -> dict[str, Any]:
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "details": {"x": 1}}
        return {"model": "smol", "object": "list", "usage": usage, "data": data}

    pieces = ([1], answer(2, vector(0, 1.0))), ([0, 2], answer(3, vector(1, 2.0), vector(0, 0.5)))
    assert answered(batch, *pieces) == answer(5, vector(0, 0.5), vector(1, 1.0), vector(2, 2.0)) | {
        "data": [vector(0, 0.5), vector(1, 1.0), vector(2, 2.0)]
    }
    assert batch.prompt_tokens == 5


def test_llama_servers_own() -> None:
    batch = batch_of("/embedding", content=["a", "b"])
    pieces = ([1], [{"index": 0, "embedding": [[1.0]]}]), ([0], [{"index": 0, "embedding": [[0.5], [0.7]]}])
    whole = [{"index": 0, "embedding": [[0.5], [0.7]]}, {"index": 1, "embedding": [[1.0]]}]
    assert answered(batch, *pieces) == whole
    assert batch.prompt_tokens == 0


def rerank(key: str, *scored: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"index": index, key: score} for index, score in scored]


@pytest.mark.parametrize(
    ("top", "left"), [(None, 3), (2, 2), (2.9, 2), (0, 0), (9, 3), ("2", 3)], ids=["none", "2", "2.9", "0", "9", "text"]
)
def test_reranked(top: object, left: int) -> None:
    batch = batch_of("/v1/rerank", query="q", documents=["a", "b", "c"], **({} if top is None else {"top_n": top}))
    head = {"model": "smol", "object": "list"}
    first = head | {"usage": {"total_tokens": 4}, "results": rerank("relevance_score", (1, 0.9), (0, -3.5))}
    second = head | {"usage": {"total_tokens": 2}, "results": rerank("relevance_score", (0, 1e-3))}
    best_first = rerank("relevance_score", (2, 0.9), (1, 1e-3), (0, -3.5))

    whole = head | {"usage": {"total_tokens": 6}, "results": best_first[:left]}
    assert answered(batch, ([0, 2], first), ([1], second)) == whole


def test_every_piece_is_reranked_in_full() -> None:
    assert fields_of(batch_of("/rerank", query="q", documents=["a", "b", "c"], top_n=1).piece([0, 2]))["top_n"] == 2
    assert "top_n" not in fields_of(batch_of("/rerank", query="q", documents=["a", "b"]).piece([0]))
    refused = batch_of("/rerank", query="q", documents=["a", "b"], top_n=-1).piece([0])
    assert fields_of(refused)["top_n"] == -1, "the engine says what it thinks of it"


def test_reranked_in_the_other_form() -> None:
    batch = batch_of("/rerank", query="q", texts=["a", "b"], return_text=True)
    answers = rerank("score", (0, -1.0)), rerank("score", (0, 2.0))
    assert answered(batch, ([0], answers[0]), ([1], answers[1])) == rerank("score", (1, 2.0), (0, -1.0))


def test_numbers_texts_and_ends_stay_as_they_were() -> None:
    batch = batch_of("/api/embed", input=["a", "b"])
    body = b'{"model":"<smol>","embeddings":[[-0.022938709706068040,1e-9]],"prompt_eval_count":1}\n'
    batch.take([0], body)
    batch.take([1], body)
    vector = b"[-0.022938709706068040,1e-9]"
    assert batch.answer() == b'{"model":"<smol>","embeddings":[%b,%b],"prompt_eval_count":2}\n' % (vector, vector)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b'{"data":[{"index":0,"embedding":[1]}]}',
        b'{"embeddings":[[1]]}',
        b'{"embeddings":5}',
        b'[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]',
        b'[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]',
        b'[{"index":0,"embedding":[1]},{"embedding":[1]}]',
        b'[{"index":0,"embedding":[1]},{"index":"1","embedding":[1]}]',
        b'{"data":[{"index":0},{"index":1}],"usage":[]}',
        b'{"embeddings":[[1],[1]],"prompt_eval_count":"x"}',
        b"[[1],[2]]",
        b"\xff",
    ],
)
def test_what_is_no_answer_to_all_inputs_counts_as_a_failure(answer: bytes) -> None:
    with pytest.raises(EngineError, match="not an answer to 2 inputs"):
        batch_of("/embedding", content=["a", "b", "c"]).take([0, 2], answer)


def test_more_than_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_HELD_BYTES", 50)
    batch = batch_of("/embedding", content=["a", "b"])
    batch.take([0], b'[{"index":0,"embedding":[1]}]')
    with pytest.raises(ClientError, match="send fewer inputs") as caught:
        batch.take([1], b'[{"index":0,"embedding":[1]}]')
    assert caught.value.status == 413
