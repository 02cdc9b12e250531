"""The demo: a table on real engines, and clear messages where it cannot run."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.demo import _server_timing
from tests.wait import until_sync


def demo(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "proxy", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "120"},
        start_new_session=True,
    )


@pytest.mark.real
@pytest.mark.timeout(240)
def test_once_prints_the_table_and_ends(tmp_path: Path) -> None:
    process = demo(tmp_path, "--once", "--listen=127.0.0.1:0", "--requests=5")
    output, _ = process.communicate(timeout=200)

    assert process.returncode == 0, output
    rows = re.findall(r"^ +\d+ +(cpu-[01]) +\d+ +\d+ +\d+ +\d+ +\d+$", output, re.MULTILINE)
    assert len(rows) == 5
    assert set(rows) == {"cpu-0", "cpu-1"}
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_on_until_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    process = demo(tmp_path, "--listen=127.0.0.1:0", "--requests=1", "--backends=1")
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("logs:"):
            break
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)

    assert process.returncode == 0, rest
    assert any("/api/generate" in line for line in lines)
    until_sync(lambda: not any(tmp_path.iterdir()), "the state is removed")


def test_a_taken_port_says_how_to_take_another(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = demo(tmp_path, "--once", f"--listen={listen}")
        output, _ = process.communicate(timeout=30)

    assert process.returncode == 1
    assert f"cannot listen on {listen}" in output
    assert "LISTEN=" in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "queued_ms"),
    [("queue;dur=12.5, first;dur=40", 12.5), ("first;dur=40", 0.0), ("queue;dur=soon", 0.0), ("", 0.0)],
)
def test_the_time_in_the_line_is_read_from_the_header(header: str, queued_ms: float) -> None:
    assert _server_timing(header, "queue") == queued_ms
