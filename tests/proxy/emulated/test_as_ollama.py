import pytest

from proxy.emulated.as_ollama import (
    UsageError,
    check_command,
    child_metrics,
    is_version,
    listen_address,
    read_environment,
)
from proxy.emulated.options import Options


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "127.0.0.1:11434"),
        ("0.0.0.0", "0.0.0.0:11434"),
        (":5000", "127.0.0.1:5000"),
        ("http://127.0.0.1:5000/", "127.0.0.1:5000"),
        ("[::1]:5000", "[::1]:5000"),
        ("[::1]", "[::1]:11434"),
    ],
)
def test_where_it_listens(host: str, address: str) -> None:
    assert listen_address(host) == address


def test_without_variables_it_is_as_shipped() -> None:
    values = read_environment({})
    options = Options(api="ollama", **{name: value for name, value in values.items() if name != "listen"})
    assert (options.slots, options.context, options.max_loaded, options.max_queue) == (1, 4096, 3, 512)
    assert (options.host_cache_tokens, options.copy_idle_slots) == (65_536, True)
    assert (options.models_dir, options.prunes, options.child_metrics) == ("", True, False)
    assert options.keep_alive_s == 300


def test_variables_are_read() -> None:
    values = read_environment(
        {
            "OLLAMA_NUM_PARALLEL": "4",
            "OLLAMA_CONTEXT_LENGTH": "8192",
            "OLLAMA_MAX_LOADED_MODELS": "2",
            "OLLAMA_MAX_QUEUE": "9",
            "OLLAMA_KEEP_ALIVE": "1h30m",
            "OLLAMA_MODELS": "/m",
            "OLLAMA_NOPRUNE": "1",
            "LLAMA_ARG_ENDPOINT_METRICS": "1",
            "LLAMA_ARG_CACHE_RAM": "0",
        }
    )
    assert (values["slots"], values["context"], values["max_loaded"], values["max_queue"]) == (4, 8192, 2, 9)
    assert (values["keep_alive_s"], values["models_dir"], values["prunes"]) == (5400, "/m", False)
    assert (values["child_metrics"], values["host_cache_tokens"], values["copy_idle_slots"]) == (True, 0, False)
    assert read_environment({"LLAMA_ARG_CACHE_RAM": "-1"})["host_cache_tokens"] == 65_536
    assert not read_environment({"LLAMA_ARG_CACHE_IDLE_SLOTS": "0"})["copy_idle_slots"]
    assert read_environment({"OLLAMA_KEEP_ALIVE": "-1"})["keep_alive_s"] == -1


@pytest.mark.parametrize("wrong", [{"OLLAMA_NUM_PARALLEL": "many"}, {"OLLAMA_KEEP_ALIVE": "5 minutes"}])
def test_what_is_not_understood_is_named(wrong: dict[str, str]) -> None:
    (name,) = wrong
    assert not child_metrics(wrong)
    with pytest.raises(UsageError, match=name):
        read_environment(wrong)


def test_commands() -> None:
    assert is_version(["--version"])
    assert not is_version(["serve"])
    check_command(["serve"])
    for wrong in ([], ["list"]):
        with pytest.raises(UsageError, match="knows serve"):
            check_command(wrong)
