import json
from collections.abc import Sequence
from typing import Any

import msgspec
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


def refused(path: str, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        batch_of(path, **fields)
    return caught.value


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


def test_fields_that_the_engine_leaves_unread_do_not_go_with_the_pieces() -> None:
    big = ["x" * batches.MAX_OTHER_BYTES]
    kept = {"model": "smol", "input": ["b"], "dimensions": 2}
    for path in ("/api/embed", "/v1/embeddings", "/embedding"):
        assert fields_of(batch_of(path, input=["a", "b"], content=big, dimensions=2).piece([1])) == kept

    ranked = batch_of("/rerank", query="q", documents=["a", "b"], texts=big).piece([0])
    assert fields_of(ranked) == {"model": "smol", "query": "q", "documents": ["a"], "texts": []}, "it chooses the form"
    ranked = batch_of("/rerank", query="q", documents=5, texts=["a", "b"]).piece([0])
    assert fields_of(ranked) == {"model": "smol", "query": "q", "texts": ["a"]}


def test_other_fields_have_a_bound() -> None:
    room = batches.MAX_OTHER_BYTES - len(b'{"model":"smol","query":""}')
    assert len(batch_of("/rerank", query="q" * room, documents=["a", "b"])) == 2
    error = refused("/rerank", query="q" * (room + 1), documents=["a", "b"])
    assert (error.status, "262144 bytes beside" in error.message) == (413, True)

    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    call = batch_of("/rerank", query="q", documents=["a", "b"]).call
    with pytest.raises(ClientError, match="exceeded max depth"):
        Batch(msgspec.structs.replace(call, fields=call.fields | {"deep": deep}), lambda: LATER_NS)


@pytest.mark.parametrize(
    ("kept", "unloads"), [(0, True), ("0", True), ("0s", True), (0.0, True), (5, False), (-1, False), (None, False)]
)
def test_no_piece_unloads_the_model_that_the_next_one_needs(kept: object, unloads: bool) -> None:
    batch = batch_of("/api/embed", input=["a", "b"], keep_alive=kept)
    assert batch.unloads is unloads
    assert fields_of(batch.piece([0])).get("keep_alive") == (None if unloads else kept)
    assert not batch_of("/v1/embeddings", input=["a", "b"], keep_alive=kept).unloads, "Ollama does not read it there"


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
    ("top", "left"),
    [(None, 3), (2, 2), (2.9, 2), (0, 0), (9, 3), ("2", 3), (-4294967295, 1), (4294967298, 2), (True, 1), (-0.5, 0)],
    ids=str,
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
    assert fields_of(batch_of("/rerank", query="q", documents=["a", "b"], top_n=-4294967295).piece([0]))["top_n"] == 1
    for top in (-1, 3e9):
        negative = batch_of("/rerank", query="q", documents=["a", "b"], top_n=top)
        assert fields_of(negative.piece([0]))["top_n"] == top, "the engine says what it thinks of it"
        answers = rerank("score", (0, -1.0)), rerank("score", (0, 2.0))
        assert len(answered(negative, ([0], answers[0]), ([1], answers[1]))) == 2, "nothing is cut from the end"


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


@pytest.mark.parametrize("answer", [b"", b"{", b'[{"index":0,"embedding":[1]},', b"\xff", b'{"\xff":1}'])
def test_what_is_no_json_counts_as_a_failure(answer: bytes) -> None:
    with pytest.raises(EngineError, match="not an answer to 2 inputs"):
        batch_of("/embedding", content=["a", "b", "c"]).take([0, 2], answer)


def of_index(*indexes: object) -> bytes:
    return json.dumps([{"index": index, "embedding": [1]} for index in indexes]).encode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{}", "no entries"),
        (b"null", "Expected `object`"),
        (b'"text"', "Expected `object`"),
        (b"[]", "0 entries"),
        (of_index(0), "1 entries"),
        (of_index(0, 1, 2), "3 entries"),
        (b'{"data":[{"index":0,"embedding":[1]}]}', "1 entries"),
        (b'{"embeddings":[[1]]}', "1 entries"),
        (b'{"embeddings":5}', "Expected `array`"),
        (b'{"embeddings":null}', "Expected `array`"),
        (of_index(1, 1), "index 1 is there twice"),
        (of_index(0, 2), "index 2 is none"),
        (of_index(0, -1), "index -1 is none"),
        (of_index(-1, -2), "index -1 is none"),
        (of_index(0, "1"), "Expected `int`"),
        (of_index(0, None), "Expected `int`"),
        (b'[{"index":0,"embedding":[1]},{"embedding":[1]}]', "Expected `int`"),
        (b'{"data":[{"index":0},{"index":1}],"usage":[]}', "Expected `object | null`"),
        (b'{"embeddings":[[1],[1]],"prompt_eval_count":"x"}', "Expected `int | null`"),
        (b"[[1],[2]]", "Expected `object`"),
    ],
)
def test_an_answer_to_something_else_is_about_the_request(answer: bytes, why: str) -> None:
    with pytest.raises(ClientError, match="does not fit the 2 inputs") as caught:
        batch_of("/embedding", content=["a", "b", "c"]).take([0, 2], answer)
    assert caught.value.status == 502
    assert why in caught.value.message


@pytest.mark.parametrize("scored", [{"score": None}, {}, {"relevance_score": "high"}, {"relevance_score": [1]}])
def test_a_score_that_is_no_number(scored: dict[str, Any]) -> None:
    body = json.dumps({"results": [{"index": 0} | scored]}).encode()
    with pytest.raises(ClientError, match="Expected `float`") as caught:
        batch_of("/rerank", query="q", documents=["a", "b"]).take([0], body)
    assert caught.value.status == 502


def test_usage_and_counts_that_are_null_are_like_none() -> None:
    batch = batch_of("/v1/embeddings", input=["a", "b"])
    entry = {"embedding": [1.0], "index": 0}
    first = {"data": [entry], "usage": None, "prompt_eval_count": None, "load_duration": None}
    assert answered(batch, ([0], first), ([1], first))["usage"] is None
    assert batch.prompt_tokens == 0

    batch = batch_of("/v1/embeddings", input=["a", "b"])
    second = {"data": [entry], "usage": {"prompt_tokens": 3}}
    assert answered(batch, ([0], first), ([1], second))["usage"] == {"prompt_tokens": 3}
    assert batch.prompt_tokens == 3


def test_a_piece_of_which_nothing_was_taken_may_run_again() -> None:
    batch = batch_of("/embedding", content=["a", "b"])
    with pytest.raises(EngineError):
        batch.take([1, 0], b'[{"index":0,"embedding":[5]},')
    assert [entry["embedding"] for entry in answered(batch, ([0, 1], json.loads(of_index(1, 0))))] == [[1], [1]]


def test_more_than_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_HELD_BYTES", 50)
    batch = batch_of("/embedding", content=["a", "b"])
    batch.take([0], b'[{"index":0,"embedding":[1]}]')
    with pytest.raises(ClientError, match="send fewer inputs") as caught:
        batch.take([1], b'[{"index":0,"embedding":[1]}]')
    assert caught.value.status == 413
