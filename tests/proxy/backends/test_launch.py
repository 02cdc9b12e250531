"""Command lines and environments: pure functions."""

import itertools
import signal
import sys
from pathlib import Path

import pytest

from proxy.backends.launch import (
    LaunchError,
    LaunchSpec,
    Places,
    Program,
    choose_program,
    keeper_command,
    launch_spec,
    model_name,
)
from proxy.backends.orphans import MARKER
from proxy.config import BackendConfig
from scheduler.domain import Engine, Gpu

GPU = Gpu("GPU-1234", 2, "NVIDIA GeForce RTX 4090", 24 * 2**30)
LLAMA = Program(Engine.LLAMA_SERVER, ("/usr/bin/llama-server",))
OLLAMA = Program(Engine.OLLAMA, ("/usr/bin/ollama",))
PLACES = Places(
    Path("/s/logs/a.log"), "id/a", Path("/s/run/a.sock"), 11500, Path("/s/keys/a.key"), "sekrit", Path("/s/slots/a")
)
ENVIRON = {
    "PATH": "/bin",
    "HOME": "/root",
    "LLAMA_API_KEY": "x",
    "LLAMA_ARG_PORT": "1",
    "SLOTGATE_STORE__URL": "redis://:password@box",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "OLLAMA_MODELS": "/models",
    "OLLAMA_HOST": "0.0.0.0:11434",
}


def spec(
    config: BackendConfig, program: Program = LLAMA, gpu: Gpu | None = None, threads: int | None = None
) -> LaunchSpec:
    return launch_spec(config, program, PLACES, ENVIRON, name="a", gpu=gpu, threads=threads)


def pairs(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(itertools.pairwise(argv))


def test_llama_server_on_a_gpu() -> None:
    made = spec(BackendConfig(model=Path("/m/Llama-3-8B.gguf"), slots=16, context_tokens=8192), gpu=GPU)
    flags = pairs(made.argv)
    assert made.argv[0] == "/usr/bin/llama-server"
    expected = {
        "-m": "/m/Llama-3-8B.gguf",
        "-a": "Llama-3-8B",
        "--host": "/s/run/a.sock",
        "-np": "16",
        "-c": str(16 * 8192),
        "-b": "512",
        "-ub": "512",
        "--cache-ram": "0",
        "-ngl": "all",
        "--slot-save-path": "/s/slots/a",
        "--api-key-file": "/s/keys/a.key",
    }
    assert {name: flags[name] for name in expected} == expected
    assert {"--no-kv-unified", "--no-cache-idle-slots", "--metrics", "--slots"} <= set(made.argv)
    assert (made.env["LLAMA_ARG_UI"], made.env["LLAMA_ARG_WEBUI"]) == ("0", "0")
    assert "-t" not in made.argv
    assert made.env["CUDA_VISIBLE_DEVICES"] == "GPU-1234"
    assert made.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (made.endpoint.unix_path, made.endpoint.headers) == (
        "/s/run/a.sock",
        (("Authorization", "Bearer sekrit"),),
    )
    assert made.death_signal == signal.SIGKILL


def test_the_key_is_on_no_command_line_and_in_no_environment() -> None:
    made = spec(BackendConfig(model=Path("/m/a.gguf")))
    assert not any("sekrit" in text for text in (*made.argv, *made.env.values()))


def test_llama_server_on_the_cpu_keeps_a_small_host_cache() -> None:
    made = spec(BackendConfig(model=Path("/m/a.gguf")), threads=3)
    flags = pairs(made.argv)
    assert (flags["--cache-ram"], flags["-ngl"], flags["-t"], flags["-tb"]) == ("256", "0", "3", "3")
    assert flags["--device"] == "none"
    assert made.env["CUDA_VISIBLE_DEVICES"] == "-1"


def test_what_is_configured_wins() -> None:
    config = BackendConfig(
        model=Path("/m/a.gguf"),
        model_name="mine",
        host_cache_mib=64,
        batch_tokens=128,
        flags=["-fa", "on"],
        env={"A": "b"},
    )
    made = spec(config, gpu=GPU)
    flags = pairs(made.argv)
    assert (flags["-a"], flags["--cache-ram"], flags["-b"], flags["-ub"]) == ("mine", "64", "128", "128")
    assert made.argv[-2:] == ("-fa", "on")
    assert made.env["A"] == "b"


def test_on_a_port_where_there_is_no_socket() -> None:
    places = Places(Path("/s/a.log"), "id/a", port=8081)
    made = launch_spec(BackendConfig(model=Path("/m/a.gguf")), LLAMA, places, {}, name="a")
    assert (pairs(made.argv)["--host"], pairs(made.argv)["--port"]) == ("127.0.0.1", "8081")
    assert str(made.endpoint) == "http://127.0.0.1:8081"
    assert made.endpoint.headers == ()


def test_the_embedded_engine_gets_no_flag_that_it_does_not_know() -> None:
    from proxy.backends.embedded import make_parser

    program = Program(Engine.LLAMA_SERVER, ("python", "-m", "x"), embedded=True)
    for gpu in (None, GPU):
        made = spec(BackendConfig(model=Path("/m/a.gguf")), program, gpu=gpu, threads=2)
        make_parser().parse_args(made.argv[3:])


def test_a_llama_server_without_a_model() -> None:
    with pytest.raises(LaunchError, match="needs model"):
        spec(BackendConfig())


def test_ollama() -> None:
    config = BackendConfig(
        engine="ollama", slots=4, context_tokens=8192, max_loaded_models=2, keep_alive="30m", env={"OLLAMA_DEBUG": "1"}
    )
    made = spec(config, OLLAMA, gpu=GPU)
    assert made.argv == ("/usr/bin/ollama", "serve")
    expected = {
        "OLLAMA_HOST": "127.0.0.1:11500",
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_MAX_LOADED_MODELS": "2",
        "OLLAMA_KEEP_ALIVE": "30m",
        "OLLAMA_MODELS": "/models",
        "OLLAMA_NOPRUNE": "1",
        "OLLAMA_VULKAN": "0",
        "OLLAMA_DEBUG": "1",
        "LLAMA_ARG_CACHE_RAM": "0",
        "LLAMA_ARG_CACHE_IDLE_SLOTS": "0",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-1234",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        MARKER: "id/a",
    }
    assert {name: made.env.get(name) for name in expected} == expected
    assert str(made.endpoint) == "http://127.0.0.1:11500"
    assert made.death_signal == signal.SIGTERM


def test_ollama_on_the_cpu() -> None:
    made = spec(BackendConfig(engine="ollama", models_dir=Path("/store")), OLLAMA, threads=2)
    assert (made.env["LLAMA_ARG_CACHE_RAM"], made.env["LLAMA_ARG_THREADS"]) == ("256", "2")
    assert made.env["OLLAMA_MODELS"] == "/store"
    assert made.env["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(
    "name",
    [
        "LLAMA_ARG_CACHE_RAM",
        "LLAMA_ARG_CACHE_IDLE_SLOTS",
        "LLAMA_ARG_ENDPOINT_METRICS",
        "OLLAMA_NUM_PARALLEL",
        "OLLAMA_MAX_LOADED_MODELS",
        "OLLAMA_CONTEXT_LENGTH",
        "OLLAMA_KEEP_ALIVE",
        "OLLAMA_NOPRUNE",
        "OLLAMA_VULKAN",
        "OLLAMA_MODELS",
    ],
)
def test_what_an_ollama_gets_can_be_overridden(name: str) -> None:
    made = spec(BackendConfig(engine="ollama", models_dir=Path("/store")), OLLAMA, gpu=GPU)
    assert made.env[name] != "7"
    changed = spec(BackendConfig(engine="ollama", models_dir=Path("/store"), env={name: "7"}), OLLAMA, gpu=GPU)
    assert changed.env == made.env | {name: "7"}


@pytest.mark.parametrize("program", [LLAMA, OLLAMA])
def test_what_is_private_to_slotgate_stays_there(program: Program) -> None:
    config = BackendConfig(model=Path("/m/a.gguf"), env={"LLAMA_API_KEY": "y"} if program is OLLAMA else {})
    env = spec(config, program).env
    assert not {"LLAMA_API_KEY", "LLAMA_ARG_PORT", "SLOTGATE_STORE__URL", "NOTIFY_SOCKET"} & set(env)
    assert env["HOME"] == "/root"


def test_choosing_the_program() -> None:
    def which(name: str) -> str | None:
        return {"llama-server": "/bin/llama-server", "ollama": "/bin/ollama", "/x/ollama": "/x/ollama"}.get(name)

    assert choose_program(BackendConfig(), which) == Program(Engine.LLAMA_SERVER, ("/bin/llama-server",))
    assert choose_program(BackendConfig(engine="ollama"), which) == Program(Engine.OLLAMA, ("/bin/ollama",))
    assert choose_program(BackendConfig(binary=Path("/x/ollama")), which).engine is Engine.OLLAMA
    assert choose_program(BackendConfig(engine="embedded"), which).embedded
    with pytest.raises(LaunchError, match="not an executable"):
        choose_program(BackendConfig(binary=Path("/x/none")), which)
    with pytest.raises(LaunchError, match="ollama is not on PATH"):
        choose_program(BackendConfig(engine="ollama"), lambda _: None)


def test_without_llama_server_the_embedded_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.backends.launch.find_spec", lambda _: object())
    program = choose_program(BackendConfig(engine="llama-server"), lambda _: None)
    assert program.embedded
    assert program.argv == (sys.executable, "-P", "-m", "proxy.backends.embedded")
    monkeypatch.setattr("proxy.backends.launch.find_spec", lambda _: None)
    with pytest.raises(LaunchError, match=r"slotgate\[embedded\]"):
        choose_program(BackendConfig(), lambda _: None)
    with pytest.raises(LaunchError, match=r"slotgate\[embedded\]"):
        choose_program(BackendConfig(engine="embedded"), lambda _: None)


@pytest.mark.parametrize(
    ("file", "name"),
    [("SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"), ("Big-00001-of-00003.gguf", "Big"), ("plain", "plain")],
)
def test_a_model_is_called_as_its_file(file: str, name: str) -> None:
    assert model_name(BackendConfig(model=Path("/m") / file)) == name


def test_the_command_line_of_the_keeper() -> None:
    made = spec(BackendConfig(model=Path("/m/a.gguf")))
    command = keeper_command(made, grace_s=5, log_bytes=1000, parent=42)
    assert command[:3] == [sys.executable, "-I", "-S"]
    assert tuple(command[command.index("--") + 1 :]) == made.argv
    assert pairs(tuple(command))["--death-signal"] == "9"
    assert "--parent=42" in command
