"""One request's life, over real sockets and against engines that fail on demand."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from proxy.dialects.errors import refusal_text
from proxy.emulated.faults import Kind
from scheduler.events import BackendSignalled, LoadWanted
from scheduler.health import Signal
from scheduler.names import canonical
from tests.proxy.box import MODEL, Box, box, emulated
from tests.wait import until

STREAM = {"model": MODEL, "prompt": "Once upon a time", "options": {"num_predict": 400}}


async def test_an_answer_says_where_it_ran_and_why(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answer = await running.generate()

        assert answer.status_code == 200
        assert answer.headers["X-Slotgate-Backend"] == "gpu0"
        assert answer.headers["X-Slotgate-Decision"].startswith("gpu0=")
        assert "queue;dur=" in answer.headers["Server-Timing"]
        [ended] = await running.ended(1)
        assert (ended.id, ended.backend, ended.termination) == (answer.headers["X-Slotgate-Request"], "gpu0", "--")
        assert ended.output_tokens == 4
        await running.idle()


async def test_never_more_at_a_backend_than_its_running_limit(tmp_path: Path) -> None:
    engines = [emulated(slots=2, speed=200.0), emulated(slots=2, speed=200.0)]
    async with box(tmp_path, engines) as running:
        answers = await asyncio.gather(*(running.generate(f"story {number}") for number in range(40)))

        assert {answer.status_code for answer in answers} == {200}
        assert [engine.max_concurrent_seen <= 2 for engine in engines] == [True, True]
        assert [engine.deferred_max for engine in engines] == [0, 0]
        used = [sum(answer.headers["X-Slotgate-Backend"] == name for answer in answers) for name in ("gpu0", "gpu1")]
        assert min(used) >= 10
        await running.idle()


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.LOADING])
async def test_a_failure_before_the_first_byte_runs_elsewhere(tmp_path: Path, kind: Kind) -> None:
    engines = [emulated(), emulated()]
    async with box(tmp_path, engines) as running:
        for engine in engines:
            engine.faults.add(kind, times=1)
        answers = [await running.generate() for _ in range(6)]

        assert {answer.status_code for answer in answers} == {200}
        await running.idle()


async def test_death_in_the_middle_never_looks_finished(tmp_path: Path) -> None:
    engine = emulated()
    async with box(tmp_path, [engine]) as running:
        engine.faults.add(Kind.DIE, after_tokens=3)
        lines: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError):
            async with running.client.stream("POST", "/api/generate", json=STREAM) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)

        assert "error" in json.loads(lines[-1])
        assert not any(json.loads(line).get("done") for line in lines)
        [ended] = await running.ended(1)
        assert (ended.outcome, ended.termination) == ("truncated", "ED")
        await running.idle()


async def test_a_client_that_leaves_frees_its_slot(tmp_path: Path) -> None:
    engine = emulated(speed=1.0)
    async with box(tmp_path, [engine]) as running:
        async with running.client.stream("POST", "/api/generate", json=STREAM) as answer:
            await anext(answer.aiter_lines())

        [ended] = await running.ended(1)
        assert (ended.outcome, ended.termination, ended.status) == ("client-left", "CD", 200)
        await until(lambda: engine.open_requests == 0, "the engine's connection is closed")
        await running.idle()


async def test_a_client_that_leaves_the_line_is_forgotten(tmp_path: Path) -> None:
    engine = emulated(slots=1, speed=0.1)
    async with box(tmp_path, [engine]) as running:
        async with running.client.stream("POST", "/api/generate", json=STREAM) as first:
            lines = first.aiter_lines()
            await anext(lines)
            waiting = asyncio.ensure_future(running.generate())
            await until(lambda: running.app.requests == 2, "the second request waits")
            waiting.cancel()
            [ended] = await running.ended(1)

            assert ended.termination == "CQ"
            assert engine.max_concurrent_seen == 1


async def test_heartbeats_while_a_stream_waits(tmp_path: Path) -> None:
    engine = emulated(slots=1, speed=0.1)
    limits = {"heartbeat_after_s": 0.05, "heartbeat_every_s": 0.05}
    async with box(tmp_path, [engine], limits=limits) as running:
        async with running.client.stream("POST", "/api/generate", json=STREAM) as first:
            lines = first.aiter_lines()
            await anext(lines)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2}}
            async with running.client.stream("POST", "/api/chat", json=body) as second:
                records = second.aiter_lines()
                beats = [json.loads(await anext(records)) for _ in range(3)]
                await lines.aclose()  # type: ignore[attr-defined]  # an async generator: closing it leaves
                await first.aclose()
                rest = [json.loads(line) async for line in records]

        assert second.status_code == 200
        assert all(beat["message"]["content"] == "" and not beat["done"] for beat in beats)
        assert rest[-1]["done"] is True


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/api/generate", {"model": "nope", "prompt": "x"}, {"error": "model 'nope' not found"}),
        (
            "/v1/chat/completions",
            {"model": "nope", "messages": []},
            {
                "error": {
                    "message": "model 'nope' not found",
                    "type": "not_found_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
    ],
)
async def test_an_unknown_model(tmp_path: Path, path: str, body: dict[str, object], shape: object) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answer = await running.client.post(path, json=body)

        assert answer.status_code == 404
        assert answer.json() == shape


async def test_a_full_line_refuses_with_retry_after(tmp_path: Path) -> None:
    engine = emulated(slots=1, speed=0.1)
    async with box(tmp_path, [engine], limits={"max_waiting": 0}) as running:
        async with running.client.stream("POST", "/api/generate", json=STREAM) as first:
            lines = first.aiter_lines()
            await anext(lines)
            refused = await running.generate()

    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1


async def test_waiting_too_long(tmp_path: Path) -> None:
    engine = emulated(slots=1, speed=0.1)
    async with box(tmp_path, [engine], limits={"max_wait_s": 0.1}) as running:
        async with running.client.stream("POST", "/api/generate", json=STREAM) as first:
            lines = first.aiter_lines()
            await anext(lines)
            refused = await running.generate()

            assert refused.status_code == 503
            assert engine.max_concurrent_seen == 1


async def test_stopping_lets_what_runs_finish(tmp_path: Path) -> None:
    engine = emulated(speed=20.0)
    async with box(tmp_path, [engine]) as running:
        body = {"model": MODEL, "prompt": "x", "options": {"num_predict": 50}}
        async with running.client.stream("POST", "/api/generate", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            running.app.stop()
            rest = [json.loads(line) async for line in lines]

    assert rest[-1]["done"] is True


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":"no"}', "no"),
        (b'{"error":{"message":"no","type":"x"}}', "no"),
        (b"gateway", "gateway"),
        (b"", "the engine refused the request"),
        (b"[1]", "[1]"),
    ],
)
def test_what_an_engine_said(body: bytes, text: str) -> None:
    assert refusal_text(body) == text


async def test_unloading_means_every_copy(tmp_path: Path) -> None:
    engines = [emulated("ollama"), emulated("ollama")]
    async with box(tmp_path, engines, residency={"clients_may_unload": True}) as running:
        for name in ("gpu0", "gpu1"):
            running.app.feed(LoadWanted(canonical(MODEL), name))
        await until(lambda: _loaded(running) == 2, "both have the model loaded", 15)
        answer = await running.client.post("/api/generate", json={"model": MODEL, "keep_alive": 0})
        await until(lambda: _loaded(running) == 0, "neither has", 15)

    assert answer.json()["done_reason"] == "unload"


async def test_only_some_clients_may_unload(tmp_path: Path) -> None:
    engine = emulated("ollama")
    tenancy = {"keys": {"sk-root": {"name": "root", "admin": True}}}
    async with box(tmp_path, [engine], tenancy=tenancy) as running:
        assert (await running.generate()).status_code == 200
        unload = {"model": MODEL, "keep_alive": 0}
        refused = await running.client.post("/api/generate", json=unload)
        kept = await running.generate("another story", keep_alive="0s")
        assert (refused.status_code, kept.status_code) == (403, 200)
        assert "`slotgate unload smol`" in refused.json()["error"]
        assert [seen.fields.get("keep_alive") for seen in engine.requests] == [None] * len(engine.requests)
        assert len(engine.residents) == 1

        admin = {"Authorization": "Bearer sk-root"}
        done = await running.client.post("/api/generate", json=unload, headers=admin)
        assert done.json()["done_reason"] == "unload"
        await until(lambda: not engine.residents, "it is unloaded")


async def test_a_prompt_that_may_not_fit_is_told(tmp_path: Path) -> None:
    engine = emulated("ollama", context=256)
    async with box(tmp_path, [engine]) as running:
        fits = await running.generate("Once upon a time")
        await until(lambda: running.app.views()[0].residencies[0].context_tokens, "a look has seen its context")
        story = "Once upon a time there was a story that went on. " * 60
        answer = await running.generate(story, options={"num_predict": 40})

        assert "X-Slotgate-Context" not in fits.headers
        assert answer.status_code == 200
        assert answer.headers["X-Slotgate-Context"].startswith("prompt about ")
        assert answer.headers["X-Slotgate-Context"].endswith(" tokens, answer up to 40, context 256")
        ended = (await running.ended(2))[-1]
        assert ended.context == answer.headers["X-Slotgate-Context"]
        [backend] = (await running.status()).backends
        assert backend.context_exceeded == 1


def _loaded(running: Box) -> int:
    return sum(len(view.residencies) for view in running.app.views())


async def test_requests_at_a_backend_that_went_down_run_elsewhere(tmp_path: Path) -> None:
    engines = [emulated(), emulated()]
    async with box(tmp_path, engines) as running:
        engines[0].faults.add(Kind.HANG)
        asked = [asyncio.ensure_future(running.generate(f"story {number}")) for number in range(3)]
        await until(lambda: engines[0].open_requests > 0, "a request hangs")
        for _ in range(3):
            running.app.feed(BackendSignalled("gpu0", Signal.MISSED))
        answers = await asyncio.gather(*asked)

    assert [(answer.status_code, answer.headers["X-Slotgate-Backend"]) for answer in answers] == [(200, "gpu1")] * 3
