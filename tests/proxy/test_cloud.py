"""Models that run at ollama.com: one Ollama passes them on, whatever it has, and what it says passes untouched."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cloud import stubs
from proxy.dialects.facts import ModelFacts
from tests.contract.ollama_stand_in import OllamaStandIn, listing
from tests.contract.wire_client import send
from tests.proxy.box import Box, box, emulated

SIGN_IN = b'{"error":"unauthorized","signin_url":"https://ollama.com/connect?name=box&key=abc"}'
ANSWER = b'{"model":"gpt-oss:120b","message":{"role":"assistant","content":"hi"},"done":true}'
CLOUD = {"gpt-oss:120b-cloud": (200, ANSWER), "kimi:cloud": (401, SIGN_IN), "qwen:cloud": (503, b'{"error":"full"}')}
STUB: dict[str, Any] = {
    "name": "deep:latest", "model": "deep:latest", "remote_model": "deep", "remote_host": "https://ollama.com:443",
    "modified_at": "2026-11-29T19:12:43Z", "size": 300, "digest": "d" * 64,
    "details": {"format": "", "family": "", "families": None, "parameter_size": "", "quantization_level": ""},
    "capabilities": ["completion"],
}  # fmt: skip


def ollamas(count: int = 2) -> list[OllamaStandIn]:
    return [OllamaStandIn(listing("smol"), cloud=CLOUD) for _ in range(count)]


async def chat(running: Box, model: str, **more: Any) -> tuple[int, bytes]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], "stream": False} | more).encode()
    got = await send(running.address, "POST", "/api/chat", [("Content-Type", "application/json")], body)
    return got.status, got.body


def cloud_backend(running: Box) -> list[str]:
    return [view.backend.id for view in running.app.views() if view.backend.cloud]


async def test_they_go_to_the_first_ollama_of_the_configuration(tmp_path: Path) -> None:
    engines: Any = [emulated(), *ollamas()]
    async with box(tmp_path, engines) as running:
        assert cloud_backend(running) == ["gpu1"]
        answers = [await chat(running, "GPT-OSS:120b-cloud") for _ in range(1)]
        answers += [await chat(running, "gpt-oss:120b-cloud") for _ in range(3)]
        taken = running.app.seats_taken

    assert answers[1:] == [(200, ANSWER)] * 3
    assert taken == 0
    assert len(engines[1].got("/api/chat")) == 4
    assert not engines[2].got("/api/chat")
    assert not any("cloud" in asked.body.decode() for asked in engines[1].asked if asked.path == "/api/generate")


async def test_what_ollama_com_refuses_passes_and_is_no_fault_of_the_backend(tmp_path: Path) -> None:
    engines: Any = ollamas(1)
    async with box(tmp_path, engines) as running:
        refused = [await chat(running, name) for name in ("kimi:cloud", "qwen:cloud")]
        health = running.health()
        shown = await running.client.post("/api/show", json={"model": "kimi:cloud"})

    assert refused == [(401, SIGN_IN), (503, b'{"error":"full"}')]
    assert health == "ready"
    assert (shown.status_code, shown.content) == (401, SIGN_IN)
    assert len(engines[0].got("/api/chat")) == 2


async def test_they_need_no_free_slot(tmp_path: Path) -> None:
    engines: Any = [OllamaStandIn([*listing("smol"), STUB], cloud=CLOUD | {"deep": (200, ANSWER)})]
    async with box(tmp_path, engines, limits={"max_wait_s": 1}) as running:
        entry = (await running.client.get("/api/tags")).json()["models"]
        stub = await chat(running, "deep", keep_alive="5m")
        local = await chat(running, "deep:local")

    assert any(model.get("remote_host") for model in entry)
    assert stub == (200, ANSWER)
    assert local[0] != 200


async def test_one_can_be_configured(tmp_path: Path) -> None:
    first, second = ollamas()
    async with first, second:
        backends = [{"url": first.url, "name": "a"}, {"url": second.url, "name": "b", "cloud": True}]
        async with box(tmp_path, [], ready=True, backends=backends) as running:
            assert (await chat(running, "gpt-oss:120b-cloud"))[0] == 200
            assert cloud_backend(running) == ["b"]
    assert second.got("/api/chat")
    assert not first.got("/api/chat")


async def test_without_an_ollama_there_are_none(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated(models=["own:cloud"])]) as running:
        missing = await chat(running, "gpt-oss:cloud")
        own = await chat(running, "own:cloud")
        status = (await running.client.get("/api/status")).json()
        me = await running.client.post("/api/me")

    assert missing == (404, b'{"error":"model \'gpt-oss:cloud\' not found"}')
    assert own[0] == 200
    assert status["cloud"]["disabled"] is True
    assert me.status_code == 401


async def test_a_llama_servers_model_may_have_such_a_name(tmp_path: Path) -> None:
    engines: Any = [emulated(models=["own:cloud"]), *ollamas(1)]
    async with box(tmp_path, engines) as running:
        assert (await chat(running, "own:cloud"))[0] == 200
    assert not engines[1].got("/api/chat")


@pytest.mark.parametrize("name", ["deep", "x"])
def test_stubs(name: str) -> None:
    models = [ModelFacts("Deep", listing=STUB), ModelFacts("x", listing={"name": "x"}), ModelFacts("y")]
    assert (f"{name}:latest" in stubs(models)) is (name == "deep")
