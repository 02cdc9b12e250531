"""Changing models over the admin socket of a running proxy, as `slotgate pull` does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.admin_client import AdminClient, AdminError
from proxy.emulated.options import EmulatedModel
from tests.proxy.model_store.rig import TINY, fleet, has, ollama
from tests.wait import until


async def change(tmp_path: Path, kind: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    def ask() -> list[dict[str, Any]]:
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            return list(admin.change_models(kind, body))

    return await asyncio.to_thread(ask)


async def test_pull_tells_each_store_by_itself_and_needs_no_key(tmp_path: Path) -> None:
    engines = [ollama(), ollama(registry=[])]
    async with fleet(tmp_path, engines, model_store={"allow": "nobody"}) as running:
        told = await change(tmp_path, "pull", {"model": "tiny"})
        copied = await change(tmp_path, "copy", {"source": "tiny", "destination": "two"})
        deleted = await change(tmp_path, "delete", {"model": "two"})
        assert running.app.usable() == ["gpu0", "gpu1"]
        here = [await has(engine) for engine in engines]

    assert {each["store"] for each in told if "store" in each} == {"gpu0", "gpu1"}
    assert {"store": "gpu0", "status": "success"} in told
    assert told[-1]["error"].startswith("gpu1: pull model manifest: ")
    assert copied[-1] == deleted[-1] == {"status": "success"}
    assert here == [["smol", "tiny"], ["smol"]]


async def test_refusals(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama()]):
        with pytest.raises(AdminError, match="invalid model name"):
            await change(tmp_path, "pull", {"model": "../x"})


async def test_a_command_that_is_interrupted_ends_its_pull(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama(registry_bytes_per_s=1000.0)]) as running:
        changes = running.app._membership.model_stores.changes

        def interrupted() -> None:
            with AdminClient(tmp_path / "state" / "admin.sock") as admin:
                lines = admin.change_models("pull", {"model": "tiny"})
                next(lines)
                lines.close()  # type: ignore[attr-defined]

        await asyncio.to_thread(interrupted)
        await until(lambda: changes.running == 0, "the pull has ended")


async def test_models_that_differ_are_in_list_and_status(tmp_path: Path) -> None:
    other = EmulatedModel("tiny", size_bytes=5_000_000, weights="another")
    async with fleet(tmp_path, [ollama(models=[TINY]), ollama(models=[other])]):
        with AdminClient(tmp_path / "state" / "admin.sock") as admin:
            [model] = (await asyncio.to_thread(admin.models)).models
            warnings = (await asyncio.to_thread(admin.status)).warnings

    assert sorted(model.digests) == ["gpu0", "gpu1"]
    assert model.digest in model.digests.values()
    assert len(warnings) == 1


DOUBT = 'if gpu0, gpu1 share a directory, set store = "NAME" in their [[backends]]'


async def test_a_directory_that_may_be_shared_is_told(tmp_path: Path) -> None:
    """Emulated inside of this process, none of them is known to be an Ollama."""
    async with fleet(tmp_path, [ollama(), ollama(registry=[])]) as running:
        told = await change(tmp_path, "pull", {"model": "tiny"})
        warnings = [backend.warnings[-1] for backend in (await running.status()).backends]

    assert told[0]["note"].endswith(DOUBT)
    assert told[-1]["error"].startswith("gpu1: pull model manifest: ")
    assert [warning.endswith(DOUBT) for warning in warnings] == [True, True]


async def test_named_stores_are_in_no_doubt(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama(), ollama()], ["one", "two"]) as running:
        told = await change(tmp_path, "pull", {"model": "tiny"})
        warnings = [text for backend in (await running.status()).backends for text in backend.warnings]

    assert not any("note" in each for each in told)
    assert not any("share a directory" in text for text in warnings)


async def test_deleting_a_loaded_model_says_that_it_is_still_there(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama()]) as running:
        await running.client.post("/api/generate", json={"model": "smol", "prompt": "x", "stream": False})
        await until(lambda: running.app._membership.model_stores.models.loaded_on("smol") != [], "it is seen loaded")
        told = await change(tmp_path, "delete", {"model": "smol"})

    assert [each["note"] for each in told if "note" in each] == [
        "smol is still loaded on gpu0, until its time is over: an Ollama unloads nothing that it does not have on disk"
    ]
    assert told[-1] == {"status": "success"}
