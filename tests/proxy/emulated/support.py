"""What the tests of the emulated engine share: a sink that notes, jobs, a client, lines of a stream."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson

from proxy.emulated import EmulatedEngine, EmulatedModel
from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.ollama_files import MemoryFiles
from proxy.emulated.ollama_store import Store, StoredModel
from proxy.emulated.replies import Wish, plan_reply
from proxy.emulated.text import tokenize
from scheduler.simulation.engine import EngineSettings


class Notes:
    """A sink that notes what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.text = ""
        self.problem: Problem | None = None
        self.over = asyncio.Event()

    def started(self, job: Job) -> None:
        self.events.append("started")

    def progressed(self, job: Job) -> None:
        self.events.append(f"progressed {job.evaluated}")

    def said(self, job: Job, piece: str) -> None:
        self.events.append("said")
        self.text += piece

    def finished(self, job: Job) -> None:
        self.events.append("finished")
        self.over.set()

    def failed(self, job: Job, problem: Problem) -> None:
        self.events.append("failed")
        self.problem = problem
        self.over.set()


def make_engine(
    slots: int = 2,
    context: int = 512,
    speed: float = float("inf"),
    settings: Mapping[str, Any] | None = None,
    **values: Any,
) -> SlotEngine:
    more = {"single_steps": True, "tells_steps": True, **(settings or {})}
    return SlotEngine(EngineSettings(slots=slots, context=context, **more), speed=speed, **values)


def make_job(prompt: str, tokens: int = 5, **values: Any) -> tuple[Job, Notes]:
    """A job that would go on for ever but for its limit."""
    notes = Notes()
    ids = tokenize(prompt)
    reply = plan_reply(ids, Wish(endless=True), max(tokens, 1) + 50)
    return Job(ids, reply, notes, most=tokens, **values), notes


async def ran(engine: SlotEngine, prompt: str, tokens: int = 5, **values: Any) -> Job:
    """A job that was run to its end."""
    job, notes = make_job(prompt, tokens, **values)
    engine.submit(job)
    async with asyncio.timeout(10):
        await notes.over.wait()
    assert notes.problem is None, notes.problem
    return job


def client_of(engine: EmulatedEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, timeout=20)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines() if line]


def chat_body(text: str = "Hello there", /, **more: Any) -> dict[str, Any]:
    return {"model": "emulated", "messages": [{"role": "user", "content": text}], **more}


def make_store(*models: str | EmulatedModel) -> Store:
    """A model store in memory, the first model the newest."""
    store = Store(MemoryFiles())
    for model in reversed(models):
        store.provide(model if isinstance(model, EmulatedModel) else EmulatedModel(model))
    return store


def stored(model: str | EmulatedModel) -> StoredModel:
    """One model, as a store has it."""
    return make_store(model).models()[0]


def found(store: Store, name: str) -> StoredModel:
    model = store.find(name)
    assert model is not None
    return model


def is_alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
