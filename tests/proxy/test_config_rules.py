"""Rules between options, each on the backends that break it."""

from typing import Any

import pytest

from proxy.config import BackendConfig
from proxy.config_rules import (
    EXTERNAL_ONLY,
    LLAMA_SERVER_ONLY,
    MANAGED_ONLY,
    OLLAMA_ONLY,
    backend_problems,
    unfit_keys,
)


def problems(*backends: dict[str, Any]) -> list[tuple[str, str]]:
    """Where and what, of each finding."""
    models = [(index, BackendConfig.model_validate(backend)) for index, backend in enumerate(backends)]
    return [(".".join(map(str, path)), what) for path, what, _ in backend_problems(models)]


def test_a_sound_fleet_has_none() -> None:
    assert not problems(
        {"url": "http://a:1", "api_key": "k", "slots": 2},
        {"url": "http://b:1", "name": "b"},
        {"engine": "llama-server", "model": "/m.gguf", "name": "c", "gpus": ["0"]},
        {"engine": "ollama", "keep_alive": "1h", "models_dir": "/m"},
    )


@pytest.mark.parametrize("engine", ["auto", "llama-server", "embedded"])
def test_llama_server_needs_a_model(engine: str) -> None:
    assert problems({"engine": engine}) == [("backends.0", "llama-server needs a model to load")]


def test_names_and_engines_are_used_once() -> None:
    assert problems({"url": "http://a:1", "name": "x"}, {"url": "http://b:1", "name": "x"}) == [
        ("backends.1.name", "'x' is also the name of backends[0]")
    ]
    found = problems({"url": "http://a:1"}, {"url": "http://a:1/"})
    assert [where for where, _ in found] == ["backends.1.url"]


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        ({"url": "http://a:1", "gpus": "none"}, "backends.0.gpus"),
        ({"url": "http://a:1", "restart": {"budget": 1}}, "backends.0.restart"),
        ({"model": "/m", "api_key": "k"}, "backends.0.api_key"),
        ({"model": "/m", "keep_alive": "5m"}, "backends.0.keep_alive"),
        ({"engine": "ollama", "flags": ["-x"]}, "backends.0.flags"),
    ],
)
def test_options_of_another_kind_of_backend(backend: dict[str, Any], where: str) -> None:
    assert [found for found, _ in problems(backend)] == [where]


def test_the_lists_name_real_options() -> None:
    assert {*EXTERNAL_ONLY, *MANAGED_ONLY, *OLLAMA_ONLY, *LLAMA_SERVER_ONLY} <= set(BackendConfig.model_fields)
    assert "slots" not in unfit_keys(BackendConfig(url="http://a:1"))
