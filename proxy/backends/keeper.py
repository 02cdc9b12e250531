"""Owns one engine's process tree: a small process between slotgate and the engine. Knows only the standard library.

Run by path (`python -I -S keeper.py ...`), so that it starts in milliseconds and needs nothing of slotgate.
Theory of operation. The keeper leads a session of its own and is its tree's *subreaper*: whatever the engine starts,
and however the middle of the tree dies, the rest becomes the keeper's child and is found. Three things end the tree:

- its standard input reaches end of file: slotgate is gone, be it by `kill -9`, and closed the other end of the pipe;
- SIGTERM or SIGINT: slotgate wants it to end (a second one: at once);
- the engine's own process ends: children that it left (the llama-server of a killed `ollama serve`) go too.

The engine gets SIGTERM, and after a grace the whole tree SIGKILL. If the keeper itself is killed, the kernel sends the
engine its parent-death signal; what that leaves is found by slotgate through the environment marker (`orphans`).
Engine output goes to a log file of bounded size. What happens is told as JSON lines on standard output, and at last
by the exit status: the engine's own, or 128 + the signal that ended it.
"""

import argparse
import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import IO, Literal, NoReturn

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_BYTES = 65536


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def parents() -> dict[int, int]:
    """Every process of this machine that we can see, and its parent."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib would make this loop ten times slower
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                # the command name in parentheses may hold anything, spaces and parentheses included
                found[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(root: int) -> set[int]:
    """All processes below one, dead ones that nobody has waited for included."""
    family = {root}
    tree = parents()
    grown = True
    while grown:
        more = {pid for pid, parent in tree.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return family - {root}


class Log:
    """A log file that is renamed to NAME.1 when it reaches its size; two such files are the bound."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._size = 0
        self._open("ab")

    def _open(self, mode: Literal["ab", "wb"]) -> None:
        self._file = None
        with contextlib.suppress(OSError):  # an engine is worth more than its log
            self._file = self._path.open(mode, buffering=0)
            self._size = self._file.tell()
            os.dup2(self._file.fileno(), 2)  # what goes wrong in the keeper itself is to be found there too

    def write(self, data: bytes) -> None:
        """Append; lost where the disk is full, since the engine must never wait for its log."""
        if self._file is None:
            self._open("ab")
        elif self._size + len(data) > self._max_bytes:
            self._rotate(self._file)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._size += self._file.write(data) or 0

    def _rotate(self, full: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            full.close()
        try:
            self._path.replace(f"{self._path}.1")
        except OSError:
            self._open("wb")  # rather lost than without bound
        else:
            self._open("ab")

    def note(self, text: str) -> None:
        """A line of the keeper's own."""
        self.write(f"slotgate keeper: {text}\n".encode())


class Keeper:
    """Runs the engine, then turns until the whole tree is gone."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._log = Log(options.log, options.log_bytes)
        self._engine = 0
        self._status: int | None = None
        self._kill_at = float("inf")
        self._selector = selectors.DefaultSelector()
        self._output, self._engine_output = os.pipe()
        self._woken, self._wakes = os.pipe()

    def run(self) -> int:
        """Start the engine and keep it; returns the keeper's exit status."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if self._options.parent:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # beside the pipe: a fork of slotgate could hold its other end open
            if os.getppid() != self._options.parent:
                return 1
        for descriptor in (self._output, self._woken, self._wakes):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for descriptor in (0, self._output, self._woken):
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._engine = self._start()
        os.close(self._engine_output)
        self._tell({"started": self._engine})
        while self._status is None:
            timeout = None if self._kill_at == float("inf") else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._selector.select(timeout):
                self._turn(key.fd)
            if time.monotonic() >= self._kill_at:
                self._kill_at = float("inf")
                self._log.note("the engine did not end by itself: killed")
                self._kill_tree()
            self._reap()
        self._kill_tree()
        self._drain()
        status = self._status
        self._tell({"exited": status})
        return status if status >= 0 else 128 - status

    def _turn(self, descriptor: int) -> None:
        if descriptor == self._output:
            self._copy_output()
        elif descriptor == self._woken:
            with contextlib.suppress(BlockingIOError):
                for number in os.read(self._woken, 4096):
                    if number in {signal.SIGTERM, signal.SIGINT}:
                        self._end(f"got {signal.Signals(number).name}")
        elif not os.read(0, 4096):
            self._selector.unregister(0)
            self._end("slotgate is gone")

    def _start(self) -> int:
        argv = self._options.argv
        reads, writes = os.pipe()
        ours = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_engine(argv, ours, writes)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            if problem := pipe.read():  # closed by a successful exec
                self._log.note(f"cannot start {argv[0]}: {problem.decode()}")
                self._tell({"failed": f"cannot start {argv[0]}: {problem.decode()}"})
        return pid

    def _become_engine(self, argv: list[str], keeper: int, problem: int) -> NoReturn:
        try:
            prctl(PR_SET_PDEATHSIG, self._options.death_signal)
            if os.getppid() != keeper:
                os._exit(127)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(self._engine_output, 1)
            os.dup2(self._engine_output, 2)
            os.execvp(argv[0], argv)  # noqa: S606 - the configured engine, no shell
        except OSError as error:
            os.write(problem, (error.strerror or repr(error)).encode())
        finally:
            os._exit(127)

    def _end(self, because: str) -> None:
        if self._kill_at != float("inf"):
            self._kill_at = time.monotonic()  # asked again: at once
            return
        self._log.note(f"{because}: ending the engine, process {self._engine}")
        self._kill_at = time.monotonic() + self._options.grace
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._engine, signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._engine:
                    self._status = os.waitstatus_to_exitcode(status)

    def _kill_tree(self) -> None:
        """SIGKILL until nothing is left: a process may fork while we count."""
        while True:
            self._reap()
            remaining = descendants(os.getpid())
            if not remaining:
                return
            if self._status is not None:
                self._log.note(f"ending what the engine left: {sorted(remaining)}")
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(-1, 0)
                if pid == self._engine:
                    self._status = os.waitstatus_to_exitcode(status)

    def _copy_output(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(self._output, _READ_BYTES):
                self._log.write(data)
                return True
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._output)  # the engine closed its output; it may well live on
        return False

    def _drain(self) -> None:
        while self._copy_output():
            pass

    def _tell(self, fact: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # nobody there to hear it
            os.write(1, f"{json.dumps(fact)}\n".encode())


def main() -> int:
    """Read the command line and keep one engine."""
    parser = argparse.ArgumentParser(prog="slotgate-keeper", allow_abbrev=False)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--log-bytes", type=int, default=8 * 2**20)
    parser.add_argument("--grace", type=float, default=10.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--death-signal", type=int, default=int(signal.SIGKILL), help="for the engine if we are killed")
    parser.add_argument("--parent", type=int, default=0, help="process whose death ends us")
    parser.add_argument("argv", nargs="+")
    return Keeper(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
