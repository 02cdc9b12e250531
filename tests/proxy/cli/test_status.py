"""`slotgate status`, golden; and its exit status, which monitoring reads."""

from collections.abc import Callable

import pytest

from proxy.admin_api import WorkerStatus
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


def test_other_proxies_and_trouble_with_the_store_are_told(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    store = stand_in.status.store
    store.proxies, store.up, store.trouble = 3, False, "unreachable: refused; start it, or correct store.url"
    told = slotgate("status").stdout
    assert "store DOWN" in told
    assert "store: unreachable: refused; start it, or correct store.url; each proxy goes on with its share" in told
    assert "fleet default: 3 proxies" in told


def test_a_running_limit_is_explained_where_it_is_not_the_number_of_slots(
    slotgate: Slotgate, stand_in: AdminStandIn
) -> None:
    assert "running limit" in slotgate("status").stdout
    stand_in.status.backends[0].running_limit = 16
    assert "running limit" not in slotgate("status").stdout
    stand_in.status.backends[0].running_limit = stand_in.status.backends[0].slots = 0  # it has not told yet
    assert "running limit" not in slotgate("status").stdout


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


def test_workers_in_one_line(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    assert "workers" not in slotgate("status").stdout
    stand_in.status.workers = [
        WorkerStatus(1, 11, "serving", 1.0, warm=True),
        WorkerStatus(2, 12, "serving", 1.0, warm=False),
        WorkerStatus(2, 13, "retiring", 9.0, warm=True),
    ]
    assert slotgate("status").stdout.splitlines()[2] == "workers: 2 serving, 1 retiring, 1 of them not warm"


def test_why_only_leases_tell_what_is_busy(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    backend = stand_in.status.backends[0]
    backend.slot_source, backend.slot_source_why = "leases", "no permission to read the process of PID 123"
    line = "gpu-0: only slotgate's own leases tell what is busy: no permission to read the process of PID 123\n"
    assert line in slotgate("status").stdout
    backend.slot_source, backend.slot_source_why = "children", "no model is loaded"
    assert "no model is loaded" not in slotgate("status").stdout
    assert "children: no model is loaded\n" in slotgate("status", "-v").stdout
