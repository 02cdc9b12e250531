"""Real child processes: what they answer, what becomes of them when they or their parent die."""

import asyncio
import os
import signal
from pathlib import Path

import httpx

from proxy.emulated import EmulatedEngine
from proxy.emulated.ollama_loaded import Loaded
from tests.proxy.emulated.support import chat_body, client_of, is_alive
from tests.wait import until


def child_of(loaded: Loaded) -> tuple[int, str]:
    """Its process id and its URL."""
    assert loaded.child is not None
    return loaded.child.pid, f"http://127.0.0.1:{loaded.child.port}"


async def test_each_runner_has_a_child_of_its_own_that_goes_with_it() -> None:
    engine = EmulatedEngine("ollama", models=["a", "b"], children=True, slots=2)
    async with engine, client_of(engine) as client:
        for name in "ab":
            await client.post("/api/generate", json={"model": name, "keep_alive": -1})
        first, second = (child_of(loaded) for loaded in engine.residents)
        assert (Path(f"/proc/{first[0]}/status").read_text().partition("PPid:")[2].split()[0]) == str(os.getpid())
        async with httpx.AsyncClient() as direct:
            for _, url in (first, second):
                assert [slot["n_ctx"] for slot in (await direct.get(f"{url}/slots")).json()] == [4096, 4096]
                assert (await direct.get(f"{url}/health")).json() == {"status": "ok"}
                assert (await direct.get(f"{url}/nothing")).status_code == 404
            await client.post("/api/generate", json={"model": "a", "keep_alive": 0})
            await until(lambda: not is_alive(first[0]), "the child is gone")
            assert is_alive(second[0])
    assert not is_alive(second[0])


async def test_its_slots_are_live_and_it_serves_many_at_once() -> None:
    async with EmulatedEngine("ollama", children=True, slots=1, speed=1) as engine, client_of(engine) as client:
        running = [
            asyncio.ensure_future(client.post("/api/chat", json=chat_body(str(n), options={"num_predict": 3000})))
            for n in range(2)
        ]
        await until(lambda: engine.busy_slots and engine.waiting, "one runs, one waits")
        _, url = child_of(engine.residents[0])
        async with httpx.AsyncClient() as direct:
            answers = await asyncio.gather(*(direct.get(f"{url}/slots") for _ in range(20)))
            assert all([slot["is_processing"] for slot in answer.json()] == [True] for answer in answers)
        for request in running:
            request.cancel()


async def test_while_it_loads_it_is_there_and_not_ready() -> None:
    engine = EmulatedEngine("ollama", children=True, load_s=30, speed=1)
    async with engine, client_of(engine) as client, httpx.AsyncClient() as direct:
        loading = asyncio.ensure_future(client.post("/api/generate", json={"model": "emulated"}))
        await until(lambda: engine.children, "it is started")
        child = engine.children[0]
        answer = await direct.get(f"http://127.0.0.1:{child.port}/health")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "Loading model")
        loading.cancel()
        await until(lambda: not is_alive(child.pid), "the load is given up")


async def test_a_child_that_dies_idle_is_replaced_by_the_next_request() -> None:
    async with EmulatedEngine("ollama", children=True) as engine, client_of(engine) as client:
        await client.post("/api/generate", json={"model": "emulated"})
        pid, _ = child_of(engine.residents[0])
        os.kill(pid, signal.SIGKILL)
        await until(lambda: engine.loads.child_deaths, "it is noticed")
        assert len((await client.get("/api/ps")).json()["models"]) == 1
        assert (await client.post("/api/chat", json=chat_body(stream=False))).status_code == 200
        assert child_of(engine.residents[0])[0] != pid
        assert (engine.loads.loads, engine.loads.reloads) == (2, 0)


async def test_a_child_that_stands_still_stops_nobody_else() -> None:
    async with EmulatedEngine("ollama", children=True) as engine, client_of(engine) as client:
        await client.post("/api/generate", json={"model": "emulated"})
        pid, url = child_of(engine.residents[0])
        os.kill(pid, signal.SIGSTOP)
        async with httpx.AsyncClient() as direct:
            asked = asyncio.ensure_future(direct.get(f"{url}/slots"))
            assert (await client.get("/api/ps")).status_code == 200
            assert not asked.done()
            os.kill(pid, signal.SIGCONT)
            assert (await asked).status_code == 200


async def test_a_killed_engine_leaves_its_children_which_tell_idle_slots() -> None:
    async with EmulatedEngine("ollama", children=True, slots=2, speed=1) as engine:
        async with client_of(engine) as client:
            running = asyncio.ensure_future(client.post("/api/chat", json=chat_body(options={"num_predict": 3000})))
            await until(lambda: engine.busy_slots, "it runs")
            pid, url = child_of(engine.residents[0])
            engine.kill()
            await asyncio.gather(running, return_exceptions=True)
        async with httpx.AsyncClient() as direct:
            slots = (await direct.get(f"{url}/slots")).json()
            assert [slot["is_processing"] for slot in slots] == [False, False]
            assert (await direct.get(f"{url}/nothing")).status_code == 404
        await engine.start()
        async with client_of(engine) as client:
            await client.post("/api/generate", json={"model": "emulated"})
            assert child_of(engine.residents[0])[0] != pid
        assert is_alive(pid)
    assert not is_alive(pid)
