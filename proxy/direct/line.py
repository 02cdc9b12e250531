"""A connection kept to another proxy of this box, over which we tell it things. Dials again when it breaks.

What was told while it is not connected is lost: whoever uses it begins anew with all that it has. A proxy that does not
read what it is told is cut off.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

from proxy.direct.frames import FORMAT, Frame, FrameError, Greeting, Welcome, encoded, read_frame

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
GREET_S = 1.0
"""Longest wait for the answer to a greeting."""
UNREAD_MAX_BYTES = 8 * 1024 * 1024
"""Of what we told and the other has not read: beyond it the other is cut off."""


class Line:
    """One way to one other proxy."""

    def __init__(self, path: str, *, fleet: str, owner: str, other: str, on_change: Callable[[], None]) -> None:
        """Nothing yet; `keep` dials. `owner` is ours.

        `on_change` is called when it is connected, broken, or known to lead to nobody.
        """
        self.path = path
        self.is_gone = False
        """Once it was connected; now nobody listens there: that process has ended."""
        self._greeting = encoded(Greeting(FORMAT, fleet, owner, other))
        self._other = other
        self._on_change = on_change
        self._writer: asyncio.StreamWriter | None = None
        self._was_connected = False
        self._wanted_now = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether what is told goes out."""
        return self._writer is not None

    def hurry(self) -> None:
        """Dial now if it is not connected: the other one is there."""
        self._wanted_now.set()

    def tell(self, frame: Frame) -> None:
        """Send a frame, or nothing while it is not connected."""
        try:
            self.send(encoded(frame))
        except FrameError:
            self._cut()

    def send(self, data: bytes) -> None:
        """Send an encoded frame, or nothing while it is not connected."""
        if self._writer is None:
            return
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > UNREAD_MAX_BYTES:
            self._cut()

    async def keep(self) -> None:
        """Dial, stay connected, dial again; until cancelled."""
        loop, backoff_s = asyncio.get_running_loop(), BACKOFF_FIRST_S
        while True:
            self._wanted_now.clear()
            begun_s = loop.time()
            await self._once()
            if loop.time() - begun_s > BACKOFF_MAX_S:
                backoff_s = BACKOFF_FIRST_S  # it broke after a good time
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s * random.uniform(0.8, 1.2)):  # noqa: S311 - jitter, no secret
                    await self._wanted_now.wait()
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _once(self) -> None:
        """One connection, from its beginning to its end."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(GREET_S):
                reader, writer = await asyncio.open_unix_connection(self.path)
                writer.write(self._greeting)
                answer = await read_frame(reader)
            if answer == Welcome(self._other):
                self._writer, self._was_connected, self.is_gone = writer, True, False
                self._on_change()
                await reader.read(1)  # nothing more is said: this is the end of it
        except (FileNotFoundError, ConnectionRefusedError):
            self._note_gone()
        except (OSError, FrameError, asyncio.IncompleteReadError):
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
                self._ended(writer)

    def _note_gone(self) -> None:
        if self._was_connected and not self.is_gone:
            self.is_gone = True
            self._on_change()

    def _cut(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._ended(self._writer)

    def _ended(self, writer: asyncio.StreamWriter) -> None:
        if self._writer is writer:
            self._writer = None
            self._on_change()
