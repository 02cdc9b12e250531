"""`slotgate drain` and `undrain`."""

import json

import pytest

from proxy.cli import drain
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate


def test_drain_and_undrain(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    assert slotgate("drain", "gpu-0").stdout == "gpu-0 is draining: 5 still running\n"
    assert slotgate("undrain", "gpu-0").stdout == "gpu-0 takes requests\n"
    assert stand_in.asked == ["POST /backends/gpu-0/drain", "POST /backends/gpu-0/undrain"]
    assert slotgate("drain", "other-box").stdout == "other-box is drained\n"
    assert json.loads(slotgate("drain", "gpu-0", "--json").stdout) == {"name": "gpu-0", "draining": True, "running": 3}


def test_wait(slotgate: Slotgate, stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "POLL_S", 0.001)
    result = slotgate("drain", "gpu-0", "--wait")
    assert result.exit_code == 0
    assert result.stdout == "gpu-0 is drained\n"
    assert result.stderr.splitlines() == [f"gpu-0: {left} still running" for left in (5, 4, 3, 2, 1)]


def test_wait_gives_up(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("drain", "gpu-0", "--wait", "--timeout=0")
    assert result.exit_code == 1
    assert "still runs 5 after 0 s" in result.stderr


def test_unknown_backend(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("drain", "gpu-00")
    assert result.exit_code == 1
    assert result.stderr == "error: no such backend\ndid you mean gpu-0?\n"
    assert slotgate("drain").exit_code == 2
