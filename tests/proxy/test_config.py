"""The shape of the configuration: which values each option takes, and where files go."""

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from proxy.config import (
    BackendConfig,
    Config,
    PolicyConfig,
    StoreConfig,
    TenancyConfig,
    key_digest,
    resolve,
)
from proxy.endpoint import parse_endpoint
from scheduler.presets import DEFAULT, PRESETS


def test_defaults_are_those_of_the_documentation() -> None:
    config = Config()
    assert config.listen == "127.0.0.1:11434"
    assert config.limits.max_waiting == 1000
    assert config.limits.max_attempts == 3
    assert config.backends == []


def test_gpu_indexes_may_be_numbers() -> None:
    assert BackendConfig.model_validate({"gpus": [0, "GPU-1"]}).gpus == ["0", "GPU-1"]
    assert BackendConfig.model_validate({"gpus": "none"}).gpus == "none"
    for wrong in ([], "all", [True], 3):
        with pytest.raises(ValidationError):
            BackendConfig.model_validate({"gpus": wrong})


def test_running_limit_is_bounded_by_slots_where_slots_are_ours_to_set() -> None:
    with pytest.raises(ValidationError, match="3 is more than slots = 2"):
        BackendConfig(slots=2, running_limit=3)
    # An external engine tells its own slots; the rule for a number that was given is in `config_rules`.
    assert BackendConfig(url="http://a:1", slots=2, running_limit=3).running_limit == 3


def test_backend_urls_and_names_are_checked() -> None:
    assert parse_endpoint(BackendConfig(url="unix:/a").url or "").unix_path == "/a"
    for wrong in ({"url": "https://a"}, {"name": "a/b"}, {"name": ""}, {"url": "http://a:1", "engine": "embedded"}):
        with pytest.raises(ValidationError):
            BackendConfig.model_validate(wrong)


def test_store_urls() -> None:
    for url in ("redis://h:1/0", "rediss://u:p@h", "unix:///run/valkey.sock?db=1"):
        assert StoreConfig(url=url).url == url
    with pytest.raises(ValidationError, match="redis://HOST"):
        StoreConfig(url="http://h")


@pytest.mark.parametrize(
    "url",
    ["redis://h/zero", "redis://h:1/0/1", "redis://h:1?db=x", "unix:///s?db=", "redis://h:99999/0", "redis://h:x"],
)
def test_store_urls_whose_numbers_are_none(url: str) -> None:
    with pytest.raises(ValidationError, match=r"is a number.*: write redis://HOST:PORT"):
        StoreConfig(url=url)


@pytest.mark.parametrize(
    "origin",
    ["*", "https://chat.example", "http://10.0.0.1:8080", "http://[::1]:3000", "app://x", "https://Chat.example:1/"],
)
def test_origins(origin: str) -> None:
    assert Config(origins=[origin]).origins == [origin]


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "chat.example",
        "null",
        "https://",
        "https://a/b",
        "https://*.a",
        "https://a:b",
        "https://a:70000",
        "https://a b",
    ],
)
def test_origins_that_are_none(origin: str) -> None:
    with pytest.raises(ValidationError, match="SCHEME://HOST"):
        Config(origins=["https://chat.example", origin])


def test_every_preset_can_be_configured() -> None:
    assert list(get_args(PolicyConfig.model_fields["preset"].annotation)) == list(PRESETS)
    assert PolicyConfig().preset == DEFAULT
    values = PolicyConfig.model_validate({"set": {"choose_slot": False, "window": 8, "hold_s": 0.5, "order": "fcfs"}})
    assert [type(value) for value in values.set.values()] == [bool, int, float, str]


def test_api_keys_are_kept_as_hashes() -> None:
    digest = key_digest("sk-secret")
    assert digest == "sha256:746b4ad1ca9129e1caf080bf9406d43531b8bbf97f42cc1597ee4f3d4663938e"
    for written in ("sk-secret", digest, digest.upper().replace("SHA", "sha")):
        for entry in ("joe", {"name": "joe"}, {"name": "joe", "priority": "normal"}):
            config = TenancyConfig.model_validate({"keys": {written: entry}})
            assert config.model_dump()["keys"] == {digest: {"name": "joe", "priority": "normal", "admin": False}}
            assert TenancyConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"keys": {"sk-secret": {"nmae": "joe"}}}, "sha256:746b4ad1... takes name, priority and admin, not nmae"),
        ({"keys": {"sk-secret": 5}}, "sha256:746b4ad1... takes a name, or a table of name, priority and admin"),
        ({"keys": {"sk-secret": "a", key_digest("sk-secret"): "b"}}, "sha256:746b4ad1... is there twice"),
        ({"keys": {"sha256:746b": "a"}}, "64 hexadecimal digits"),
        ({"keys": {"sk-secret": {"priority": "urgent"}}}, "'high', 'normal' or 'low'"),
        ({"keys": {"sk-secret": "a\x1b"}}, "match pattern"),
        ({"by": ["address"], "keys": {"sk-secret": "a"}}, 'unless "api-key" is in tenancy.by'),
        ({"by": ["cookie"]}, "'api-key', 'open-webui-user' or 'address'"),
    ],
)
def test_api_keys_that_are_wrong_are_named_by_their_hash(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TenancyConfig.model_validate(values)
    told = [each["msg"] for each in caught.value.errors()]
    assert any(words in text for text in told), told
    assert not any("sk-secret" in text for text in told)


def test_no_path_is_empty() -> None:
    for model, name in ((Config, "state_dir"), (Config, "admin_socket"), (BackendConfig, "model")):
        with pytest.raises(ValidationError, match="'' is no path"):
            model.model_validate({name: ""})


@pytest.mark.parametrize(
    ("environ", "state_dir", "admin_socket"),
    [
        ({"HOME": "/home/a"}, "/home/a/.local/state/slotgate", "/home/a/.local/state/slotgate/admin.sock"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, "/s/slotgate", "/s/slotgate/admin.sock"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "relative"}, "/home/a/.local/state/slotgate", None),
        ({"STATE_DIRECTORY": "/var/lib/slotgate:/other", "XDG_STATE_HOME": "/s"}, "/var/lib/slotgate", None),
        (
            {"STATE_DIRECTORY": "/var/lib/slotgate", "RUNTIME_DIRECTORY": "/run/slotgate"},
            "/var/lib/slotgate",
            "/run/slotgate/admin.sock",
        ),
    ],
)
def test_where_files_go(environ: dict[str, str], state_dir: str, admin_socket: str | None) -> None:
    paths = resolve(Config(), environ)
    assert str(paths.state_dir) == state_dir
    assert str(paths.admin_socket) == (admin_socket or f"{state_dir}/admin.sock")


def test_named_paths_win(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path, admin_socket=tmp_path / "s")
    paths = resolve(config, {"STATE_DIRECTORY": "/x", "RUNTIME_DIRECTORY": "/y"})
    assert (paths.state_dir, paths.admin_socket) == (tmp_path, tmp_path / "s")
