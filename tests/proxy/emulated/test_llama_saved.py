from pathlib import Path

import httpx

from proxy.emulated import EmulatedEngine
from tests.proxy.emulated.support import client_of

TEXT = "word " * 30


async def act(client: httpx.AsyncClient, slot: int, action: str, name: str = "p.bin") -> httpx.Response:
    return await client.post(f"/slots/{slot}?action={action}", json={"filename": name})


async def test_a_prefix_moves_to_another_engine_with_as_many_slots(tmp_path: Path) -> None:
    one = EmulatedEngine(slots=2, save_path=str(tmp_path))
    other = EmulatedEngine(slots=2, save_path=str(tmp_path))
    third = EmulatedEngine(slots=3, save_path=str(tmp_path))
    async with one, other, third, client_of(one) as first, client_of(other) as second, client_of(third) as misfit:
        done = (await first.post("/completion", json={"prompt": TEXT, "n_predict": 2, "id_slot": 0})).json()
        assert (await act(first, 0, "save")).json()["n_saved"] == done["tokens_cached"]
        assert (await act(second, 1, "restore")).json()["n_restored"] == done["tokens_cached"]
        again = (await second.post("/completion", json={"prompt": TEXT, "n_predict": 2})).json()
        assert (again["id_slot"], again["timings"]["cache_n"]) == (1, done["tokens_evaluated"] - 1)
        refused = await act(misfit, 0, "restore")
        assert refused.status_code == 400
        assert "No available space" in refused.json()["error"]["message"]


async def test_a_failed_restore_clears_the_slot(tmp_path: Path) -> None:
    async with EmulatedEngine(slots=1, save_path=str(tmp_path)) as engine, client_of(engine) as client:
        await client.post("/completion", json={"prompt": TEXT, "n_predict": 2})
        (tmp_path / "bad.bin").write_text("not a slot")
        assert (await act(client, 0, "restore", "bad.bin")).status_code == 400
        assert engine.engines[0].slots[0].tokens == []


async def test_a_busy_slot_is_waited_for(tmp_path: Path) -> None:
    async with EmulatedEngine(slots=1, speed=20, save_path=str(tmp_path)) as engine, client_of(engine) as client:
        body = {"prompt": TEXT, "n_predict": 40, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/completion", json=body) as stream:
            saved = await act(client, 0, "save")
            assert not engine.busy_slots
            await stream.aread()
        assert saved.json()["n_saved"] > 40


async def test_off_it_says_so() -> None:
    async with EmulatedEngine() as engine, client_of(engine) as client:
        answer = await act(client, 0, "save")
        assert answer.status_code == 501
        assert "--slot-save-path" in answer.json()["error"]["message"]
