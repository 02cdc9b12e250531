"""Which directory an Ollama's models are in, found by what it is and not by what it is called."""

import os
from pathlib import Path

import pytest

from proxy.backends.model_dir import directory, identity, named


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"OLLAMA_MODELS": "/srv/models", "HOME": "/root"}, "/srv/models"),
        ({"OLLAMA_MODELS": ' "/srv/models" '}, "/srv/models"),
        ({"HOME": "/home/me"}, "/home/me/.ollama/models"),
        ({}, None),
        ({"OLLAMA_MODELS": "models"}, None),
    ],
)
def test_where_an_ollama_keeps_them(environment: dict[str, str], path: str | None) -> None:
    assert directory(environment) == path


def test_the_same_directory_under_two_names(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "models")
    (tmp_path / "others").mkdir()
    first = identity({"OLLAMA_MODELS": str(tmp_path / "models")})

    assert first
    assert identity({"OLLAMA_MODELS": str(tmp_path / "link")}) == first
    assert identity({"OLLAMA_MODELS": str(tmp_path / "others")}) != first


def test_that_of_another_process_is_looked_at_as_it_sees_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    environment = {"OLLAMA_MODELS": str(tmp_path / "models")}

    assert identity(environment, os.getpid()) == identity(environment)


def test_what_cannot_be_looked_at_is_not_known(tmp_path: Path) -> None:
    assert identity(None) == ""
    assert identity({}) == ""
    assert identity({"OLLAMA_MODELS": str(tmp_path / "nothing")}) == ""
    assert identity({"OLLAMA_MODELS": str(tmp_path)}, 2**22 + 1) == ""


def test_an_operators_word() -> None:
    assert named("disk") == named("disk") != named("other")
    assert named(None) == ""
    assert named("disk") != identity({"OLLAMA_MODELS": "/"})
