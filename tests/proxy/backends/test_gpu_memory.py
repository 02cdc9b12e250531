"""Sampling with a stand-in for NVML, and with the real one where there is a GPU."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.backends.gpu_memory import GpuMemorySampler, NvmlReader, Occupant, carries, used_bytes
from proxy.backends.gpus import ProcessMemory, discover
from proxy.backends.orphans import MARKER
from scheduler.events import Event, GpuReported
from scheduler.memory import GpuMemory
from tests.proxy.backends.fake_nvml import RESERVED, TOTAL, FakeNvml
from tests.wait import until, until_sync

GIB = 2**30
USABLE = TOTAL - RESERVED
ONE, TWO = Occupant("one", "GPU-aaaa", "box/one"), Occupant("two", "GPU-bbbb", "box/two")
PIDS = {"box/one": {11, 12}, "box/two": {21}}


def is_own(pid: int, marker: str) -> bool:
    return pid in PIDS[marker]


class Scene:
    """Samplers of one test, closed at its end."""

    def __init__(self) -> None:
        self.told: list[GpuReported] = []
        self.samplers: list[GpuMemorySampler] = []
        self.now_s = 0.0

    def feed(self, event: Event) -> None:
        assert isinstance(event, GpuReported)
        self.told.append(event)

    def clock(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def start(self, *occupants: Occupant, feed: Callable[[Event], None] | None = None, **extra: Any) -> "Scene":
        options: dict[str, Any] = {"clock": self.clock, "every_s": 0.0, "carries": is_own} | extra
        sampler = GpuMemorySampler(feed or self.feed, occupants, **options)
        self.samplers.append(sampler)
        sampler.start()
        return self

    async def next(self) -> dict[str, GpuMemory | None]:
        """What a sample tells that begins from now on."""
        begun_s = self.now_s + 1.0
        await until(lambda: self.told and self.told[-1].asked_at_s >= begun_s, "a new sample")
        at_s = self.told[-1].asked_at_s
        return {one.backend_id: one.memory for one in self.told if one.asked_at_s == at_s}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    for sampler in made.samplers:
        await sampler.close()


async def test_each_backend_is_told_of_its_own_card(scene: Scene) -> None:
    nvml = FakeNvml(processes={"GPU-aaaa": [(11, 5 * GIB), (12, GIB), (99, 2 * GIB)], "GPU-bbbb": [(21, 3 * GIB)]})
    scene.start(ONE, TWO, nvml=nvml)
    await until(lambda: len(scene.told) >= 4, "two samples")
    assert scene.told[:4] == [
        GpuReported("one", GpuMemory(USABLE, USABLE - 8 * GIB, 6 * GIB, 1.0), 1.0),
        GpuReported("two", GpuMemory(USABLE, USABLE - 3 * GIB, 3 * GIB, 1.0), 1.0),
        GpuReported("one", GpuMemory(USABLE, USABLE - 8 * GIB, 6 * GIB, 2.0), 2.0),
        GpuReported("two", GpuMemory(USABLE, USABLE - 3 * GIB, 3 * GIB, 2.0), 2.0),
    ]


async def test_two_backends_on_one_card_share_its_free_memory_and_nothing_else(scene: Scene) -> None:
    nvml = FakeNvml(processes={"GPU-aaaa": [(11, 5 * GIB), (21, 2 * GIB)]})
    told = await scene.start(ONE, Occupant("two", "GPU-aaaa", "box/two"), nvml=nvml).next()
    assert [(one.free_bytes, one.used_by_engine_bytes) for one in told.values() if one] == [
        (USABLE - 7 * GIB, 5 * GIB),
        (USABLE - 7 * GIB, 2 * GIB),
    ]


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (None, None),  # not supported
        ((), None),  # a container may see none
        ((ProcessMemory(99, 5),), None),  # a stranger's, or ours under another number
        ((ProcessMemory(11, None),), None),
        ((ProcessMemory(11, 5), ProcessMemory(12, None)), None),
        ((ProcessMemory(11, 0),), 0),
        ((ProcessMemory(11, 5), ProcessMemory(12, 6), ProcessMemory(99, None)), 11),
        ((ProcessMemory(11, 5), ProcessMemory(11, 6)), 11),
    ],
)
def test_what_is_not_told_is_none_not_zero(processes: tuple[ProcessMemory, ...] | None, expected: int | None) -> None:
    assert used_bytes(processes, PIDS["box/one"].__contains__) == expected


async def test_older_drivers(scene: Scene) -> None:
    nvml = FakeNvml(memory_v2=False, process_calls=(), processes={"GPU-aaaa": [(11, GIB)]})
    told = (await scene.start(ONE, nvml=nvml).next())["one"]
    assert told == GpuMemory(TOTAL, USABLE - GIB, None, scene.told[-1].asked_at_s)


async def test_a_card_that_is_lost_hides_no_other_and_is_none(scene: Scene) -> None:
    nvml = FakeNvml()
    with capture_logs() as lines:
        told = await scene.start(ONE, TWO, nvml=nvml).next()
        assert told["one"] is not None
        nvml.uuids = (None, "GPU-bbbb")
        told = await scene.next()
        assert told["one"] is None
        assert told["two"] is not None
        nvml.uuids = ("GPU-aaaa", "GPU-bbbb")
        assert (await scene.next())["one"] is not None
    assert [(line["gpu"], line["reason"]) for line in lines] == [("GPU-aaaa", "Not Found")]  # once, not every sample
    assert nvml.inits == 1  # NVML stays open


def test_nvml_is_opened_anew_after_no_card_answered() -> None:
    nvml = FakeNvml()
    reader = NvmlReader(nvml)
    assert set(reader.read(("GPU-aaaa", "GPU-bbbb"))) == {"GPU-aaaa", "GPU-bbbb"}
    nvml.open_sessions = 0  # the driver was loaded anew under it
    assert reader.read(("GPU-aaaa",)) == {}
    assert set(reader.read(("GPU-aaaa",))) == {"GPU-aaaa"}
    assert nvml.inits == 2
    reader.close()
    reader.close()
    assert nvml.open_sessions == 0


def test_a_driver_that_comes_later() -> None:
    nvml = FakeNvml(driver=False)
    reader = NvmlReader(nvml)
    with capture_logs() as lines:
        assert reader.read(("GPU-aaaa",)) == {}
        nvml.driver = True
        assert set(reader.read(("GPU-aaaa",))) == {"GPU-aaaa"}
    assert [line["reason"] for line in lines] == ["NVML Shared Library Not Found"]


def test_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with capture_logs() as lines:
        assert NvmlReader().read(("GPU-aaaa",)) == {}
    assert [line["reason"] for line in lines] == ["nvidia-ml-py is not installed"]


async def test_a_listener_that_fails_or_an_odd_answer_ends_nothing(scene: Scene) -> None:
    nvml = FakeNvml(processes={"GPU-aaaa": [(11, "much")]})  # type: ignore[list-item]
    calls: list[GpuReported] = []

    def feed(event: Event) -> None:
        assert isinstance(event, GpuReported)
        calls.append(event)
        raise RuntimeError("no")

    with capture_logs() as lines:
        scene.start(ONE, nvml=nvml, feed=feed)
        await until(lambda: len(calls) >= 2, "two samples")
        nvml.processes = {}
        begun = len(calls)
        await until(lambda: calls[begun:] and calls[-1].memory is not None, "a sample that makes sense")
    assert calls[0].memory is None
    assert {line["event"] for line in lines} == {"gpu memory not sampled", "fact not taken in"}


async def test_without_cards_nvml_is_left_alone(scene: Scene) -> None:
    nvml = FakeNvml()
    scene.start(nvml=nvml)
    await scene.samplers[0].close()
    assert nvml.inits == 0


async def test_close_ends_it_and_closes_nvml(scene: Scene) -> None:
    nvml = FakeNvml()
    scene.start(ONE, nvml=nvml)
    sampler = scene.samplers[0]
    sampler.start()  # twice is once
    await scene.next()
    await sampler.close()
    told = len(scene.told)
    await sampler.close()
    assert nvml.open_sessions == 0
    assert nvml.inits == 1
    assert len(scene.told) == told


async def test_calls_run_beside_the_event_loop_and_one_that_hangs_delays_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.backends.gpu_memory._CLOSE_S", 0.0)
    entered, go_on, threads = threading.Event(), threading.Event(), []

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:
            threads.append(threading.current_thread())
            entered.set()
            assert go_on.wait(30)
            super().nvmlInit()

    nvml = Hanging()
    scene.start(ONE, nvml=nvml)
    try:
        await until(entered.is_set, "the call")
        await scene.samplers[0].close()
        assert scene.told == []
    finally:
        go_on.set()
    assert threads != [threading.main_thread()]
    await asyncio.to_thread(threads[0].join, 30)
    assert not threads[0].is_alive()
    assert scene.told == []


def test_a_process_is_told_by_its_environment() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {MARKER: "box/one"})
    try:
        until_sync(lambda: carries(process.pid, "box/one"), "the process shows its environment")  # after its exec
        assert not carries(process.pid, "box/on")
        assert not carries(process.pid, "box/one-2")
    finally:
        process.communicate(timeout=30)
    assert not carries(process.pid, "box/one")  # gone
    assert not carries(0, "box/one")


@pytest.mark.gpu
async def test_a_real_card(scene: Scene) -> None:
    found = discover()
    if not found.gpus:
        pytest.skip(f"no NVIDIA GPU here: {found.problem}")
    occupants = [Occupant(gpu.uuid, gpu.uuid, "box/none") for gpu in found.gpus]
    told = await scene.start(*occupants, carries=carries).next()
    for gpu in found.gpus:
        memory = told[gpu.uuid]
        assert memory is not None
        assert 0 <= memory.free_bytes <= memory.total_bytes
        assert memory.total_bytes == gpu.memory_bytes
        assert memory.used_by_engine_bytes is None  # nothing there is ours
