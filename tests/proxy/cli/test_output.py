"""What the command does when nobody takes what it prints."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.admin_stand_in import AdminStandIn

PRINTING = [("version",), ("version", "--json"), ("--version",), ("config", "schema"), ("config", "docs"), ("--help",)]
BROKEN = ["full disk", "reader that left"]
REASONS = {"full disk": "No space left on device", "reader that left": "Broken pipe"}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A descriptor that takes nothing, and how the system calls that."""
    if request.param == "full disk":
        writes = os.open("/dev/full", os.O_WRONLY)
    else:
        reads, writes = os.pipe()
        os.close(reads)
    yield writes, REASONS[request.param]
    os.close(writes)


def run(stdout: int, *arguments: str, unbuffered: str = "") -> tuple[int, str]:
    """Exit status and stderr."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "proxy", *arguments]
    result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=env)
    return result.returncode, result.stderr


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_nobody_takes(broken: tuple[int, str], arguments: tuple[str, ...]) -> None:
    assert run(broken[0], *arguments) == (1, f"error: cannot write to stdout: {broken[1]}\n")


@pytest.mark.parametrize("command", [("status",), ("ps", "-r"), ("list",), ("drain", "gpu-0"), ("restart", "gpu-0")])
def test_an_answer_of_the_proxy_that_nobody_takes(
    stand_in: AdminStandIn, broken: tuple[int, str], command: tuple[str, ...]
) -> None:
    status, stderr = run(broken[0], *command, f"--socket={stand_in.path}")
    assert (status, stderr.splitlines()[-1]) == (1, f"error: cannot write to stdout: {broken[1]}")
    assert "Traceback" not in stderr


def test_without_a_buffer(broken: tuple[int, str]) -> None:
    assert run(broken[0], "version", unbuffered="1") == (1, f"error: cannot write to stdout: {broken[1]}\n")


def test_usage_errors_stay_what_they_are(broken: tuple[int, str]) -> None:
    status, stderr = run(broken[0], "nonsense")
    assert status == 2
    assert "nonsense" in stderr


def test_a_reader_that_wants_little() -> None:
    command = f"{sys.executable} -m proxy config schema | head -c 1"
    result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout == "{"
    assert "Traceback" not in result.stderr


def test_no_stdout_at_all() -> None:
    command = f"{sys.executable} -m proxy version >&-"
    result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_what_can_be_written(tmp_path: Path) -> None:
    """What can be written stays as it is, to the last byte."""
    file = tmp_path / "out"
    with file.open("w") as stdout:
        assert run(stdout.fileno(), "config", "docs")[0] == 0
    assert file.read_text().endswith("\n")
