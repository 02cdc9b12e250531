"""Lines to a file descriptor from a thread of its own. Owns buffering and a broken or slow reader; not what lines say.

A full pipe, a stopped terminal or a slow disk blocks a write. That must never stop the event loop, so the loop only
appends to a list and a thread writes; and it must never kill the proxy, so a broken output loses lines, counted.
"""

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque

LINGER_S = 0.05
"""Lines gather this long before they are written together."""
GONE = frozenset({errno.EPIPE, errno.EBADF, errno.ENXIO})
"""Errors after which nothing can be written any more; others, such as a full disk, may pass."""
RETRY_S = 0.5
"""Pause after an error that may pass."""


class Output:
    """A bounded buffer of whole lines before a file descriptor. `write` may be called from any thread."""

    def __init__(self, fd: int, *, limit_bytes: int = 8 * 1024 * 1024, linger_s: float = LINGER_S) -> None:
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._linger_s = linger_s
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._filled = threading.Event()
        self._closing = threading.Event()
        self._gone = False
        self.lost = 0
        """Lines that could not be written since the last one that said so."""
        self._thread = threading.Thread(target=self._run, name="log-output", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        """Where lines go."""
        return self._fd

    @property
    def gone(self) -> bool:
        """The reader went away; lines are discarded."""
        return self._gone

    def write(self, line: bytes) -> None:
        """Add a line (with its newline). Never blocks, never raises; beyond the bound the line is lost."""
        if self._gone or self._waiting_bytes > self._limit_bytes:
            self.lost += 1
            return
        # Additions from two threads may rarely miscount by a line: the bound is not exact, and _take sets it right.
        self._waiting_bytes += len(line)
        self._lines.append(line)
        if not self._filled.is_set():
            self._filled.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, for at most this long."""
        self._closing.set()
        self._filled.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._gone:
            self._filled.wait()
            if not self._closing.wait(self._linger_s) or self._lines:
                self._filled.clear()  # before taking: a line that comes now sets it again
                self._put(self._take())
            if self._closing.is_set() and not self._lines:
                return

    def _take(self) -> bytes:
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        self._waiting_bytes = 0
        if self.lost and lines:
            lost, self.lost = self.lost, 0
            lines.insert(0, b'{"level":"warning","event":"log lines lost","logger":"slotgate.log","lines":%d}\n' % lost)
        return b"".join(lines)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._gone:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # someone made the terminal or pipe non-blocking
                with contextlib.suppress(OSError):
                    select.select([], [self._fd], [], RETRY_S)
            except OSError as error:
                if error.errno in GONE or self._closing.is_set():
                    self._gone = True
                    self.lost += bytes(view).count(b"\n") + len(self._lines)
                    self._lines.clear()
                else:
                    time.sleep(RETRY_S)
