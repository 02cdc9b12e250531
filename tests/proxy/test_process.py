"""One process and its exit status. Problems of the configuration and the machine: test_app, as users see them."""

import socket
from pathlib import Path

import pytest

from proxy import process
from proxy.workers.worker import WorkerError
from tests.slotgate_process import slotgate
from tests.wait import until_sync


def test_a_worker_without_orders_is_told_to_nobody_but_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    assert process.run_worker(theirs.detach()) == 1
    assert "slotgate: worker: the main process's orders are not understood" in capfd.readouterr().err


def test_workers_that_do_not_come_up_are_a_problem_of_the_start() -> None:
    assert WorkerError in process.START_ERRORS


def test_a_worker_s_lines_name_it_also_on_a_terminal(tmp_path: Path) -> None:
    state = tmp_path / "state"
    config = (
        f'listen = "127.0.0.1:0"\nstate_dir = "{state}"\nadmin_socket = "{state}/admin.sock"\nworkers = 2\n'
        '[log]\nformat = "console"\n[[backends]]\nurl = "http://127.0.0.1:1"\n'
    )
    with slotgate(tmp_path, config) as running:
        until_sync(lambda: bool(running.backends()), "the proxy answers", 30)
        until_sync(lambda: running.log.read_text().count("serving") == 3, "all serve", 30)
    lines = running.log.read_text().splitlines()
    assert {line[:4] for line in lines if line.startswith("[")} == {"[1] ", "[2] "}
    assert running.process.returncode == 0
