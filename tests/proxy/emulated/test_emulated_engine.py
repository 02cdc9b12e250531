"""A whole emulated engine: addresses, restarts, faults of the whole, what tests can see."""

import asyncio
from pathlib import Path

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel, Kind
from tests.proxy.emulated.support import chat_body, client_of
from tests.wait import until

PATH = "/v1/chat/completions"


async def answers(engine: EmulatedEngine) -> bool:
    try:
        async with client_of(engine) as client:
            return (await client.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def test_what_it_saw_can_be_looked_at() -> None:
    async with EmulatedEngine(slots=2, speed=5) as engine, client_of(engine) as client:
        await asyncio.gather(*(client.post(PATH, json=chat_body(f"{n}", max_tokens=9)) for n in range(5)))
        await client.get("/health")
        assert (engine.max_concurrent_seen, engine.deferred_max, engine.open_requests) == (5, 3, 0)
        assert engine.connections_accepted == engine.connections_open > 0
        seen = engine.requests[0]
        assert (seen.method, seen.path, seen.status, seen.over) == ("POST", PATH, 200, True)
        assert seen.fields["max_tokens"] == 9
        assert seen.headers["content-type"] == "application/json"
        assert seen.jobs[0].decoded == 9
        assert engine.requests[-1].fields == {}
        assert (engine.requests[-1].path, len(engine.requests[-1].jobs)) == ("/health", 0)


async def test_it_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    async with EmulatedEngine(listen=f"unix:{path}") as engine:
        assert engine.url == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/health")).json() == {"status": "ok"}


async def test_loading_takes_its_time() -> None:
    async with EmulatedEngine(load_s=0.3, speed=1, api_keys=("k",)) as engine, client_of(engine) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
        await until(lambda: answers(engine), "it is ready")


async def test_killed_it_breaks_connections_and_comes_back_empty_on_its_port() -> None:
    async with EmulatedEngine(speed=1) as engine, client_of(engine) as client:
        url = engine.url
        await client.post(PATH, json=chat_body(max_tokens=2))
        asked = asyncio.ensure_future(client.post(PATH, json=chat_body(max_tokens=900)))
        await until(lambda: engine.busy_slots, "it runs")
        engine.faults.add("kill")
        with pytest.raises(httpx.HTTPError):
            await asked
        assert not await answers(engine)
        await engine.start()
        assert engine.url == url
        answer = await client.post(PATH, json=chat_body(max_tokens=2))
        assert answer.json()["timings"]["cache_n"] == 0


async def test_the_port_can_be_closed_and_opened() -> None:
    async with EmulatedEngine() as engine:
        engine.faults.add(Kind.REFUSE)
        assert not await answers(engine)
        engine.faults.clear()
        await until(lambda: answers(engine), "it listens again")
        engine.faults.add("reset-new")
        assert not await answers(engine)


@pytest.mark.parametrize(("kind", "status"), [("loading", 503), ("error", 500)])
async def test_some_requests_can_be_answered_with_an_error(kind: str, status: int) -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        engine.faults.add(kind, times=2, message="out of memory")
        found = [(await client.post(PATH, json=chat_body(max_tokens=1))).status_code for _ in range(3)]
        assert found == [status, status, 200]
        assert await answers(engine)


async def test_requests_can_be_reset_or_left_hanging() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        engine.faults.add("reset", times=1)
        with pytest.raises(httpx.ReadError):
            await client.post(PATH, json=chat_body(max_tokens=1))
        engine.faults.add("hang", times=1)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, json=chat_body(max_tokens=1), timeout=0.2)
        await until(lambda: engine.open_requests == 0, "it is given up")
        engine.faults.add("error", times=1, extra_s=0.05, path="/health")
        assert (await client.get("/health")).status_code == 500


async def test_slow_and_frozen() -> None:
    async with EmulatedEngine(speed=10) as engine, client_of(engine) as client:
        engine.faults.add("slow", factor=3.0, extra_s=0.02)
        slow = (await client.post(PATH, json=chat_body(max_tokens=4))).json()["timings"]["predicted_ms"]
        assert slow > 60
        engine.faults.clear()
        engine.faults.add("freeze")
        asked = asyncio.ensure_future(client.post(PATH, json=chat_body(max_tokens=4)))
        await until(lambda: engine.open_requests == 1, "it arrives")
        assert await answers(engine)
        assert not asked.done()
        engine.faults.clear()
        assert (await asked).status_code == 200


async def test_faults_can_be_set_over_http_only_if_allowed() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        assert (await client.get("/emulated/faults")).status_code == 404
    async with EmulatedEngine(fault_route=True) as engine, client_of(engine) as client:
        added = await client.post("/emulated/faults", json={"kind": "error", "times": 1})
        assert added.json()["faults"][0]["kind"] == "error"
        assert (await client.post(PATH, json=chat_body(max_tokens=1))).status_code == 500
        shown = (await client.get("/emulated/faults")).json()
        assert (shown["faults"][0]["befell"], shown["max_concurrent_seen"]) == (1, 1)
        wrongs: list[object] = [{"kind": "no-such"}, {"times": 1}, {"kind": "error", "colour": 1}, []]
        for wrong in wrongs:
            assert (await client.post("/emulated/faults", json=wrong)).status_code == 400
        assert (await client.request("DELETE", "/emulated/faults")).json()["faults"] == []


async def test_two_engines_with_one_seed_say_the_same() -> None:
    texts = []
    for api in ("llama-server", "llama-server", "ollama"):
        async with EmulatedEngine(api, models=[EmulatedModel("emulated")]) as engine, client_of(engine) as client:
            answer = await client.post("/v1/completions", json={"model": "emulated", "prompt": "x", "max_tokens": 5})
            texts.append(answer.json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert all(texts)


async def test_an_address_that_cannot_be_had_is_an_error() -> None:
    async with EmulatedEngine() as engine:
        other = EmulatedEngine(listen=engine.url.removeprefix("http://"))
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        await other.stop()


async def test_what_happened_to_runners_can_be_asked_for_and_is_kept_over_a_death() -> None:
    engine = EmulatedEngine("ollama", models=["a", "b"], max_loaded=1, fault_route=True)
    async with engine, client_of(engine) as client:
        for name in "ab":
            await client.post("/api/generate", json={"model": name})
        state = (await client.get("/emulated/state")).json()
        assert (state["loads"], state["evictions"], state["pending_loads"]) == (2, 1, 0)
        assert state["by_model"] == {"a:latest": {"loads": 1, "evictions": 1}, "b:latest": {"loads": 1}}
        assert [(one["name"], one["slots"], one["pid"]) for one in state["resident"]] == [("b:latest", 4, None)]
        engine.kill()
        await engine.start()
    async with EmulatedEngine("ollama") as silent, client_of(silent) as client:
        assert (await client.get("/emulated/state")).status_code == 404
    assert engine.loads.loads == 2
    assert engine.residents == []
    assert EmulatedEngine("llama-server").state()["resident"] == []


async def test_a_model_that_was_pulled_is_there_after_a_death() -> None:
    engine = EmulatedEngine("ollama", registry=["b"])
    async with engine:
        async with client_of(engine) as client:
            await client.post("/api/pull", json={"model": "b"})
        engine.kill()
        await engine.start()
        async with client_of(engine) as client:
            names = {model["name"] for model in (await client.get("/api/tags")).json()["models"]}
    assert names == {"emulated:latest", "b:latest"}
