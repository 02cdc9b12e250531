"""The launcher: what it becomes, and that it ends with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from proxy.store import launcher
from tests.wait import until_sync

LAUNCHER = str(Path(launcher.__file__))


def test_it_becomes_the_program_with_its_arguments() -> None:
    command = [sys.executable, "-I", "-S", LAUNCHER, str(os.getpid()), "/bin/echo", "one", "two"]

    assert subprocess.run(command, capture_output=True, check=True).stdout == b"one two\n"


def test_a_program_that_cannot_run_is_named() -> None:
    command = [sys.executable, "-I", "-S", LAUNCHER, str(os.getpid()), "/none"]

    done = subprocess.run(command, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (1, b"cannot run /none: No such file or directory\n")


def test_a_parent_that_is_gone_already_means_not_to_start() -> None:
    command = [sys.executable, "-I", "-S", LAUNCHER, "1", "/bin/echo", "one"]

    done = subprocess.run(command, capture_output=True, check=False)

    assert done.returncode != 0
    assert done.stdout == b""


def test_the_program_ends_when_its_parent_is_killed() -> None:
    script = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-I', '-S', {LAUNCHER!r}, str(os.getpid()), '/bin/sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until_sync(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes(), "it became the program")

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    until_sync(lambda: not running(child), "it ended")
    parent.stdout.close()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
