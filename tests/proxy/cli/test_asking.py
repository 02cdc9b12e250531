"""Finding the proxy to ask, and what is said when there is none."""

import json
from pathlib import Path

import pytest

from proxy.cli import asking
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate

COMMANDS = (("status",), ("ps",), ("list",), ("drain", "gpu-0"), ("undrain", "gpu-0"))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_proxy_runs(slotgate: Slotgate, home: Path, command: tuple[str, ...]) -> None:
    result = slotgate(*command, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{home}/.local/state/slotgate/admin.sock" in result.stderr
    assert "slotgate serve" in result.stderr
    assert "Traceback" not in result.stderr


def test_trials_that_run_are_told(slotgate: Slotgate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.trial.running_sockets", lambda: [home / "a b.sock"])
    for command in (("status",), ("status", f"--socket={home}/none.sock")):
        assert slotgate(*command).stderr.endswith(
            f"running here as a trial; to ask it, add:\n  --socket='{home}/a b.sock'\n"
        )


def test_a_named_socket(slotgate: Slotgate, home: Path) -> None:
    with AdminStandIn(home / "named.sock"):
        assert slotgate("status", f"--socket={home}/named.sock").exit_code == 0


def test_a_configured_socket(slotgate: Slotgate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTGATE_ADMIN_SOCKET", str(home / "configured.sock"))
    with AdminStandIn(home / "configured.sock"):
        assert slotgate("status").exit_code == 0


def test_the_socket_of_the_service(slotgate: Slotgate, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SERVICE_SOCKET", home / "service.sock")
    with AdminStandIn(home / "service.sock") as service:
        assert slotgate("status").exit_code == 0
        monkeypatch.setenv("SLOTGATE_ADMIN_SOCKET", str(home / "configured.sock"))
        assert slotgate("status").exit_code == 1  # what is named is meant
        assert service.asked == ["GET /status"]


def test_a_broken_configuration_does_not_blind(slotgate: Slotgate, home: Path, stand_in: AdminStandIn) -> None:
    own = home / "etc" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("nonsense = [\n")
    result = slotgate("status", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pid"] == 4242
    assert "slotgate config check" in result.stderr
