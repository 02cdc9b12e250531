"""Ollama's hidden child: what was recorded of the real one's command line, /slots, /props and /metrics."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.contract.http_files import GOLDEN
from tests.contract.shapes import shape
from tests.wait import until

NOTES = GOLDEN / "ollama"
SMOL = EmulatedModel("smol", ("completion",), 134_515_008, 98_362_720, train_context=8192, embedding_length=576)
SECTION = re.compile(r"^GET (\S+)(?: of Ollama)?(.*)\n", re.MULTILINE)


def sections() -> list[tuple[str, str]]:
    """What was asked, and the answer with the rest of that line before it."""
    parts = SECTION.split((NOTES / "111-child-while-busy.txt").read_text())[1:]
    return [(path, f"{rest}\n{body}".strip()) for path, rest, body in zip(*[iter(parts)] * 3, strict=True)]


def value_of(answer: str) -> Any:
    """The JSON behind the first line."""
    return json.loads(answer.partition("\n")[2])


@pytest.fixture
async def engine() -> AsyncIterator[EmulatedEngine]:
    options: dict[str, Any] = {"children": True, "child_metrics": False, "speed": 5, "answer_tokens": (9000, 9000)}
    async with EmulatedEngine("ollama", models=[SMOL], slots=2, max_queue=2, max_loaded=1, **options) as made:
        yield made


def port_of(engine: EmulatedEngine) -> int:
    child = engine.residents[0].child
    assert child is not None
    return child.port


def masked(command: str) -> list[str]:
    """A command line without what differs between machines."""
    found = re.sub(r"^\S+", "PROGRAM", command.strip())
    found = re.sub(r"\S+/blobs/sha256-[0-9a-f]{64}", "BLOB", found)
    return re.sub(r"--port \d+", "--port N", found).split(" ")


async def test_the_process_table_shows_what_was_recorded(engine: EmulatedEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        await client.post("/api/generate", json={"model": "smol"})
    child = engine.residents[0].child
    assert child is not None
    path = Path(f"/proc/{child.pid}/cmdline")
    await until(lambda: b"llama-server\0--model\0" in path.read_bytes(), "it looks like llama-server")
    found = path.read_bytes().decode().removesuffix("\0").split("\0")
    assert Path(found[0]).name == Path(f"/proc/{child.pid}/comm").read_text().strip() == "llama-server"
    assert masked(" ".join(found)) == masked((NOTES / "110-child-command-line.txt").read_text().splitlines()[0])


async def test_while_it_is_busy_it_tells_what_was_recorded(engine: EmulatedEngine) -> None:
    recorded = sections()
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client, httpx.AsyncClient() as direct:
        await client.post("/api/generate", json={"model": "smol"})
        body = {"model": "smol", "messages": [{"role": "user", "content": "Tell a story."}], "stream": False}
        asked = [
            asyncio.ensure_future(client.post("/api/chat", json=body | {"options": {"num_predict": 150, "seed": seed}}))
            for seed in range(4)
        ]
        await until(lambda: (engine.busy_slots, engine.waiting) == (2, 2), "two run and two wait")
        child = f"http://127.0.0.1:{port_of(engine)}"
        await until(lambda: all(job.decoded for job in engine.engines[0].running), "both decode")
        for path, answer in recorded:
            if not answer.startswith("when all had ended"):
                url = f"{engine.url if path == '/api/ps' else child}{path}"
                assert shape((await direct.get(url)).json()) == shape(value_of(answer)), path
        slots = (await direct.get(f"{child}/slots")).json()
        assert [slot["params"]["n_keep"] for slot in slots] == [4, 4]
        assert {slot["params"]["max_tokens"] for slot in slots} == {150}
        await asyncio.gather(*asked)
        idle = (await direct.get(f"{child}/slots")).json()
    ended = next(answer for path, answer in recorded if path == "/slots" and answer.startswith("when all had ended"))
    assert shape(idle) == shape(value_of(ended))


async def test_metrics_are_off_as_shipped_and_on_when_told(engine: EmulatedEngine) -> None:
    off = next(answer for path, answer in sections() if path == "/metrics")
    async with httpx.AsyncClient(base_url=engine.url) as client:
        await client.post("/api/generate", json={"model": "smol"})
        found = await client.get(f"http://127.0.0.1:{port_of(engine)}/metrics")
    assert (found.status_code, found.json()) == (501, value_of(off))


async def test_metrics_that_are_on_have_the_recorded_names() -> None:
    async with EmulatedEngine("ollama", models=[SMOL], slots=2, children=True, child_metrics=True) as engine:
        async with httpx.AsyncClient(base_url=engine.url) as client:
            await client.post("/api/generate", json={"model": "smol"})
            found = await client.get(f"http://127.0.0.1:{port_of(engine)}/metrics")
    recorded = (NOTES / "112-child-metrics.txt").read_text().strip().splitlines()[2:]
    assert found.text.strip().splitlines() == recorded


@pytest.mark.parametrize("polled", [False, True])
async def test_a_client_that_leaves_in_prefill_is_noticed_only_while_nobody_asks_the_child(polled: bool) -> None:
    engine = EmulatedEngine("ollama", models=[SMOL], slots=1, children=True, speed=0.1, quiet_s=0.6, context=8192)
    async with engine, httpx.AsyncClient(base_url=engine.url) as client, httpx.AsyncClient() as direct:
        body = {"model": "smol", "messages": [{"role": "user", "content": "word " * 3500}]}
        asked = asyncio.ensure_future(client.post("/api/chat", json=body))
        await until(lambda: engine.busy_slots, "it runs")
        (job,) = engine.requests[-1].jobs
        asked.cancel()
        url = f"http://127.0.0.1:{port_of(engine)}/slots"

        async def over() -> bool:
            if polled:
                await direct.get(url)
            return job.over

        await until(over, "the slot is free", timeout_s=30)
        assert (job.processed == len(job.prompt)) == polled
