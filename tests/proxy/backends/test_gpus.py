"""Discovery with a stand-in for NVML, and with the real one where there is a GPU."""

import sys

import pytest

from proxy.backends.gpus import CardMemory, ProcessMemory, card_memory, discover, discover_async, process_memory
from scheduler.domain import Gpu
from tests.proxy.backends.fake_nvml import FakeNvml

GIB = 2**30


def test_all_cards_with_the_memory_that_programs_can_use() -> None:
    nvml = FakeNvml()
    found = discover(nvml)
    name, usable = "NVIDIA GeForce RTX 4090", 24 * GIB - GIB // 2
    assert found.gpus == (Gpu("GPU-aaaa", 0, name, usable), Gpu("GPU-bbbb", 1, name, usable))
    assert found.problem == ""
    assert nvml.open_sessions == 0


@pytest.mark.parametrize("nvml", [FakeNvml(memory_v2=False), FakeNvml(old_binding=True)])
def test_falls_back_to_the_first_version_of_the_memory_call(nvml: FakeNvml) -> None:
    assert [gpu.memory_bytes for gpu in discover(nvml).gpus] == [24 * GIB, 24 * GIB]
    assert [gpu.uuid for gpu in discover(nvml).gpus] == ["GPU-aaaa", "GPU-bbbb"]


def test_no_driver_is_a_reason_not_an_error() -> None:
    found = discover(FakeNvml(driver=False))
    assert found.gpus == ()
    assert found.problem == "NVML: NVML Shared Library Not Found"


def test_no_binding_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert discover().problem == "nvidia-ml-py is not installed"


def test_a_lost_card_does_not_hide_the_others() -> None:
    found = discover(FakeNvml(("GPU-aaaa", None, "GPU-cccc")))
    assert [(gpu.uuid, gpu.index) for gpu in found.gpus] == [("GPU-aaaa", 0), ("GPU-cccc", 2)]
    assert found.problem == "GPU 1: GPU is lost"


def test_no_card() -> None:
    assert discover(FakeNvml(())).problem == "NVML finds no GPU"


@pytest.mark.parametrize(
    ("nvml", "total_bytes"),
    [
        (FakeNvml(), 24 * GIB - GIB // 2),
        (FakeNvml(memory_v2=False), 24 * GIB),
        (FakeNvml(old_binding=True), 24 * GIB),
    ],
)
def test_free_memory_is_the_same_by_both_versions_of_the_call(nvml: FakeNvml, total_bytes: int) -> None:
    nvml.nvmlInit()
    nvml.processes["GPU-bbbb"] = [(7, 3 * GIB)]
    assert card_memory(nvml, 0) == CardMemory(total_bytes, 24 * GIB - GIB // 2)
    assert card_memory(nvml, 1) == CardMemory(total_bytes, 21 * GIB - GIB // 2)


@pytest.mark.parametrize("process_calls", [(3, 2), (2,)])
def test_who_holds_memory(process_calls: tuple[int, ...]) -> None:
    nvml = FakeNvml(processes={"GPU-bbbb": [(7, 3 * GIB), (8, None)]}, process_calls=process_calls)
    nvml.nvmlInit()
    assert process_memory(nvml, 0) == ()
    assert process_memory(nvml, 1) == (ProcessMemory(7, 3 * GIB), ProcessMemory(8, None))


def test_a_driver_that_does_not_tell_processes_is_not_an_empty_card() -> None:
    nvml = FakeNvml(processes={"GPU-aaaa": [(7, GIB)]}, process_calls=())
    nvml.nvmlInit()
    assert process_memory(nvml, 0) is None


async def test_the_real_binding_answers_something_everywhere() -> None:
    found = await discover_async()
    assert found.gpus or found.problem


@pytest.mark.gpu
def test_a_real_card() -> None:
    found = discover()
    if not found.gpus:
        pytest.skip(f"no NVIDIA GPU here: {found.problem}")
    for gpu in found.gpus:
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert gpu.memory_bytes > GIB
        assert gpu.name
