import asyncio

from proxy.emulated import EmulatedEngine
from tests.proxy.emulated.support import client_of


async def test_it_tells_of_itself() -> None:
    async with EmulatedEngine("ollama", models=["me/a"], cloud=True) as engine, client_of(engine) as client:
        assert (await client.get("/")).text == "Ollama is running"
        assert (await client.get("/api/version")).json() == {"version": engine.options.version}
        assert (await client.get("/api/status")).json() == {"cloud": {"disabled": False, "source": "none"}}
        (listed,) = (await client.get("/v1/models")).json()["data"]
        assert (listed["id"], listed["owned_by"]) == ("me/a:latest", "me")
        assert (await client.get("/v1/models/me/a")).status_code == 404  # gin's parameter takes no slash


async def test_ps_hangs_while_a_model_is_loaded() -> None:
    async with EmulatedEngine("ollama", load_s=0.6, ps_stall_s=0.3, speed=1) as engine, client_of(engine) as client:
        loop = asyncio.get_running_loop()
        loading = asyncio.ensure_future(client.post("/api/generate", json={"model": "emulated"}))
        while not engine.open_requests:
            await asyncio.sleep(0)
        begin = loop.time()
        assert (await client.get("/api/version")).status_code == 200
        assert (await client.get("/api/ps")).json() == {"models": []}  # what still loads is not there
        assert loop.time() - begin > 0.2
        await loading
        assert len((await client.get("/api/ps")).json()["models"]) == 1
