"""Asking the llama-servers of an Ollama: real processes, found and asked as in production."""

import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from proxy.backends.ollama_children import Child, Finder, Found
from proxy.backends.probes.ollama_slots import FIND_AGAIN_S, Loaded, OllamaSlots, runner_of
from proxy.backends.processes import ProcessTable
from proxy.endpoint import parse_endpoint
from scheduler.domain import Residency
from scheduler.runner import Runner
from tests.proxy.backends.played_ollama import OTHER, SMOL, PlayedOllama
from tests.wait import until

SMOL_LOADED = Loaded(Residency("smol:latest", 4096, weights=SMOL))
OTHER_LOADED = Loaded(Residency("other:latest", 1024, weights=OTHER))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Counting(Finder):
    """Counts how often the process table is read."""

    def __init__(self, ollama: PlayedOllama) -> None:
        super().__init__(parse_endpoint(ollama.url))
        self.finds = 0
        self.threads: set[threading.Thread] = set()

    def find(self) -> Found:
        self.finds += 1
        self.threads.add(threading.current_thread())
        return super().find()

    def holds(self, found: Found) -> bool:
        self.threads.add(threading.current_thread())
        return super().holds(found)


class Scene:
    def __init__(self, ollama: PlayedOllama) -> None:
        self.ollama = ollama
        self.clock = Clock()
        self.finder = Counting(ollama)
        self.slots = OllamaSlots(self.finder, timeout_s=0.5, clock=self.clock)

    def pass_time(self, by_s: float = 2.5) -> None:
        self.clock.now_s += by_s


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with PlayedOllama(tmp_path) as ollama:
        made = Scene(ollama)
        yield made
        await made.slots.close()


async def test_nothing_is_loaded(scene: Scene) -> None:
    assert scene.slots.why
    occupancy = await scene.slots.read([])
    assert (occupancy.busy_slots, occupancy.deferred, occupancy.working) == (0, None, False)
    assert scene.slots.why == ""


async def test_busy_slots_are_summed_and_each_model_has_its_own(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    other = await scene.ollama.load("other:latest", OTHER, 1024, parallel=1)
    await smol.be(busy=[1])
    await other.be(busy=[0])
    occupancy = await scene.slots.read([SMOL_LOADED, OTHER_LOADED])
    assert (occupancy.busy_slots, occupancy.working) == (2, True)
    one, two = occupancy.residencies
    assert [(slot.id, slot.busy, slot.context_tokens, slot.cached_tokens) for slot in one.slots] == [
        (0, False, 4096, 100),
        (1, True, 4096, 101),
    ]
    assert [(slot.busy, slot.context_tokens) for slot in two.slots] == [(True, 1024)]
    assert (one.runner, one.weights) == (Runner(), SMOL)
    before = occupancy.progress
    await smol.be(decoded=3)
    scene.pass_time()
    assert (await scene.slots.read([SMOL_LOADED, OTHER_LOADED])).progress != before


async def test_metrics_are_read_where_they_are_on(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path, LLAMA_ARG_ENDPOINT_METRICS="1") as ollama:
        scene = Scene(ollama)
        await ollama.load("smol:latest", SMOL)
        assert (await scene.slots.read([SMOL_LOADED])).deferred == 1
        await scene.slots.close()


async def test_none_is_asked_again_too_soon(scene: Scene) -> None:
    """Whoever wants to look: a llama-server that is asked more often notices no departure."""
    smol = await scene.ollama.load("smol:latest", SMOL)
    assert (await scene.slots.read([SMOL_LOADED])).busy_slots == 0
    scene.pass_time(2.4)
    occupancy = await scene.slots.read([SMOL_LOADED])
    assert occupancy.busy_slots is None  # and not what it was some time ago
    assert [slot.busy for slot in occupancy.residencies[0].slots] == [True, True]
    assert len(await smol.asked("/slots")) == len(await smol.asked("/metrics")) == 1
    scene.pass_time(0.1)
    assert (await scene.slots.read([SMOL_LOADED])).busy_slots == 0
    assert len(await smol.asked("/slots")) == 2
    assert len(await smol.asked("/metrics")) == 1  # it said that it has none


async def test_a_sleeping_one_is_left_asleep(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    await smol.be(sleeping=True)
    occupancy = await scene.slots.read([SMOL_LOADED])
    assert (occupancy.busy_slots, occupancy.working) == (0, False)
    assert [slot.busy for slot in occupancy.residencies[0].slots] == [False, False]
    assert (await smol.asked("/slots"), await smol.asked("/metrics")) == ([], [])


async def test_one_that_does_not_answer_in_time_is_busy(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    await scene.ollama.load("other:latest", OTHER, 1024, parallel=1)
    await smol.be(delay_s=5)
    occupancy = await scene.slots.read([SMOL_LOADED, OTHER_LOADED])
    assert (occupancy.busy_slots, occupancy.working, occupancy.progress) == (None, True, "")
    assert [slot.busy for slot in occupancy.residencies[0].slots] == [True, True]
    assert [slot.busy for slot in occupancy.residencies[1].slots] == [False]
    assert scene.slots.why == ""


async def test_one_that_still_loads_runs_nothing(scene: Scene) -> None:
    """Ollama lists it only once it has loaded."""
    await scene.ollama.load("smol:latest", SMOL)
    other = await scene.ollama.load("other:latest", OTHER, 1024)
    await other.be(loading=True)
    occupancy = await scene.slots.read([SMOL_LOADED])
    assert (occupancy.busy_slots, len(occupancy.residencies)) == (0, 1)


async def test_one_that_ends_its_work_before_it_goes_still_counts(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    await smol.be(busy=[0])
    assert (await scene.slots.read([])).busy_slots == 1


async def test_the_process_table_is_read_when_it_can_have_changed(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    for _ in range(3):
        await scene.slots.read([SMOL_LOADED])
        scene.pass_time()
    await scene.slots.find()
    assert scene.finder.finds == 1
    os.kill(smol.pid, signal.SIGKILL)  # Ollama does not know it yet
    await until(lambda: ProcessTable().process(smol.pid) is None, "it is dead")
    occupancy = await scene.slots.read([SMOL_LOADED])
    assert (occupancy.busy_slots, occupancy.residencies[0].slots, scene.finder.finds) == (0, (), 2)
    await scene.ollama.unload("smol:latest")
    await scene.ollama.load("smol:latest", SMOL, 2048)
    loaded = Loaded(msgspec.structs.replace(SMOL_LOADED.residency, context_tokens=2048))
    assert (await scene.slots.read([loaded])).busy_slots == 0
    finds = scene.finder.finds
    scene.pass_time(FIND_AGAIN_S)
    await scene.slots.find()
    assert scene.finder.finds == finds + 1


async def test_another_process_at_the_port_is_not_believed(scene: Scene, tmp_path: Path) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    other = await scene.ollama.load("other:latest", OTHER)
    child = next(child for child in scene.finder.find().children if child.pid == smol.pid)
    stale = msgspec.structs.replace(child, port=other.port)
    slots = OllamaSlots(scene.finder, clock=scene.clock)
    await slots._follow([stale])
    [asked] = slots._asked.values()
    told = await slots._ask(asked)
    assert (told.look, told.serves, asked.gone) == (None, False, True)
    await slots.close()


async def test_a_model_without_a_llama_server_is_told_after_some_looks(scene: Scene) -> None:
    """An Ollama of before 0.30, or another format: only the leases are left."""
    await scene.ollama.load("smol:latest", SMOL)
    for _ in range(2):
        occupancy = await scene.slots.read([SMOL_LOADED, OTHER_LOADED])
        assert (occupancy.busy_slots, scene.slots.why) == (None, "")  # it may be a moment between two loads
        scene.pass_time()
    occupancy = await scene.slots.read([SMOL_LOADED, OTHER_LOADED])
    assert "other runs in no llama-server" in scene.slots.why
    assert occupancy.residencies[0].slots != ()
    scene.pass_time()
    assert (await scene.slots.read([SMOL_LOADED])).busy_slots == 0
    assert scene.slots.why == ""


async def test_one_that_died_runs_nothing(scene: Scene) -> None:
    """Ollama goes on listing its model until somebody asks for it: what was abandoned there is free all the same."""
    smol = await scene.ollama.load("smol:latest", SMOL)
    await smol.be(busy=[0, 1])
    assert (await scene.slots.read([SMOL_LOADED])).busy_slots == 2
    os.kill(smol.pid, signal.SIGKILL)
    for _ in range(5):
        scene.pass_time()
        occupancy = await scene.slots.read([SMOL_LOADED])
    assert (occupancy.busy_slots, occupancy.working, scene.slots.why) == (0, False, "")


async def test_one_that_tells_no_slots(scene: Scene) -> None:
    smol = await scene.ollama.load("smol:latest", SMOL)
    await smol.be(no_slots=True)
    for _ in range(3):
        assert (await scene.slots.read([SMOL_LOADED])).busy_slots is None
        scene.pass_time()
    assert "that can be asked" in scene.slots.why


async def test_weights_that_are_not_known_are_not_guessed(scene: Scene) -> None:
    await scene.ollama.load("smol:latest", SMOL)
    occupancy = await scene.slots.read([Loaded(Residency("smol:latest", 4096))])
    assert (occupancy.busy_slots, occupancy.residencies[0].slots) == (None, ())


async def test_of_two_with_the_same_weights_the_one_with_its_context_is_meant(scene: Scene) -> None:
    """While one is replaced: it ends its work, the next is there already."""
    old = await scene.ollama.load("smol:latest", SMOL, 8192)
    await old.be(busy=[0])
    await scene.ollama.load("smol:new", SMOL, 4096)
    occupancy = await scene.slots.read([SMOL_LOADED])
    assert occupancy.busy_slots == 1
    assert [(slot.busy, slot.context_tokens) for slot in occupancy.residencies[0].slots] == [(False, 4096)] * 2


async def test_they_are_not_looked_for_elsewhere() -> None:
    slots = OllamaSlots(None)
    occupancy = await slots.read([SMOL_LOADED])
    assert (occupancy.busy_slots, occupancy.residencies, slots.why != "") == (None, (SMOL_LOADED.residency,), True)
    other_box = OllamaSlots(Finder(parse_endpoint("http://box7:11434")))
    assert (await other_box.read([SMOL_LOADED])).busy_slots is None
    assert "on another host" in other_box.why


CHILD = Child(1, 1, "/m", 1, slots=2, context_tokens=4096, batch_tokens=1024, context_shift=True)


@pytest.mark.parametrize(
    ("changes", "may_shift", "runner"),
    [
        ({}, True, Runner()),
        ({"batch_tokens": 256}, True, Runner()),  # Ollama lowers it itself where memory is short
        ({"batch_tokens": 2048}, True, Runner(num_batch=2048)),
        ({"context_tokens": 32768, "batch_tokens": 2048}, True, Runner()),
        ({"context_tokens": 1024, "batch_tokens": 1024}, True, Runner(num_batch=1024)),
        ({"gpu_layers": 20, "threads": 4}, True, Runner(num_gpu=20, num_thread=4)),
        ({"context_shift": False}, True, Runner(shift=False)),
        ({"context_shift": False}, False, Runner()),
    ],
)
def test_only_what_somebody_asked_for_is_told(changes: dict[str, object], may_shift: bool, runner: Runner) -> None:
    assert runner_of(msgspec.structs.replace(CHILD, **changes), may_shift=may_shift) == runner


async def test_reading_the_table_does_not_hold_up_the_loop(scene: Scene) -> None:
    await scene.ollama.load("smol:latest", SMOL)
    for _ in range(2):
        await scene.slots.read([SMOL_LOADED])
        scene.pass_time()
    assert scene.finder.threads
    assert threading.main_thread() not in scene.finder.threads
