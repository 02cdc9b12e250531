"""Embedding and rerank batches, over real sockets: whole for the client, in pieces for engines."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.emulated import EmulatedModel
from proxy.emulated.faults import Kind
from scheduler.events import BackendSignalled
from scheduler.health import Signal
from tests.proxy.box import MODEL, Box, box, emulated
from tests.wait import until

TEXTS = [f"text number {number}" for number in range(20)]
WAYS = {
    "ollama": ("/api/embed", "input"),
    "openai": ("/v1/embeddings", "input"),
    "llama.cpp": ("/embedding", "content"),
    "rerank": ("/v1/rerank", "documents"),
}


def engine(**values: Any) -> Any:
    return emulated(**{"embeddings": True, "reranking": True} | values)


async def post(running: Box, path: str, field: str, texts: list[str] = TEXTS) -> httpx.Response:
    return await running.client.post(path, json={"model": MODEL, "query": "number 7", field: texts})


def without_times(answer: httpx.Response) -> Any:
    value = answer.json()
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if not key.endswith("_duration")}
    return value


@pytest.mark.parametrize("way", WAYS)
async def test_a_batch_is_answered_as_one_engine_would_and_fills_no_queue(tmp_path: Path, way: str) -> None:
    engines = [engine(slots=4, speed=100.0), engine(slots=2, speed=100.0)]
    alone = engine(slots=40)
    async with box(tmp_path / "one", [alone]) as running:
        expected = await post(running, *WAYS[way])
    async with box(tmp_path / "two", engines) as running:
        answer = await post(running, *WAYS[way])
        await running.idle()
        [ended] = await running.ended(1)

    assert answer.status_code == expected.status_code == 200
    assert without_times(answer) == without_times(expected)
    assert answer.headers["Content-Type"] == expected.headers["Content-Type"]
    assert [one.deferred_max for one in engines] == [0, 0]
    assert sorted(answer.headers["X-Slotgate-Backend"].split(",")) == ["gpu0", "gpu1"]
    assert answer.headers["X-Slotgate-Decision"].startswith("gpu")
    assert (ended.backend, ended.outcome, ended.status) == (answer.headers["X-Slotgate-Backend"], "done", 200)
    if way != "llama.cpp":
        assert ended.prompt_tokens
    else:
        assert ended.prompt_tokens is None, "that form tells no tokens"


async def test_batches_in_front_of_ollama(tmp_path: Path) -> None:
    model = EmulatedModel(MODEL, capabilities=("embedding",))
    engines = [emulated("ollama", models=[model]), emulated("ollama", models=[model])]
    for path, field in (WAYS["ollama"], WAYS["openai"]):
        async with box(tmp_path / field / path[1:], engines) as running:
            answer = await post(running, path, field)
            await running.idle()
        value = answer.json()
        assert answer.status_code == 200, answer.text
        assert len(value["embeddings" if path == "/api/embed" else "data"]) == len(TEXTS)


async def test_others_get_their_turn_between_the_pieces(tmp_path: Path) -> None:
    async with box(tmp_path, [engine(slots=1, speed=1.0)]) as running:
        batch = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: running.app.requests == 2, "one piece runs, the next waits")
        await running.generate()

        assert not batch.done()
        assert (await batch).status_code == 200
        assert [line.operation for line in await running.ended(2)] == ["generate", "embed"]


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.LOADING, Kind.DIE])
async def test_a_piece_that_fails_runs_elsewhere(tmp_path: Path, kind: Kind) -> None:
    engines = [engine(), engine()]
    async with box(tmp_path, engines) as running:
        expected = await post(running, *WAYS["llama.cpp"])
        for one in engines:
            one.faults.add(kind, times=1)
        answer = await post(running, *WAYS["llama.cpp"])
        await running.idle()

    assert answer.status_code == 200
    assert answer.json() == expected.json()


async def test_pieces_at_a_backend_that_went_down_run_elsewhere(tmp_path: Path) -> None:
    engines = [engine(), engine()]
    async with box(tmp_path, engines) as running:
        engines[0].faults.add(Kind.HANG)
        asked = asyncio.ensure_future(post(running, *WAYS["openai"]))
        await until(lambda: engines[0].open_requests > 0, "a piece hangs")
        for _ in range(3):
            running.app.feed(BackendSignalled("gpu0", Signal.MISSED))
        answer = await asked

    assert answer.status_code == 200
    assert [entry["index"] for entry in answer.json()["data"]] == list(range(len(TEXTS)))


async def test_too_many_failures_end_the_batch(tmp_path: Path) -> None:
    one = engine()
    async with box(tmp_path, [one], limits={"max_attempts": 2}) as running:
        one.faults.add(Kind.RESET)
        answer = await post(running, *WAYS["ollama"])
        await running.idle()
        [ended] = await running.ended(1)

    assert answer.status_code == 500
    assert "2 attempts failed" in answer.json()["error"]
    assert ended.outcome == "failed"


async def test_what_the_engine_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    async with box(tmp_path, [engine(context=64), engine(context=64)]) as running:
        answer = await post(running, *WAYS["openai"], texts=[*TEXTS, "word " * 500])
        single = await post(running, *WAYS["openai"], texts=["word " * 500])
        await running.idle()
        [ended, _] = await running.ended(2)

    assert answer.status_code == single.status_code == 400
    assert answer.json() == single.json()
    assert (ended.outcome, ended.termination) == ("engine-refused", "EE")


async def test_a_model_that_nobody_has(tmp_path: Path) -> None:
    async with box(tmp_path, [engine()]) as running:
        answer = await running.client.post("/api/embed", json={"model": "none", "input": TEXTS})

    assert answer.status_code == 404
    assert answer.json() == {"error": "model 'none' not found"}


async def test_a_client_that_leaves_frees_every_slot(tmp_path: Path) -> None:
    engines = [engine(speed=0.05), engine(speed=0.05)]
    async with box(tmp_path, engines) as running:
        asked = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: all(one.open_requests for one in engines), "pieces run at both")
        asked.cancel()
        [ended] = await running.ended(1)

        assert ended.outcome == "client-left"
        await until(lambda: not any(one.open_requests for one in engines), "the engines' connections are closed")
        await until(lambda: running.app.requests == 0, "no request is open")


async def test_a_stop_ends_a_batch_and_says_so(tmp_path: Path) -> None:
    async with box(tmp_path, [engine(speed=0.05)], limits={"drain_s": 0.1}) as running:
        asked = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: running.app.requests == 2, "one piece runs, the next waits")
        running.app.stop()
        answer = await asked

    assert answer.status_code == 503
    assert "shutting down" in answer.json()["error"]


async def test_a_stop_lets_a_batch_end_that_can(tmp_path: Path) -> None:
    async with box(tmp_path, [engine(speed=5.0)]) as running:
        asked = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: running.app.requests == 2, "one piece runs, the next waits")
        running.app.stop()
        answer = await asked

    assert answer.status_code == 200
    assert len(answer.json()["embeddings"]) == len(TEXTS)


async def test_no_room_for_a_first_piece_in_time(tmp_path: Path) -> None:
    async with box(tmp_path, [engine(slots=1, speed=0.05)], limits={"max_wait_s": 0.1}) as running:
        first = asyncio.ensure_future(running.generate())
        await until(lambda: running.app.requests == 1, "a request runs")
        answer = await post(running, *WAYS["ollama"])
        first.cancel()

    assert answer.status_code == 503
    assert "no slot" in json.loads(answer.content)["error"]
