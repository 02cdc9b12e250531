"""Two connections joined: what comes in on one goes out on the other. Bytes only; must not know what they say.

Everything happens within read events: no task per passage, and nothing is kept beyond what a side that does not keep up
leaves in its transport before the other one is not read any more.
"""

import asyncio
import socket
import struct
from typing import Any, Final

BUFFER_BYTES: Final = 64 * 1024
"""What may wait for one side before the other is not read any more."""


class Side(asyncio.Protocol):
    """One end of a passage."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: Side | None = None
        self.full = False
        """It does not keep up with what is written to it."""
        self._resetting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = transport
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES, low=BUFFER_BYTES // 4)

    def data_received(self, data: bytes) -> None:
        """The hot path."""
        other = self.other
        if other is None:
            self.abort()  # nobody asked for it
        elif other.open:
            other.transport.write(data)

    def pause_writing(self) -> None:
        """Too much waits to go out."""
        self.full = True
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        """It has gone out."""
        self.full = False
        if self._resetting:
            self._reset_now()
        elif self.other is not None:
            self.other.go_on()

    @property
    def open(self) -> bool:
        """It can be written to."""
        return self.transport is not None and not self.transport.is_closing()

    def hold(self) -> None:
        """Read no more: what came cannot be written."""
        if self.open:
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self.open:
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Close with a reset in place of an end, behind what waits to go out."""
        if not self.open or self._resetting:
            return
        self._resetting = True
        if self.transport.get_write_buffer_size():
            # Have the transport tell when it has gone out. Plain ones pause above the limit, those of TLS at it.
            self.transport.set_write_buffer_limits(high=0 if self.transport.can_write_eof() else 1, low=0)
        if not self.full:
            self._reset_now()

    def _reset_now(self) -> None:
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()  # not `close`, which under TLS would say that this is the proper end


class EngineSide(Side):
    """The end at the engine. Its own end of stream, or its loss, ends the passage."""

    def __init__(self, linger_s: float) -> None:
        super().__init__()
        self._linger_s = linger_s
        self._lingering: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool:
        """The engine has said all: the other side is told, and what it still sends is the engine's to refuse."""
        other = self.other
        if other is None or not other.open:
            return False
        if not other.transport.can_write_eof():
            other.transport.close()  # TLS knows only a common end; what was written goes out before
            return False
        other.transport.write_eof()
        self._linger(other)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Closed: by the engine, or because the other side has left."""
        self.transport = None
        if self._lingering is not None:
            self._lingering.cancel()
        other, self.other = self.other, None
        if other is None:
            return
        other.other = None
        if not other.open:
            return
        if error is None:
            other.transport.close()
        else:
            other.reset()

    def leave(self) -> None:
        """The other side has left: the engine's connection closes at once."""
        other, self.other = self.other, None
        if other is not None:
            other.other = None
        self.abort()

    def _linger(self, other: Side) -> None:
        """Boxes close at the end of stream; for one that does not we do, once it has what was sent before."""

        def look() -> None:
            self._lingering = None
            if not other.open or self.transport is None:
                return
            if other.transport.get_write_buffer_size():
                self._linger(other)
            else:
                other.transport.close()
                self.leave()

        self._lingering = asyncio.get_running_loop().call_later(self._linger_s, look)
