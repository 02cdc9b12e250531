"""Which backends a configuration means."""

from pathlib import Path

import pytest

from proxy.backends.gpus import Discovery
from proxy.backends.launch import LaunchError, Program
from proxy.backends.placement import Placement, place, usable_cores, wants_gpus
from proxy.config import BackendConfig
from scheduler.domain import Engine, Gpu

CARDS = Discovery(tuple(Gpu(f"GPU-{index}", index, "NVIDIA GeForce RTX 4090", 24 * 2**30) for index in range(4)))
NOTHING = Discovery(problem="NVML finds no GPU")
LLAMA = Program(Engine.LLAMA_SERVER, ("llama-server",))
OLLAMA = Program(Engine.OLLAMA, ("ollama",))


def llama(**fields: object) -> BackendConfig:
    return BackendConfig.model_validate({"model": Path("/m/a.gguf")} | fields)


def placed(*configs: BackendConfig, found: Discovery = CARDS, cores: int = 8) -> list[Placement]:
    programs = [None if c.url else OLLAMA if c.engine == "ollama" else LLAMA for c in configs]
    return place(configs, programs, found, cores)


def names(placements: list[Placement]) -> list[str]:
    return [placement.name for placement in placements]


def test_one_per_gpu() -> None:
    placements = placed(llama())
    assert names(placements) == [f"llama-server-{index}" for index in range(4)]
    assert [placement.gpu for placement in placements] == list(CARDS.gpus)
    assert {placement.threads for placement in placements} == {None}


def test_no_gpu_means_the_cpu_with_its_threads_divided() -> None:
    placements = placed(llama(name="a", count=2), llama(name="b", gpus="none"), found=NOTHING, cores=8)
    assert names(placements) == ["a-0", "a-1", "b"]
    assert [(placement.gpu, placement.threads) for placement in placements] == [(None, 2)] * 3


def test_every_engine_has_a_thread() -> None:
    assert {placement.threads for placement in placed(llama(count=5), found=NOTHING, cores=2)} == {1}


def test_configured_threads_are_left_alone() -> None:
    placements = placed(llama(name="a", threads=6), llama(name="b"), found=NOTHING, cores=8)
    assert [placement.threads for placement in placements] == [6, 8]


def test_gpus_by_uuid_and_by_index() -> None:
    placements = placed(llama(name="a", gpus=["GPU-2", "0"]))
    assert [(p.name, p.gpu.index if p.gpu else None) for p in placements] == [("a-0", 2), ("a-1", 0)]


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LaunchError, match=r"no GPU '7'; found: 0 = GPU-0 \(NVIDIA"):
        placed(llama(gpus=["7"]))
    with pytest.raises(LaunchError, match="found: NVML finds no GPU"):
        placed(llama(gpus=["7"]), found=NOTHING)


def test_external_ones_are_called_by_their_address() -> None:
    placements = placed(
        BackendConfig(url="http://10.0.0.5:11434"),
        BackendConfig(url="unix:/run/llama.sock"),
        BackendConfig(url="http://box:8080/llm", name="box"),
    )
    assert names(placements) == ["10.0.0.5:11434", "llama", "box"]
    assert {placement.program for placement in placements} == {None}


def test_names_must_differ() -> None:
    with pytest.raises(LaunchError, match="used twice: llama-server-0, llama-server-1"):
        placed(llama(gpus=["0", "1"]), llama(gpus=["2", "3"]))


def test_a_managed_llama_server_needs_a_model() -> None:
    with pytest.raises(LaunchError, match="set model to the path of a GGUF file"):
        placed(BackendConfig())
    assert names(placed(BackendConfig(engine="ollama", gpus=["1"]))) == ["ollama"]


def test_nvml_is_asked_only_where_it_matters() -> None:
    assert wants_gpus([llama()])
    assert not wants_gpus([llama(gpus="none"), BackendConfig(url="http://box:1")])


def test_the_quota_of_a_control_group_counts(tmp_path: Path) -> None:
    everything = usable_cores(tmp_path)
    assert everything >= 1
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == everything
