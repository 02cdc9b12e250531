"""The example configuration is valid as it is, with each option un-commented, and names every option there is."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxy.config import BackendConfig, Config
from proxy.config_section import Section
from proxy.config_sources import load_config
from proxy.config_tree import section_at

EXAMPLE = Path(__file__).parents[2] / "deploy" / "config.example.toml"
TEXT = EXAMPLE.read_text()
OPTION = re.compile(r"#(?:[a-z_]+ = |\[)")
OWN_VALUE = {
    "state_dir",
    "admin_socket",
    "binary",
    "host_cache_mib",
    "threads",
    "count",
    "store.url",
    "residency.models",
    "tenancy.keys",
}
"""Options whose default is not one value: the example shows one."""


def blocks() -> list[tuple[int, int]]:
    """Line ranges to un-comment together: a commented table with its options, else single options."""
    lines = TEXT.splitlines()
    found = []
    at = 0
    while at < len(lines):
        if OPTION.match(lines[at]):
            end = at + 1
            while lines[at].startswith("#[") and end < len(lines) and OPTION.match(lines[end]):
                end += 1
            found.append((at, end))
            at = end
        else:
            at += 1
    return found


def uncommented(*ranges: tuple[int, int]) -> str:
    lines = TEXT.splitlines()
    for start, end in ranges:
        lines[start:end] = [line.removeprefix("#") for line in lines[start:end]]
    return "\n".join(lines)


def load(text: str, tmp_path: Path) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_config({}, config_file=file, environ={}).config


def test_as_it_is(tmp_path: Path) -> None:
    config = load(TEXT, tmp_path)
    (backend,) = config.backends
    assert (backend.gpus, backend.slots, backend.running_limit) == ("auto", 16, 8)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: TEXT.splitlines()[block[0]][:40])
def test_with_each_option(block: tuple[int, int], tmp_path: Path) -> None:
    load(uncommented(block), tmp_path)


def test_with_all_options(tmp_path: Path) -> None:
    config = load(uncommented(*blocks()), tmp_path)
    assert [backend.engine for backend in config.backends] == ["llama-server", "ollama", "auto"]


def test_commented_options_are_the_defaults() -> None:
    document = tomllib.loads(uncommented(*(block for block in blocks() if block[1] - block[0] == 1)))

    def compare(values: dict[str, Any], section: type[Section], path: str) -> None:
        for name, value in values.items():
            inner = section_at(section, name)
            if inner is not None:
                for item in value if isinstance(value, list) else [value]:
                    compare(item, inner, f"{name}.")
            elif f"#{name} = " in TEXT and not {name, path + name} & OWN_VALUE and f"\n{name} = " not in TEXT:
                assert value == section.model_fields[name].default, f"{path}{name}"

    compare(document, Config, "")


def test_every_option_is_there() -> None:
    document = tomllib.loads(uncommented(*blocks()))
    missing = []

    def look(values: list[dict[str, Any]], section: type[Section], path: str) -> None:
        for name in section.model_fields:
            given = [value[name] for value in values if name in value]
            inner = section_at(section, name)
            if not given:
                missing.append(path + name)
            elif inner is not None:
                flat = [item for value in given for item in (value if isinstance(value, list) else [value])]
                look(flat, inner, f"{path}{name}.")

    look([document], Config, "")
    assert missing == []
    assert len(document["backends"]) == 3
    assert set().union(*document["backends"]) == set(BackendConfig.model_fields)
