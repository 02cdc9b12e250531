from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.config import Config
from proxy.config_residency import ResidencyConfig
from proxy.config_sources import ConfigError, load_config
from proxy.config_tree import leaf_field, type_text


def test_models_are_known_by_one_name() -> None:
    models = {"Llama3": {"num_ctx": 16384}, "library/qwen:7B": {"pin": True}}
    config = ResidencyConfig.model_validate({"models": models})
    assert {name: (each.num_ctx, each.pin) for name, each in config.models.items()} == {
        "llama3:latest": (16384, False),
        "qwen:7b": (None, True),
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"context_buckets": []}, "at least 1 item"),
        ({"context_buckets": [4096, 2048, 4096]}, "write each once, the smallest first: [2048, 4096]"),
        ({"context_buckets": [0]}, "greater than or equal to 1"),
        ({"options": "some"}, "'ignore' or 'keep'"),
        ({"models": {"a": {}, "A:latest": {}}}, "a:latest is there twice"),
        ({"models": {" ": {}}}, "is no model"),
        ({"models": {"a": {"num_ctx": 0}}}, "greater than or equal to 1"),
        ({"models": {"a": {"pinned": True}}}, "Extra inputs"),
    ],
)
def test_what_is_wrong_is_told(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ResidencyConfig.model_validate(values)
    assert any(words in each["msg"] for each in caught.value.errors()), caught.value.errors()


def test_a_file_and_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[residency]\nmodels = { "a" = { pin = true } }\n')
    environ = {"SLOTGATE_RESIDENCY__OPTIONS": "keep", "SLOTGATE_RESIDENCY__CONTEXT_BUCKETS": "[1024, 9000]"}
    config = load_config({}, config_file=file, environ=environ, need_backends=False).config.residency
    assert (config.options, config.context_buckets, list(config.models)) == ("keep", [1024, 9000], ["a:latest"])


def test_an_error_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[residency]\ncontext_buckets = [8192, 2048]\n")
    with pytest.raises(ConfigError) as caught:
        load_config({}, config_file=file, environ={}, need_backends=False)
    (problem,) = caught.value.problems
    assert "residency.context_buckets" in str(problem)


def test_a_wrong_key_of_a_model_names_its_line_and_the_right_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[residency.models."llama3"]\nnum_ctx = 4096\npinn = true\n')
    with pytest.raises(ConfigError) as caught:
        load_config({}, config_file=file, environ={}, need_backends=False)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}:3: residency.models.llama3.pinn: unknown key")
    assert "did you mean residency.models.llama3.pin?" in str(problem)


def test_its_documentation() -> None:
    assert type_text(ResidencyConfig.model_fields["context_buckets"]) == "list of numbers"
    _, leaf = leaf_field(("residency", "context_buckets"))
    assert leaf is not None
    assert "2048" in leaf.advice
    assert Config().residency == ResidencyConfig()


def test_a_wrong_value_of_a_model_is_told_with_its_key_and_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[residency.models."llama3:8b"]\nnum_ctx = "16k"\n[residency.models.a]\npin = "x"\n')
    with pytest.raises(ConfigError) as caught:
        load_config({}, config_file=file, environ={}, need_backends=False)
    number, flag = map(str, caught.value.problems)
    assert number.startswith(
        f"{file}:2: residency.models.\"llama3:8b\".num_ctx: '16k': should be a whole number without a unit, such as"
    )
    assert "Context of one slot, in tokens" in number
    assert flag.startswith(f"{file}:4: residency.models.a.pin: 'x': ")
