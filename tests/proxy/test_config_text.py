"""What is shown of the configuration: no secrets, loadable TOML, complete documentation."""

import json
import tomllib
from pathlib import Path

import pytest

from proxy.config import (
    BackendConfig,
    Config,
    LimitsConfig,
    LogConfig,
    PolicyConfig,
    RestartConfig,
    StoreConfig,
    TenancyConfig,
)
from proxy.config_section import Section
from proxy.config_sources import LoadedConfig, load_config
from proxy.config_text import json_schema, option_tables, render_toml, shown
from proxy.endpoint import MASK

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
SECRETS = ("open-sesame-open", "hunter2", "sesame", "tok-1", "flag-1", "flag-2", "sk-1")


@pytest.fixture
def loaded() -> LoadedConfig:
    backends = [
        {"url": "http://a:1", "api_key": "sesame", "name": "a"},
        {
            "model": "/m.gguf",
            "env": {"HF_TOKEN": "tok-1", "OMP_NUM_THREADS": "2"},
            "flags": ["--hf-token", "flag-1", "--hf-token=flag-2", "--auth-key-file", "/keys", "-fa"],
            "restart": {"budget": 3},
        },
        {"engine": "ollama", "keep_alive": "1h"},
    ]
    keys = {"sk-1": {"name": "joe", "priority": "high"}}
    flags = {"backends": backends, "store.url": "redis://u:hunter2@h:1/0?password=hunter2", "tenancy.keys": keys}
    flags["box.secret"] = "open-sesame-open"
    return load_config(flags, environ={}, etc=Path("/nonexistent"), root=True)


def test_secrets_are_masked_everywhere(loaded: LoadedConfig) -> None:
    for text in (json.dumps(shown(loaded.config)), render_toml(loaded, with_origins=True)):
        assert not [secret for secret in SECRETS if secret in text]
        assert MASK in text
        assert "/keys" in text
        assert "OMP_NUM_THREADS" in text


def test_the_toml_shown_can_be_loaded_again(loaded: LoadedConfig, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(render_toml(loaded, with_origins=True))
    again = load_config({}, config_file=file, environ={})
    assert shown(again.config) == shown(loaded.config)
    assert render_toml(again, with_origins=False) == render_toml(loaded, with_origins=False)


def test_origins_stand_beside_values(loaded: LoadedConfig) -> None:
    text = render_toml(loaded, with_origins=True)
    assert [line.split() for line in text.splitlines() if line.startswith("listen")] == [
        ["listen", "=", '"127.0.0.1:11434"', "#", "default"]
    ]
    assert "budget = 3" in text
    assert "# flag --backend" in text
    assert "#" not in "".join(
        line for line in render_toml(loaded, with_origins=False).splitlines() if not line.startswith("# ")
    )
    assert tomllib.loads(text)["backends"][0]["name"] == "a"


def test_schema_knows_every_option() -> None:
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Config.model_fields)
    assert schema["$defs"]["LimitsConfig"]["properties"]["drain_s"]["description"]


def test_every_option_is_in_the_tables_and_documented() -> None:
    tables = option_tables()
    sections = (Config, BackendConfig, RestartConfig, StoreConfig, LimitsConfig, PolicyConfig, TenancyConfig, LogConfig)
    for section in sections:
        for name, field in section.model_fields.items():
            if not isinstance(field.default, Section):
                assert field.description, f"{section.__name__}.{name} has no documentation"
                assert f"| `{name}` |" in tables
    assert "SLOTGATE_LIMITS__MAX_WAITING" in tables


def test_the_document_is_up_to_date() -> None:
    assert option_tables().strip() in DOCUMENT.read_text(), "run: slotgate config docs --update docs/configuration.md"
