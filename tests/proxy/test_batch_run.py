"""Embedding and rerank batches, over real sockets: whole for the client, in pieces for engines."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy import batch_run
from proxy.batch_run import Held
from proxy.dialects import ClientError
from proxy.emulated import EmulatedEngine, EmulatedModel, llama_vectors
from proxy.emulated.faults import Kind
from proxy.emulated.llama_heads import send_json
from scheduler.events import BackendSignalled, LoadWanted
from scheduler.health import Signal
from scheduler.names import canonical
from tests.proxy.box import MODEL, Box, box, emulated
from tests.wait import until

EMBEDS = EmulatedModel(MODEL, capabilities=("embedding",))
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
    engines = [emulated("ollama", models=[EMBEDS]), emulated("ollama", models=[EMBEDS])]
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


async def test_a_piece_that_never_begins_keeps_no_seat(tmp_path: Path) -> None:
    """The second ticket is refused at once, before the first piece's task has had a turn."""
    async with box(tmp_path, [engine(slots=2)], limits={"max_wait_s": 1e-9}) as running:
        for _ in range(3):
            answer = await post(running, *WAYS["openai"], texts=list("abcde"))
            assert answer.status_code == 503
        await running.idle()
        assert (await running.generate()).status_code == 200


@pytest.mark.parametrize(("top", "left"), [(-4294967295, 1), (4294967298, 2), (0, 0)])
async def test_the_best_results_as_many_as_llama_server_reads(tmp_path: Path, top: int, left: int) -> None:
    body = {"model": MODEL, "query": "number 7", "documents": TEXTS, "top_n": top}
    async with box(tmp_path, [engine(), engine()]) as running:
        answer = await running.client.post("/v1/rerank", json=body)
        await running.idle()
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == left


async def test_a_negative_number_of_results_gets_the_engines_own_words(tmp_path: Path) -> None:
    engines = [engine(), engine()]
    async with box(tmp_path, engines) as running:
        body = {"model": MODEL, "query": "q", "documents": TEXTS, "top_n": -1}
        answer = await running.client.post("/v1/rerank", json=body)
        await running.idle()
        assert [running.health(number) for number in (0, 1)] == ["ready", "ready"]
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": 500, "message": "vector::_M_default_append", "type": "server_error"}}


async def test_an_answer_to_something_else_is_no_failure_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_vectors, "send_json", lambda exchange, value: send_json(exchange, value[:-1]))
    engines = [engine(), engine()]
    async with box(tmp_path, engines) as running:
        answer = await post(running, *WAYS["llama.cpp"], texts=["a", "b"])
        [ended] = await running.ended(1)
        await running.idle()

        assert answer.status_code == 502
        assert "1 entries" in answer.json()["error"]["message"]
        assert (ended.status, ended.outcome) == (502, "rejected")
        assert sum(seen.path == "/embedding" for one in engines for seen in one.requests) == 1, "it is not repeated"
        assert [running.health(number) for number in (0, 1)] == ["ready", "ready"]


async def test_a_batch_that_is_large_beside_its_inputs(tmp_path: Path) -> None:
    async with box(tmp_path, [engine()]) as running:
        body = {"model": MODEL, "query": "q" * 300_000, "documents": TEXTS}
        answer = await running.client.post("/v1/rerank", json=body)
        body = {"model": MODEL, "content": ["q" * 300_000], "input": TEXTS}
        ignored = await running.client.post("/v1/embeddings", json=body)
        await running.idle()

        assert answer.status_code == 413
        assert "one by one" in answer.json()["error"]["message"]
        assert ignored.status_code == 200
        pieces = [seen for seen in running.engines[0].requests if seen.path == "/v1/embeddings"]
        assert max(len(piece.body) for piece in pieces) < 1000


async def test_the_model_is_unloaded_after_the_batch_and_not_after_each_piece(tmp_path: Path) -> None:
    engines = [emulated("ollama", models=[EMBEDS]), emulated("ollama", models=[EMBEDS])]
    async with box(tmp_path, engines, residency={"clients_may_unload": True}) as running:
        for name in ("gpu0", "gpu1"):
            running.app.feed(LoadWanted(canonical(MODEL), name))
        await until(lambda: all(view.residencies for view in running.app.views()), "both have it loaded")
        body = {"model": MODEL, "input": TEXTS, "keep_alive": 0}
        assert (await running.client.post("/api/embed", json=body)).status_code == 200

        def unloaded(one: EmulatedEngine) -> bool:
            return [seen.fields for seen in one.requests if seen.path == "/api/generate"] == [
                {"model": MODEL, "keep_alive": 0}
            ]

        await until(lambda: all(unloaded(one) for one in engines), "both are told to unload, once")
        asked = [seen.fields for one in engines for seen in one.requests if seen.path == "/api/embed"]
        pieces = [fields for fields in asked if fields["input"]]  # without those that only load the model
        assert len(pieces) == len(TEXTS)
        assert not any("keep_alive" in piece for piece in pieces)


async def test_a_ticket_with_nothing_left_to_place_leaves_the_line(tmp_path: Path) -> None:
    engines = [engine(slots=1), engine(slots=3, speed=0.05)]
    async with box(tmp_path, engines) as running:
        await running.app.drain("gpu1", drain=True)
        engines[0].faults.add(Kind.RESET, extra_s=0.3)
        asked = asyncio.ensure_future(post(running, *WAYS["openai"], texts=list("abc")))
        await until(lambda: engines[0].open_requests > 0 and running.app.requests == 2, "a runs, b and c wait")
        await running.app.drain("gpu0", drain=True)
        await until(lambda: running.app.seats_taken == 0, "a has failed")
        assert running.app.requests == 2, "it waits too"
        await running.app.drain("gpu1", drain=False)

        await until(lambda: any(seen.fields.get("input") == list("abc") for seen in engines[1].requests), "all run")
        assert running.app.requests == 1, "none waits"
        asked.cancel()
        await until(lambda: running.app.requests == 0, "no request is open")


async def test_a_piece_whose_inputs_others_have_taken_waits_no_longer(tmp_path: Path) -> None:
    engines = [engine(slots=1), engine(slots=1, speed=0.02)]
    async with box(tmp_path, engines) as running:
        await running.app.drain("gpu0", drain=True)
        other = asyncio.ensure_future(running.generate(options={"num_predict": 1000}))
        await until(lambda: engines[1].open_requests > 0, "gpu1 is busy for long")
        await running.app.drain("gpu0", drain=False)
        engines[0].faults.add(Kind.RESET, times=1)
        answer = await post(running, *WAYS["openai"], texts=["a", "b"])

        assert answer.status_code == 200, "what failed at gpu0 would rather run at gpu1; the next pieces took it"
        assert answer.headers["X-Slotgate-Backend"] == "gpu0"
        assert not other.done()
        assert running.app.requests == 1
        other.cancel()


async def test_pieces_that_were_not_sent_do_not_go_to_a_backend_that_is_drained(tmp_path: Path) -> None:
    engines = [engine(slots=1, speed=0.5), engine(slots=1, speed=0.5)]
    async with box(tmp_path, engines, policy={"set": {"down_wait_s": 0.1}}) as running:
        asked = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: all(one.open_requests for one in engines), "pieces run at both")
        await running.app.drain("gpu0", drain=True)
        await until(lambda: not engines[0].open_requests, "what it had is finished")
        sent = sum(seen.path == "/v1/embeddings" for seen in engines[0].requests)
        assert (await asked).status_code == 200
        assert sum(seen.path == "/v1/embeddings" for seen in engines[0].requests) == sent < len(TEXTS) / 2

        asked = asyncio.ensure_future(post(running, *WAYS["ollama"]))
        await until(lambda: engines[1].open_requests, "a piece runs")
        await running.app.drain("gpu1", drain=True)
        answer = await asked
        assert answer.status_code == 503
        assert "gpu1 is draining" in answer.json()["error"]
        await running.idle()


async def test_what_batches_hold_together_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with box(tmp_path, [engine()]) as running:
        size = len((await post(running, *WAYS["llama.cpp"])).content)
        monkeypatch.setattr(batch_run, "MAX_HELD_BYTES", size + 100)
        for _ in range(3):
            assert (await post(running, *WAYS["llama.cpp"])).status_code == 200
            answer = await post(running, *WAYS["llama.cpp"], texts=TEXTS * 2)
            assert answer.status_code == 503
            assert "try again later" in answer.json()["error"]["message"]
        await running.idle()
        assert running.health() == "ready"


def test_held_bytes() -> None:
    held = Held()
    held.take(batch_run.MAX_HELD_BYTES)
    with pytest.raises(ClientError) as caught:
        held.take(1)
    assert caught.value.status == 503
    held.give_back(1)
    held.take(1)
