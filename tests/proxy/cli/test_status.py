"""`slotgate status`, golden; and its exit status, which monitoring reads."""

from collections.abc import Callable

import pytest

from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate


def test_table(slotgate: Slotgate, golden: Callable[[str, str], None], stand_in: AdminStandIn) -> None:
    result = slotgate("status")
    assert result.exit_code == 0
    golden("status.txt", result.stdout)


def test_json(slotgate: Slotgate, golden: Callable[[str, str], None], stand_in: AdminStandIn) -> None:
    result = slotgate("status", "--json")
    assert result.stderr == ""
    golden("status.json", result.stdout)


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_verbose(slotgate: Slotgate, golden: Callable[[str, str], None], stand_in: AdminStandIn, flag: str) -> None:
    golden("status-verbose.txt", slotgate("status", flag).stdout)


def test_no_control_character_reaches_the_terminal(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    backend = stand_in.status.backends[1]
    backend.last_error, backend.warnings = "\x1b[2J gone", ["\x07"]
    stand_in.status.warnings = ["\x1b]0;x"]
    assert slotgate("status", "-v").stdout.replace("\n", "").isprintable()


def test_what_stays_down_says_what_to_do(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    backend = stand_in.status.backends[0]
    backend.health, backend.state, backend.last_error = "down", "failed", "killed by SIGKILL"
    assert "gpu-0: killed by SIGKILL; it stays down until `slotgate restart gpu-0`\n" in slotgate("status").stdout


def test_exit_status_tells_of_problems(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.status.backends[0].health = "down"
    stand_in.status.backends[0].last_error = "out of memory"
    result = slotgate("status")
    assert result.exit_code == 1
    assert "gpu-0: out of memory" in result.stdout
    assert slotgate("status", "--json").exit_code == 1
    backend = stand_in.status.backends[0]
    backend.health, backend.state, backend.last_error = "starting", "starting", None
    assert slotgate("status").exit_code == 0  # it may load its model
    backend.last_error = "exited with status 1"
    assert slotgate("status").exit_code == 1  # and the next try has not answered yet
    backend.state, backend.last_error = "not-answering", "cannot connect to http://a:1"
    result = slotgate("status")
    assert result.exit_code == 1
    assert "gpu-0: cannot connect to http://a:1\n" in result.stdout
    assert "   not-answering   " in result.stdout
    backend.last_error = None
    stand_in.status.backends[0].health = "draining"
    assert slotgate("status").exit_code == 0
    stand_in.status.store.up = False
    stand_in.status.warnings = ["the store is gone"]
    result = slotgate("status")
    assert result.exit_code == 1
    assert "store DOWN" in result.stdout
    assert "slotgate: the store is gone" in result.stdout
