"""Closes client connections that hold a socket without using it. Owns the limits; must not know requests' meaning.

aiohttp never times out a half-sent head, and no per-read timer stops a client that sends one byte a minute. One pass
a second over all connections does, without a timer per connection.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from proxy.relay.frontend import ClientConnection, Frontend

BODY_WINDOW_BYTES: Final = 4096
"""What a body must bring per `body_timeout_s`: 136 bytes a second at the default, slower than any modem."""
_TIMED_OUT: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\n"
    b"408: request timeout\n"
)


class _Note:
    """What the last pass saw of one connection."""

    __slots__ = ("body_bytes", "body_since_s", "drained", "drained_at_s", "idle_since_s", "partial_since_s", "requests")

    def __init__(self, connection: ClientConnection, now_s: float) -> None:
        self.requests = connection.requests
        self.idle_since_s = now_s
        self.partial_since_s: float | None = None
        self.body_since_s: float | None = None
        self.body_bytes = 0
        self.drained = 0
        self.drained_at_s = now_s


class Sweeper:
    """Judges every connection of a frontend by what moved since it looked last."""

    def __init__(
        self,
        frontend: Frontend,
        *,
        header_timeout_s: float = 10.0,
        body_timeout_s: float = 30.0,
        idle_timeout_s: float = 75.0,
        write_timeout_s: float = 60.0,
        interval_s: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Set the limits.

        Args:
            frontend: whose connections.
            header_timeout_s: from the connection, or the first byte of a later request, to the end of its head.
            body_timeout_s: a body must bring `BODY_WINDOW_BYTES` or its end within this, again and again.
            idle_timeout_s: a kept-alive connection without a request.
            write_timeout_s: a client that reads nothing of what waits for it.
            interval_s: between two passes; limits are kept to this precision.
            clock: seconds; default: the running loop's.
        """
        self._frontend = frontend
        self.set_limits(
            header_timeout_s=header_timeout_s,
            body_timeout_s=body_timeout_s,
            idle_timeout_s=idle_timeout_s,
            write_timeout_s=write_timeout_s,
        )
        self._interval_s = interval_s
        self._clock = clock
        self.closed = 0
        """Connections closed so far."""

    def set_limits(
        self, *, header_timeout_s: float, body_timeout_s: float, idle_timeout_s: float, write_timeout_s: float
    ) -> None:
        """Judge by other limits from the next pass on, open connections included; see the constructor."""
        self._header_timeout_s = header_timeout_s
        self._body_timeout_s = body_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._write_timeout_s = write_timeout_s

    async def run(self) -> NoReturn:
        """Sweep for ever; for `Tasks.start`."""
        clock = self._clock or asyncio.get_running_loop().time
        while True:
            self.sweep(clock())
            await asyncio.sleep(self._interval_s)

    def sweep(self, now_s: float) -> None:
        """One pass over all connections."""
        for connection in self._frontend.clients:
            note = connection.note
            if note is None:
                note = connection.note = _Note(connection, now_s)
            if self._stuck_writing(connection, note, now_s):
                self.closed += 1
                connection.abort()
            elif connection.transport is not None and self._late(connection, note, now_s):
                self.closed += 1
                self._close(connection)

    def _stuck_writing(self, connection: ClientConnection, note: _Note, now_s: float) -> bool:
        unsent = connection.unsent_bytes
        drained = connection.sent_bytes - unsent
        if not unsent or drained != note.drained:
            note.drained, note.drained_at_s = drained, now_s
        return now_s - note.drained_at_s >= self._write_timeout_s

    def _late(self, connection: ClientConnection, note: _Note, now_s: float) -> bool:
        if not connection.waiting or connection.unsent_bytes:
            note.partial_since_s = None
            note.idle_since_s = now_s
            return self._body_late(connection, note, now_s)
        note.body_since_s = None
        if note.requests != connection.requests:
            note.requests = connection.requests
            note.idle_since_s = now_s
        if connection.requests == 0:
            return now_s - note.idle_since_s >= self._header_timeout_s
        if not connection.partial_head:
            note.partial_since_s = None
            return now_s - note.idle_since_s >= self._idle_timeout_s
        if note.partial_since_s is None:
            note.partial_since_s = now_s
        return now_s - note.partial_since_s >= self._header_timeout_s

    def _body_late(self, connection: ClientConnection, note: _Note, now_s: float) -> bool:
        if not connection.body_wanted:
            note.body_since_s = None
            return False
        received = connection.received_bytes
        if note.body_since_s is None or received - note.body_bytes >= BODY_WINDOW_BYTES:
            note.body_since_s, note.body_bytes = now_s, received
            return False
        return now_s - note.body_since_s >= self._body_timeout_s

    def _close(self, connection: ClientConnection) -> None:
        """Tell why, if a request was on its way and nothing of an answer is out; then close."""
        wire = connection.wire
        half_sent = (
            connection.partial_head
            or not connection.waiting
            or (connection.requests == 0 and connection.received_bytes)
        )
        if wire is not None and half_sent and not connection.answering:
            wire.write(_TIMED_OUT)
        connection.force_close()
