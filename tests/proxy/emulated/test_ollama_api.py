"""An emulated Ollama as a whole: what recordings cannot show."""

import asyncio

import httpx
import pytest

from proxy.emulated import EmulatedEngine
from tests.proxy.emulated.support import chat_body, client_of, json_lines
from tests.wait import until


async def test_requests_beyond_the_slots_wait_unseen_and_unrefused() -> None:
    engine = EmulatedEngine("ollama", slots=2, speed=5, max_queue=1)
    async with engine, client_of(engine) as client:
        await client.post("/api/generate", json={"model": "emulated"})
        body = chat_body(options={"num_predict": 20}, stream=False)
        answers = await asyncio.gather(*(client.post("/api/chat", json=body) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert (engine.max_concurrent_seen, engine.deferred_max) == (8, 6)


async def test_a_full_load_queue_is_busy() -> None:
    engine = EmulatedEngine("ollama", models=["a", "b"], load_s=0.2, speed=1, max_queue=0)
    async with engine, client_of(engine) as client:
        first = asyncio.ensure_future(client.post("/api/generate", json={"model": "a"}))
        await until(lambda: engine.open_requests == 1, "it loads")
        refused = await client.post("/api/generate", json={"model": "b"})
        assert (refused.status_code, refused.json()["error"][:11]) == (503, "server busy")
        assert (await first).json()["done_reason"] == "load"


async def test_who_leaves_while_loading_gives_up_the_load() -> None:
    engine = EmulatedEngine("ollama", load_s=5, speed=1)
    async with engine, client_of(engine) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/api/chat", json=chat_body(), timeout=0.1)
        await until(lambda: engine.open_requests == 0, "it is given up")
        assert (await client.get("/api/ps")).json() == {"models": []}


async def test_who_leaves_in_mid_stream_frees_the_slot_whole_answers_too() -> None:
    engine = EmulatedEngine("ollama", slots=1, speed=1)
    async with engine:
        for stream in (True, False):
            async with client_of(engine) as client:
                body = chat_body(stream=stream, options={"num_predict": 3000})
                asked = asyncio.ensure_future(client.post("/api/chat", json=body))
                await until(lambda: engine.busy_slots, "it runs")
                asked.cancel()
            await until(lambda: not engine.busy_slots and not engine.open_requests, "the slot is free")


async def test_a_waiting_request_whose_client_leaves_is_dropped_at_once() -> None:
    engine = EmulatedEngine("ollama", slots=1, speed=1, quiet_s=1000.0)
    async with engine, client_of(engine) as client:
        first = asyncio.ensure_future(client.post("/api/chat", json=chat_body(options={"num_predict": 3000})))
        await until(lambda: engine.busy_slots, "the first runs")
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/api/chat", json=chat_body("other"), timeout=0.1)
        await until(lambda: engine.waiting == 0, "it is dropped")
        first.cancel()


async def test_another_context_replaces_what_is_loaded() -> None:
    async with EmulatedEngine("ollama") as engine, client_of(engine) as client:
        for context in (2048, 4096):
            body = chat_body(options={"num_ctx": context, "num_predict": 1})
            await client.post("/api/chat", json=body)
            assert [model["context_length"] for model in (await client.get("/api/ps")).json()["models"]] == [context]


async def test_a_foreign_host_or_origin_is_refused() -> None:
    async with EmulatedEngine("ollama") as engine, client_of(engine) as client:
        for headers, status in (
            ({"Host": "ollama.example.com"}, 403),
            ({"Host": "box.local"}, 200),
            ({"Host": "192.168.0.7:11434"}, 200),
            ({"Host": "[::1]:11434"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "http://localhost:3000"}, 200),
        ):
            answer = await client.get("/api/tags", headers=headers)
            assert (answer.status_code, answer.content == b"") == (status, status == 403)


async def test_a_dead_child_ends_every_answer_of_its_model() -> None:
    async with EmulatedEngine("ollama", slots=2, speed=1) as engine, client_of(engine) as client:
        other = asyncio.ensure_future(client.post("/api/chat", json=chat_body("b", options={"num_predict": 500})))
        await until(lambda: engine.busy_slots, "the other runs")
        engine.faults.add("child-dies", after_tokens=3, times=1)
        answer = await client.post("/api/chat", json=chat_body(options={"num_predict": 500}))
        for one in (answer, await other):
            assert one.status_code == 200
            last = json_lines(one.text)[-1]
            assert last == {"error": "an error was encountered while running the model: unexpected EOF"}
        assert len(json_lines(answer.text)) == 4
        # Nobody has noticed: it is listed until a request finds out.
        assert len((await client.get("/api/ps")).json()["models"]) == 1
        again = await client.post("/api/chat", json=chat_body(stream=False, options={"num_predict": 2}))
        assert (again.status_code, engine.loads.child_deaths, engine.loads.loads) == (200, 1, 2)


async def test_a_context_is_taken_up_again() -> None:
    async with EmulatedEngine("ollama") as engine, client_of(engine) as client:
        body = {"model": "emulated", "prompt": "hello", "stream": False, "options": {"num_predict": 4}}
        first = (await client.post("/api/generate", json=body)).json()
        second = (await client.post("/api/generate", json=body | {"context": first["context"]})).json()
        assert second["context"][: len(first["context"])] == first["context"]
        assert second["prompt_eval_count"] > first["prompt_eval_count"]


async def test_a_failed_load_says_why_and_the_next_one_succeeds() -> None:
    async with EmulatedEngine("ollama") as engine, client_of(engine) as client:
        engine.faults.add("load-fails", times=1)
        failed = await client.post("/api/chat", json=chat_body())
        assert (failed.status_code, failed.json()["error"][:20]) == (500, "model failed to load")
        v1 = await client.post("/v1/chat/completions", json=chat_body())
        assert (v1.status_code, engine.loads.failed, engine.loads.loads) == (200, 1, 1)


async def test_clients_of_v1_and_of_ollama_share_what_is_loaded_and_others_reload_it() -> None:
    async with EmulatedEngine("ollama", context=4096) as engine, client_of(engine) as client:
        for options in ({}, {"num_ctx": 4096}, None, {"num_ctx": 2048}, None):
            path = "/api/chat" if options is not None else "/v1/chat/completions"
            body = chat_body(max_tokens=2) if options is None else chat_body(options={"num_predict": 2, **options})
            assert (await client.post(path, json=body)).status_code == 200
        assert (engine.loads.loads, engine.loads.reloads) == (3, 2)


async def test_a_copy_and_a_model_made_of_it_are_served_by_the_same_runner() -> None:
    async with EmulatedEngine("ollama", max_loaded=1) as engine, client_of(engine) as client:
        fields = {"from": "emulated", "system": "Be brief.", "parameters": {"num_ctx": 1024}}
        assert (await client.post("/api/create", json={"model": "other2", **fields})).status_code == 200
        assert (await client.post("/api/copy", json={"source": "emulated", "destination": "other"})).status_code == 200
        await client.post("/api/chat", json=chat_body() | {"model": "other2", "options": {"num_predict": 1}})
        body = chat_body() | {"model": "other", "options": {"num_predict": 1, "num_ctx": 1024}}
        assert (await client.post("/api/chat", json=body)).status_code == 200
        (listed,) = (await client.get("/api/ps")).json()["models"]
        assert (listed["name"], listed["context_length"]) == ("other2:latest", 1024)
        assert engine.loads.loads == 1


async def test_who_leaves_lets_go_of_the_model_at_once_though_its_slot_is_busy() -> None:
    engine = EmulatedEngine("ollama", slots=1, speed=1, quiet_s=1000.0, context=131_072)
    async with engine, client_of(engine) as client:
        body = chat_body("word " * 60_000, options={"num_predict": 1})
        first = asyncio.ensure_future(client.post("/api/chat", json=body))
        await until(lambda: engine.busy_slots, "it runs")
        first.cancel()
        await until(lambda: not engine.residents[0].users, "nobody uses it")
        assert engine.busy_slots == 1
        other = chat_body(options={"num_predict": 1, "num_ctx": 4096})  # the reload waits for nobody
        answer = await client.post("/api/chat", json=other)
        assert (answer.status_code, engine.loads.reloads, engine.open_requests) == (200, 1, 0)


async def test_cloud_models_need_an_account_and_no_slot() -> None:
    body = chat_body(stream=False, options={"num_predict": 2}) | {"model": "big:cloud"}
    async with EmulatedEngine("ollama") as engine, client_of(engine) as client:
        refused = await client.post("/api/chat", json=body)
        assert (refused.status_code, refused.json()["error"][:24]) == (403, "ollama cloud is disabled")
    async with EmulatedEngine("ollama", cloud=True) as engine, client_of(engine) as client:
        assert (await client.post("/api/chat", json=body)).json()["model"] == "big:cloud"
        assert (await client.get("/api/ps")).json() == {"models": []}
        assert engine.loads.loads == 0
