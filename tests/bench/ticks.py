"""Time finer than a millisecond, which is what event loops keep: a timerfd."""

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable


class Ticks:
    """Calls a function with the number of periods that have passed, as soon as there are any; `close` ends it."""

    def __init__(self, period_ns: int, tick: Callable[[int], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        spec = struct.pack("qqqq", 0, period_ns, 0, period_ns)
        if self._descriptor < 0 or libc.timerfd_settime(self._descriptor, 0, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "no timerfd")
        self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        self._tick(int.from_bytes(os.read(self._descriptor, 8), sys.byteorder))

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
