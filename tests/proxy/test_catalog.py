"""What slotgate answers itself, in front of both engines."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.box import MODEL, box, emulated


async def test_models_of_all_backends_once(tmp_path: Path) -> None:
    engines = [emulated(), emulated(), emulated(models=["other"])]
    async with box(tmp_path, engines) as running:
        tags = (await running.client.get("/api/tags")).json()["models"]
        models = (await running.client.get("/v1/models")).json()["data"]

    assert sorted(model["name"] for model in tags) == ["other:latest", "smol:latest"]
    assert sorted(model["id"] for model in models) == ["other:latest", "smol:latest"]


async def test_ps_shows_every_slot_of_a_model(tmp_path: Path) -> None:
    engines = [emulated(slots=2, speed=0.1), emulated(slots=1, speed=0.1)]
    async with box(tmp_path, engines) as running:
        body: dict[str, Any] = {"model": MODEL, "prompt": "x"}
        async with running.client.stream("POST", "/api/generate", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            [model] = (await running.client.get("/api/ps")).json()["models"]
            slots = (await running.client.get("/slots")).json()

    assert model["name"] == "smol:latest"
    assert {"id", "state", "backend", "cached_tokens", "context_tokens"} <= model["slots"][0].keys()
    assert sorted(slot["state"] for slot in model["slots"]) == ["busy", "idle", "idle"]
    assert [slot["is_processing"] for slot in slots].count(True) == 1


@pytest.mark.parametrize("api", ["llama-server", "ollama"])
async def test_show(tmp_path: Path, api: str) -> None:
    async with box(tmp_path, [emulated(api)]) as running:
        shown = await running.client.post("/api/show", json={"model": MODEL})
        missing = await running.client.post("/api/show", json={"model": "nope"})

    assert shown.status_code == 200
    assert {"details", "model_info", "capabilities"} <= shown.json().keys()
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'nope:latest' not found"})


async def test_small_answers(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        get = running.client.get
        root, head, version, model, health, props, tagged = await asyncio.gather(
            get("/"), running.client.head("/"), get("/api/version"), get("/v1/models/smol"), get("/health"),
            get("/props"), get("/v1/models/smol:latest"),
        )  # fmt: skip

    assert (root.text, head.status_code, head.content) == ("Ollama is running", 200, b"")
    assert version.json()["version"]
    assert model.json()["id"] == "smol"
    assert tagged.json()["id"] == "smol:latest"
    assert health.json() == {"status": "ok"}
    assert props.json()["total_slots"] == 2


async def test_llama_cpp_routes_need_a_llama_server(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated("ollama")]) as running:
        props = await running.client.get("/props")

    assert props.status_code == 501
    assert props.json()["error"]["type"] == "not_supported_error"
