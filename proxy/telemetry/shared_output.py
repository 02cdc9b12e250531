"""Lines of several processes to one file descriptor: each whole, each telling which process wrote it.

Owns how lines of one process stay apart from those of others; buffering is `output`'s business.
"""

import select
from typing import Literal

from proxy.telemetry.output import Output

ATOMIC_BYTES = select.PIPE_BUF
"""What a pipe takes without mixing it with what others write."""


class SharedOutput(Output):
    """An `Output` that others write to as well."""

    def __init__(self, fd: int, worker: int | None, form: Literal["json", "console"]) -> None:
        """`worker` is named in each line; None: the main process, whose lines are as they are."""
        self._begin = b""
        self._skip = 0
        if worker is not None:
            self._begin, self._skip = (b'{"worker":%d,' % worker, 1) if form == "json" else (b"[%d] " % worker, 0)
        super().__init__(fd)

    def write(self, line: bytes) -> None:
        """Add a line, with the worker's number in it. Never blocks, never raises."""
        super().write(self._begin + line[self._skip :] if self._begin else line)

    def _put(self, data: bytes) -> None:
        """Write whole lines, as many at once as cannot get mixed with those of others."""
        while len(data) > ATOMIC_BYTES:
            cut = data.rfind(b"\n", 0, ATOMIC_BYTES) + 1 or data.find(b"\n") + 1 or len(data)
            super()._put(data[:cut])
            data = data[cut:]
        if data:
            super()._put(data)
