"""What the environment of an Ollama says, and what to change there."""

from pathlib import Path

import pytest

from proxy.backends.launch import Places, Program, launch_spec
from proxy.backends.ollama_settings import OllamaSettings, findings, read_settings, value
from proxy.config import BackendConfig
from scheduler.domain import Engine, Gpu

GOOD = {
    "LLAMA_ARG_CACHE_RAM": "0",
    "LLAMA_ARG_ENDPOINT_METRICS": "1",
    "OLLAMA_NUM_PARALLEL": "4",
    "OLLAMA_MAX_LOADED_MODELS": "2",
    "OLLAMA_CONTEXT_LENGTH": "8192",
}


def test_values_are_read_as_ollama_reads_them() -> None:
    assert value({"A": ' "4" '}, "A") == "4"
    assert value({}, "A") == ""


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (GOOD, OllamaSettings(4, 8192, 2)),
        ({}, OllamaSettings(1, None, 0)),
        (
            {"OLLAMA_NUM_PARALLEL": "0", "OLLAMA_CONTEXT_LENGTH": "0", "OLLAMA_MAX_LOADED_MODELS": "x"},
            OllamaSettings(1, None, 0),
        ),
        ({"OLLAMA_NUM_PARALLEL": "-3"}, OllamaSettings(1, None, 0)),
    ],
)
def test_settings(environment: dict[str, str], settings: OllamaSettings) -> None:
    assert read_settings(environment) == settings


def test_nothing_to_say_of_one_that_is_set_up_well() -> None:
    assert findings(GOOD, "ollama.service") == ()


@pytest.mark.parametrize("gpu", [None, Gpu("GPU-1", 0, "x", 1)])
def test_nothing_to_say_of_one_that_slotgate_would_start(gpu: Gpu | None, tmp_path: Path) -> None:
    program = Program(Engine.OLLAMA, ("/usr/bin/ollama",))
    places = Places(log_path=tmp_path, marker="id/a", port=1)
    made = launch_spec(BackendConfig(engine="ollama"), program, places, {}, name="a", gpu=gpu)
    assert findings(made.env) == ()


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"LLAMA_ARG_CACHE_RAM": "-1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}, "LLAMA_ARG_CACHE_RAM=0"),
        ({"LLAMA_ARG_CACHE_RAM": "512"}, "LLAMA_ARG_CACHE_IDLE_SLOTS=0"),
        ({"LLAMA_ARG_ENDPOINT_METRICS": ""}, "LLAMA_ARG_ENDPOINT_METRICS=1"),
        ({"OLLAMA_NUM_PARALLEL": ""}, "OLLAMA_NUM_PARALLEL=4"),
        ({"OLLAMA_MAX_LOADED_MODELS": "0"}, "OLLAMA_MAX_LOADED_MODELS=1"),
        ({"OLLAMA_CONTEXT_LENGTH": "0"}, "OLLAMA_CONTEXT_LENGTH=8192"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, "OLLAMA_VULKAN=0"),
    ],
)
def test_one_line_says_what_to_set_and_where(changes: dict[str, str], setting: str) -> None:
    [line] = findings(GOOD | changes, "ollama.service")
    assert line.startswith(f"set {setting} in its environment by `systemctl edit ollama` (")
    [line] = findings(GOOD | changes)
    assert line.startswith(f"set {setting} in its environment (")


def test_what_is_no_trouble() -> None:
    assert findings(GOOD | {"LLAMA_ARG_CACHE_RAM": "512", "LLAMA_ARG_CACHE_IDLE_SLOTS": "off"}) == ()
    assert findings(GOOD | {"CUDA_VISIBLE_DEVICES": "0", "OLLAMA_VULKAN": "false"}) == ()
    assert findings(GOOD | {"CUDA_VISIBLE_DEVICES": "0", "GGML_VK_VISIBLE_DEVICES": "-1"}) == ()
    assert len(findings({}, on_cpu=True)) == len(findings({})) - 1  # there a copy costs far less than computing


def test_a_key_locks_ollama_out_of_its_own_child() -> None:
    [line] = findings(GOOD | {"LLAMA_API_KEY": "sekrit"})
    assert "remove LLAMA_API_KEY" in line
    assert "sekrit" not in line
