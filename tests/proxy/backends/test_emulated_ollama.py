"""A managed Ollama that is emulated, hidden children included: what slotgate sees of it, and what it leaves behind."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from proxy.backends import orphans
from proxy.backends.fleet import Fleet
from proxy.backends.member import MemberStatus
from proxy.backends.ollama_children import Finder
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig
from proxy.endpoint import parse_endpoint
from scheduler.domain import Backend, Residency
from scheduler.events import BackendChanged, BackendReported, Event
from scheduler.runner import Runner
from tests.wait import until

ROOT = Path(__file__).parents[3]
CADENCE = Cadence(busy_s=0.02, idle_s=0.02, spacing_s=0.02, describe_s=1000, child_spacing_s=0.02)
MODELS = ("--model", "a", "--model", "b,num_ctx=1024", "--model", "e,capabilities=embedding")


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        program = directory / "ollama"
        options = f"--api ollama {' '.join(MODELS)} --children --faults --speed 20 --as-ollama"
        program.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} -m proxy.emulated {options} "$@"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        config = BackendConfig.model_validate(
            {
                "engine": "ollama",
                "binary": program,
                "gpus": "none",
                "slots": 2,
                "context_tokens": 2048,
                "max_loaded_models": 2,
                "first_port": 25000 + os.getpid() % 10000,
            }
        )
        self.fleet = Fleet([config], state_dir=directory / "state", emit=self.events.append, cadence=CADENCE)

    @property
    def status(self) -> MemberStatus:
        return self.fleet.status()[0]

    @property
    def backend(self) -> Backend:
        return [event.backend for event in self.events if isinstance(event, BackendChanged)][-1]

    @property
    def residencies(self) -> dict[str, Residency]:
        reports = [event.report for event in self.events if isinstance(event, BackendReported)]
        return {each.model: each for each in reports[-1].residencies} if reports else {}

    @property
    def url(self) -> str:
        return str(self.fleet.endpoint("ollama"))

    async def generate(self, model: str, prompt: str = "", **options: object) -> None:
        body = {"model": model, "prompt": prompt, "stream": False, "options": options}
        async with httpx.AsyncClient(timeout=60) as client:
            (await client.post(f"{self.url}/api/generate", json=body)).raise_for_status()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.fleet.start()
    try:
        await until(lambda: made.status.state == "ready", "it is ready", 30)
        yield made
    finally:
        await made.fleet.stop(5)


async def test_what_is_known_of_it(scene: Scene) -> None:
    await until(lambda: scene.status.busy_slots == 0, "it is looked at")
    backend = scene.backend
    assert (backend.slot_source, backend.slots, backend.max_loaded) == ("children", 2, 2)
    assert backend.contexts["a:latest"] == 2048
    assert backend.contexts["b:latest"] == 1024
    assert backend.embeds_only == {"e:latest"}
    assert all(len(weights) == 64 for weights in backend.weights.values())
    assert (scene.status.warnings, scene.status.slot_source_why) == ((), "no model is loaded")
    scene.fleet.loaded_by_default("nobody's", "a")


async def test_its_slots_are_seen_by_model(scene: Scene) -> None:
    await scene.generate("a")
    await scene.generate("b", num_ctx=512)
    await until(lambda: len(scene.residencies) == 2 and all(each.slots for each in scene.residencies.values()), "both")
    one, two = scene.residencies["a:latest"], scene.residencies["b:latest"]
    assert (one.context_tokens, two.context_tokens) == (2048, 512)
    assert [slot.context_tokens for slot in one.slots + two.slots] == [2048, 2048, 512, 512]
    assert one.weights == scene.backend.weights["a:latest"] != two.weights
    assert (one.runner, two.runner) == (Runner(), Runner())
    assert scene.status.deferred == 0  # its /metrics are on

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(scene.generate("a", f"{number} " * 200, num_predict=2000)) for number in range(2)]
        await until(lambda: scene.status.busy_slots == 2, "two requests run")
        assert [slot.busy for slot in scene.residencies["a:latest"].slots] == [True, True]
        for task in running:
            task.cancel()
    await until(lambda: scene.status.busy_slots == 0, "who left is noticed although the child is looked at")


async def test_kill_9_leaves_no_child(scene: Scene) -> None:
    await scene.generate("a")
    finder = Finder(parse_endpoint(scene.url), lambda: scene.status.pid)
    [child] = finder.find().children
    first = scene.status
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: scene.status.epoch > first.epoch, "it is started again", 30)
    assert orphans.start_ticks(child.pid) is None
    await until(lambda: scene.status.state == "ready", "it is ready again", 30)


async def test_a_killed_child_is_missed_and_its_next_one_found(scene: Scene) -> None:
    await scene.generate("a")
    await until(lambda: "a:latest" in scene.residencies and scene.status.busy_slots == 0, "it is looked at")
    [child] = Finder(parse_endpoint(scene.url), lambda: scene.status.pid).find().children
    os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(httpx.HTTPStatusError):
        await scene.generate("a", "anything", num_predict=1)
    await scene.generate("a")
    await until(lambda: scene.residencies.get("a:latest") and scene.residencies["a:latest"].slots, "the next one")
    [again] = Finder(parse_endpoint(scene.url), lambda: scene.status.pid).find().children
    assert again.pid != child.pid
    await until(lambda: scene.status.busy_slots == 0, "it is asked")
