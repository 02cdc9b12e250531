"""Walking the configuration's shape."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import BackendConfig, Config, LimitsConfig, RestartConfig
from proxy.config_residency import ModelResidencyConfig
from proxy.config_tree import (
    KeyPath,
    dotted,
    field_at,
    is_list_of_sections,
    leaf_field,
    leaves,
    section_at,
    section_of,
    toml_key,
    toml_value,
    type_text,
)


def test_dotted_keys() -> None:
    assert dotted(("backends", 0, "restart", "budget")) == "backends[0].restart.budget"
    assert dotted(("residency", "models", "llama3:8b", "num_ctx")) == 'residency.models."llama3:8b".num_ctx'
    assert dotted(()) == ""


def test_an_option_of_a_model_is_known_by_its_whole_key() -> None:
    path, leaf = leaf_field(("residency", "models", "llama3:8b", "num_ctx"))
    assert path == ("residency", "models", "llama3:8b", "num_ctx")
    assert leaf is not None
    assert "Context of one slot" in leaf.advice
    path, leaf = leaf_field(("residency", "models", "llama3:8b"))
    assert (path, leaf is not None) == (("residency", "models"), True)


def test_sections() -> None:
    assert section_at(Config, "limits") is LimitsConfig
    assert section_at(Config, "backends") is BackendConfig
    assert section_at(BackendConfig, "restart") is RestartConfig
    assert section_at(Config, "listen") is None
    assert section_at(Config, "nonsense") is None
    assert section_of(("backends", 0, "restart")) is RestartConfig
    assert section_of(("residency", "models", "llama3")) is ModelResidencyConfig
    assert section_of(("residency", "models", "llama3", "pin")) is None
    assert is_list_of_sections(Config, "backends")
    assert not is_list_of_sections(Config, "limits")
    assert not is_list_of_sections(BackendConfig, "flags")


def test_leaves_stop_at_lists_and_unknown_keys() -> None:
    data: dict[str, Any] = {
        "listen": "a",
        "limits": {"drain_s": 1, "x": {"y": 2}},
        "backends": [{"url": "u"}],
        "z": {"q": 1},
        "policy": {"set": {"window": 8}},
    }
    assert dict(leaves(data)) == {
        ("policy", "set", "window"): 8,
        ("listen",): "a",
        ("limits", "drain_s"): 1,
        ("limits", "x"): {"y": 2},
        ("backends",): [{"url": "u"}],
        ("z",): {"q": 1},
    }
    assert dict(leaves({"limits": 5})) == {("limits",): 5}


@pytest.mark.parametrize(
    ("path", "cut"),
    [
        (("limits", "drain_s"), ("limits", "drain_s")),
        (("backends", 0, "gpus", "list[str]", 1), ("backends", 0, "gpus")),
        (("backends", 0, "restart", "budget"), ("backends", 0, "restart", "budget")),
        (("backends", 1, "env", "A"), ("backends", 1, "env")),
        (("backends",), ("backends",)),
        (("limits",), ("limits",)),
    ],
)
def test_the_option_a_path_lies_in(path: KeyPath, cut: KeyPath) -> None:
    found, field = field_at(path)
    assert found == cut
    assert field is not None


def test_words_that_an_option_takes() -> None:
    _, level = leaf_field(("log", "level"))
    assert level is not None
    assert level.choice == '"debug", "info", "warning" or "error"'
    _, gpus = leaf_field(("backends", 0, "gpus"))
    assert gpus is not None
    assert gpus.choice == '"auto", "none" or a list of text'
    _, drain = leaf_field(("limits", "drain_s"))
    assert drain is not None
    assert drain.choice == ""
    assert drain.advice.endswith("Default: 60.0.")
    assert type_text(BackendConfig.model_fields["gpus"]) == '"auto", "none" or list of text'
    assert type_text(Config.model_fields["state_dir"]) == "path"


@given(
    st.recursive(
        st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_toml_values_read_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


def test_toml_keys_and_paths() -> None:
    assert toml_key("a_b-1") == "a_b-1"
    assert toml_key("a.b") == '"a.b"'
    assert toml_key("") == '""'
    assert toml_value(Path("/a b")) == '"/a b"'
    with pytest.raises(TypeError):
        toml_value(None)
