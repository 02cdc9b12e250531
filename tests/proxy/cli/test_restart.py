"""`slotgate restart`: what it says of what happens now."""

import json

import pytest

from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate


@pytest.mark.parametrize(
    ("was", "running", "said"),
    [
        ("ready", 0, "gpu-0 ends and is started again"),
        (
            "ready",
            5,
            "gpu-0 ends and is started again; 5 running there: cut where an answer has begun, else tried elsewhere",
        ),
        ("starting", 0, "gpu-0 ends and is started again"),
        ("ending", 0, "gpu-0 is ending already, and is started again then"),
        ("backoff", 0, "gpu-0 is started again now, with a new restart budget"),
        ("failed", 0, "gpu-0 is started again now, with a new restart budget"),
    ],
)
def test_what_happens_is_said(slotgate: Slotgate, stand_in: AdminStandIn, was: str, running: int, said: str) -> None:
    stand_in.status.backends[0].state, stand_in.status.backends[0].running = was, running
    result = slotgate("restart", "gpu-0")
    assert result.exit_code == 0
    assert result.stdout == f"{said}\n"
    assert result.stderr == "`slotgate status` tells when it is ready\n"
    assert stand_in.asked == ["POST /backends/gpu-0/restart"]


def test_json(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("restart", "gpu-0", "--json")
    assert json.loads(result.stdout) == {"name": "gpu-0", "was": "ready", "running": 5}
    assert result.stderr == ""


def test_what_cannot_be_restarted(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    result = slotgate("restart", "gpu-00")
    assert (result.exit_code, result.stderr) == (1, "error: no such backend\ndid you mean gpu-0?\n")
    result = slotgate("restart", "other-box")
    assert (result.exit_code, result.stderr) == (1, "error: other-box is external\n")
    assert slotgate("restart").exit_code == 2
