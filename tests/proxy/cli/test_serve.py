"""`slotgate serve`: flags become configuration; what is wrong with it ends the command before anything starts."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.config_sources import LoadedConfig
from tests.proxy.cli.conftest import Slotgate


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[LoadedConfig]:
    """What `proxy.process.run` was called with; it returns 0."""
    calls: list[LoadedConfig] = []

    def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig]) -> int:
        assert reload().config == loaded.config
        calls.append(loaded)
        return 0

    stand_in = types.ModuleType("proxy.process")
    stand_in.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "proxy.process", stand_in)
    return calls


def test_no_file_is_needed(slotgate: Slotgate, served: list[LoadedConfig]) -> None:
    result = slotgate("serve", "--listen=127.0.0.1:0", "--backend=http://127.0.0.1:1", "--backend=http://127.0.0.1:2")
    assert (result.exit_code, result.stderr) == (0, "")
    (loaded,) = served
    assert loaded.config.listen == "127.0.0.1:0"
    assert [backend.url for backend in loaded.config.backends] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert loaded.origins["listen"] == "flag --listen"


def test_every_flag_lands(slotgate: Slotgate, served: list[LoadedConfig], home: Path) -> None:
    file = home / "mine.toml"
    file.write_text('fleet = "mine"\n[[backends]]\nurl = "http://127.0.0.1:3"\n')
    flags = ("--store=redis://h:1", "--state-dir=/s", "--log-level=debug", "--log-format=json")
    assert slotgate("serve", f"--config={file}", *flags).exit_code == 0
    config = served[0].config
    assert (config.fleet, config.store.url, config.state_dir) == ("mine", "redis://h:1", Path("/s"))
    assert (config.log.level, config.log.format) == ("debug", "json")
    assert config.backends[0].url == "http://127.0.0.1:3"


def test_problems_end_it_as_wrong_usage(slotgate: Slotgate, served: list[LoadedConfig]) -> None:
    result = slotgate("serve", "--listen=nowhere", "--log-level=loud")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "flag --listen: listen: 'nowhere'" in result.stderr
    assert "flag --log-level" in result.stderr
    assert "--backend=" in result.stderr
    assert served == []
    assert slotgate("serve", "--nonsense").exit_code == 2


def test_workers_are_not_started_by_hand(slotgate: Slotgate, served: list[LoadedConfig]) -> None:
    for flags in (("--worker=1",), ("--channel=9",)):
        result = slotgate("serve", *flags)
        assert result.exit_code == 2
        assert "set the option `workers` instead" in result.stderr
    assert "--worker" not in slotgate("serve", "--help").stdout
