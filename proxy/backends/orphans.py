"""Owns finding and ending what an earlier run left behind: engines whose keeper or slotgate was killed.

A process is ours if its environment carries our marker (every engine is started with it and passes it on to its
children), or if the pid file names it and it started when that file says. Knows nothing of what engines do.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from proxy.backends.processes import ProcessTable

MARKER = "SLOTGATE_BACKEND"
"""Environment variable of every process that slotgate starts: `<id of the state directory>/<backend>`."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process that cannot be confused with a later one of the same number."""

    pid: int
    started: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none (or only its corpse)."""
    process = ProcessTable().process(pid)
    return None if process is None else process.started


def record(pid: int) -> ProcessRecord | None:
    """Describe a running process; None if it is gone."""
    started = start_ticks(pid)
    return None if started is None else ProcessRecord(pid, started)


def marked(prefix: str) -> list[ProcessRecord]:
    """Running processes whose environment marker is the given one, or below it where it ends with a slash."""
    wanted = f"{MARKER}={prefix}".encode()
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a loop over all processes
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if any(v == wanted or (wanted.endswith(b"/") and v.startswith(wanted)) for v in variables):
                process = record(int(entry))
                if process is not None:
                    found.append(process)
    return found


def _open(processes: Iterable[ProcessRecord]) -> dict[int, int]:
    """Descriptor -> pid of those that still run; a descriptor never comes to mean another process."""
    handles = {}
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            if start_ticks(process.pid) == process.started:
                handles[handle] = process.pid
            else:
                os.close(handle)
    return handles


def _await_end(handles: dict[int, int], timeout_s: float) -> None:
    """Wait until all have ended or the time is over; closes and removes those that have."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while handles and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            os.close(handle)
            del handles[handle]


def _signal(handles: dict[int, int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, number)


def end(processes: Iterable[ProcessRecord], grace_s: float) -> list[int]:
    """SIGTERM, and after the grace SIGKILL; blocks until they are gone. Returns the pids that it ended.

    Raises:
        TimeoutError: a process outlives SIGKILL by ten seconds (it hangs in the kernel, or is not ours to kill).
    """
    handles = _open(processes)
    ended = sorted(handles.values())
    try:
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            _signal(handles, number)
            _await_end(handles, patience_s)
        if handles:
            raise TimeoutError(f"processes {sorted(handles.values())} of an earlier run do not end")
    finally:
        for handle in handles:
            os.close(handle)
    return ended


def sweep(prefix: str, recorded: Iterable[ProcessRecord] = (), grace_s: float = 3.0) -> list[int]:
    """End all leftovers with this marker, and those that a pid file recorded. Blocks; call it in a thread.

    Raises:
        TimeoutError: as `end`.
    """
    ended: list[int] = []
    candidates = list(recorded)
    while True:  # an ending parent may leave a child that nobody had seen
        found = {process.pid: process for process in (*candidates, *marked(prefix))}
        stopped = end(found.values(), grace_s)
        if not stopped:
            return ended
        ended += stopped
        candidates = []
