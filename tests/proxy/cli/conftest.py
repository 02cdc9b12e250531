"""Running the command as a user would, against a stand-in for the proxy."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app
from tests.proxy.admin_stand_in import AdminStandIn

Slotgate = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which no configuration is found but what a test writes."""
    own = {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"}
    for name in [name for name in os.environ if name in own or name.startswith("SLOTGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("proxy.config_sources.ETC", tmp_path / "etc")
    monkeypatch.setattr("proxy.cli.asking.SERVICE_SOCKET", tmp_path / "no-service.sock")
    return tmp_path


@pytest.fixture
def stand_in(home: Path) -> Iterator[AdminStandIn]:
    """A proxy where the command looks for one by itself."""
    state_dir = home / ".local" / "state" / "slotgate"
    state_dir.mkdir(parents=True)
    with AdminStandIn(state_dir / "admin.sock") as running:
        yield running


@pytest.fixture
def slotgate(home: Path) -> Slotgate:
    """Runs one command in this process; the result has exit_code, stdout and stderr."""
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with a file in golden/."""

    def compare(name: str, text: str) -> None:
        assert text == (Path(__file__).parent / "golden" / name).read_text(), f"differs from golden/{name}"

    return compare
