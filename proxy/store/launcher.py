"""Becomes another program that ends with its parent. Runs as a script in a bare interpreter; imports nothing of ours.

    python -I -S launcher.py PARENT_PID PROGRAM ARGUMENT...

The kernel sends SIGTERM when the parent dies, however it dies, and the mark survives exec. Done here and not between
fork and exec of the parent, where Python code may deadlock on the locks of its other threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def main(arguments: list[str]) -> None:
    """Mark this process to end with its parent, then become the program."""
    parent, program = int(arguments[0]), arguments[1]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the mark was set
        raise SystemExit("parent is gone")
    try:
        os.execv(program, arguments[1:])  # noqa: S606
    except OSError as error:
        raise SystemExit(f"cannot run {program}: {error.strerror}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
