"""The unit is one that systemd accepts, is hardened, and agrees with the program."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.cli.asking import SERVICE_SOCKET
from proxy.config import Config, LimitsConfig
from proxy.listener import BACKLOG

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "slotgate.service"
SOCKET = SYSTEMD / "slotgate.socket"
MOST_EXPOSED = 20
"""`systemd-analyze security` times ten: 2.0 is "OK"; a bare unit has 9.6."""

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")
needs_sysusers = pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not on PATH")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that exists here: verify wants one."""
    copy = tmp_path / "slotgate.service"
    copy.write_text(
        re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT.read_text(), flags=re.MULTILINE)
    )
    return copy


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@needs_analyze
def test_systemd_accepts_it(unit: Path) -> None:
    result = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@needs_analyze
def test_it_is_hardened(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-300:] + result.stderr


@needs_sysusers
def test_the_user_can_be_made(tmp_path: Path) -> None:
    command = ["systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "slotgate.sysusers.conf")]
    (tmp_path / "etc").mkdir()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "slotgate:" in (tmp_path / "etc" / "passwd").read_text()


def test_it_agrees_with_the_program() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["ExecStart"][0].endswith("/slotgate serve")
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert unit["KillMode"] == ["mixed"]  # SIGTERM for the proxy alone: it drains, then stops its engines
    assert float(unit["TimeoutStopSec"][0]) >= LimitsConfig().drain_s + 30
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert SERVICE_SOCKET.parent == Path("/run") / unit["RuntimeDirectory"][0]
    assert "u     slotgate" in (SYSTEMD / "slotgate.sysusers.conf").read_text()
    assert unit["User"] == unit["Group"] == ["slotgate"]


@needs_analyze
def test_systemd_accepts_the_socket(unit: Path) -> None:
    copy = unit.with_name("slotgate.socket")
    copy.write_text(SOCKET.read_text())
    result = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_socket_agrees_with_the_program() -> None:
    text = SOCKET.read_text()
    assert f"\nListenStream={Config().listen}\n" in text
    assert int(re.findall(r"^Backlog=(\d+)$", text, re.MULTILINE)[0]) >= BACKLOG


def test_gpus_are_let_in_by_both_names_of_the_driver() -> None:
    unit = settings()
    assert unit["DevicePolicy"] == ["closed"]
    allowed = {value.split()[0] for value in unit["DeviceAllow"]}
    assert {"char-nvidia", "char-nvidia-frontend", "char-nvidia-uvm", "/dev/nvidiactl"} <= allowed
    assert unit["PrivateDevices"] == ["no"]
    assert "MemoryDenyWriteExecute" not in unit
