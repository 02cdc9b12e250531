"""The client side's listener: aiohttp's server with what a relay needs beside it. Must not know engines or dialects."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""What a slow client may leave unread before its engine is paused: a whole answer of some thousand tokens, so that a
slow reader does not hold a slot longer than the engine needs."""


class ClientConnection(web.RequestHandler):
    """aiohttp's connection of one client, with the counters and the one hook that relay and sweeper read."""

    __slots__ = (
        "answering",
        "behind",
        "note",
        "on_drained",
        "partial_head",
        "received_bytes",
        "sent_bytes",
        "unfinished",
        "wire",
    )

    def __init__(self, frontend: "Frontend", **kwargs: Any) -> None:
        super().__init__(frontend, **kwargs)
        self.wire: asyncio.Transport | None = None
        """Like `transport`, but kept until the socket is really closed: aiohttp forgets its own at `close`."""
        self.on_drained: Callable[[], None] | None = None
        """Called when the client has read enough for writing to go on."""
        self.behind = False
        """The client does not keep up with what is written: stop writing until `on_drained`."""
        self.answering = False
        """Bytes of an answer went out past aiohttp: it must not write a response of its own any more."""
        self.unfinished = False
        """That answer has not ended: the connection must not be closed so that it looks as if it had."""
        self.received_bytes = 0
        self.sent_bytes = 0
        """Written past aiohttp; what has left the process is this less the transport's buffer."""
        self.partial_head = False
        """Some of the next request's head has come."""
        self.note: Any = None
        """The sweeper's memory of this connection."""

    @property
    def frontend(self) -> "Frontend | None":
        """Whose connection it is; None once it is lost."""
        return self._manager if isinstance(self._manager, Frontend) else None

    @property
    def request(self) -> web.BaseRequest | None:
        """The request being answered."""
        return self._current_request

    @property
    def requests(self) -> int:
        """Heads that came whole so far."""
        return self._request_count

    @property
    def waiting(self) -> bool:
        """Nothing is being answered, and nothing is queued to be."""
        return self._current_request is None and not self._messages and not self._request_in_progress

    @property
    def body_wanted(self) -> bool:
        """The request's body has not come whole, and nothing on our side keeps it from coming."""
        request = self._current_request
        return request is not None and not self._reading_paused and not request.content.is_eof()

    @property
    def unsent_bytes(self) -> int:
        """Written, but still in this process: the client does not read as fast."""
        return self.wire.get_write_buffer_size() if self.wire is not None else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.wire = self.transport
        frontend = self.frontend
        if self.wire is not None and frontend is not None:
            high = frontend.write_buffer_bytes
            self.wire.set_write_buffer_limits(high=high, low=high // 4)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.wire = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        waiter, before = self._waiter, self._request_count
        idle = waiter is not None and not waiter.done()
        super().data_received(data)
        self.partial_head = idle and self._request_count == before
        if self._request_count != before and (self._current_request is not None or len(self._messages) > 1):
            self._fail_broken_bodies()

    def _fail_broken_bodies(self) -> None:
        """Wake whoever reads a body that can have no end: aiohttp reports broken chunks as a next request only."""
        bodies = [body for _, body in self._messages]
        if self._current_request is not None:
            bodies.insert(0, self._current_request.content)
        for body in bodies[:-1]:
            if not body.is_eof():
                body.set_exception(web.RequestPayloadError("the request's body is malformed"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self.behind = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self.behind = False
        if self.on_drained is not None:
            self.on_drained()

    def abort(self) -> None:
        """Reset the connection at once: unsent bytes are lost, and no answer in progress can look finished."""
        wire, self.wire = self.wire, None
        self.unfinished = False
        if wire is not None:
            # The transport's `abort` alone drops what is unsent, and then ends the connection in the proper way.
            _reset_at_close(wire)
            wire.abort()

    def close_unfinished(self, *, reset: bool) -> None:
        """Close once what was written has left, with a reset in place of the end if asked."""
        self.unfinished = False
        if self.wire is None:
            return
        if reset:
            _reset_at_close(self.wire)
        self.wire.close()

    def force_close(self) -> None:
        """Close; with a reset where an answer is cut, by a stop for instance: HTTP/1.0 knows no other sign of that."""
        if self.unfinished:
            self.abort()
        super().force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Word aiohttp's answer to an exception; not once our own answer has begun, which it knows nothing of."""
        if self.answering:
            self.logger.error("request failed while its answer was going out", exc_info=exc)
            self.abort()
            raise ConnectionError("an answer has begun; no other can follow")
        if isinstance(exc, HttpProcessingError):
            # A client's malformed request is no news for our log, where it could flood.
            response = web.Response(status=status, text=f"{status}: {exc.message.splitlines()[0]}\n")
            response.force_close()
            return response
        return super().handle_error(request, status, exc, message)


def _reset_at_close(wire: asyncio.Transport) -> None:
    """Have the socket closed with RST in place of FIN; Unix sockets know none."""
    sock = wire.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Frontend(web.Server):
    """aiohttp's low-level server, set up for relaying: give it to `loop.create_server` or `create_unix_server`.

    A client that leaves cancels its request. Bodies are not decompressed. Limits on heads are a little above those of
    `intake.check_request`, which words the refusal; timeouts are the sweeper's.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
    ) -> None:
        super().__init__(
            answer,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=7 * 24 * 3600.0,
            lingering_time=2.0,
            max_line_size=16 * 1024,
            max_field_size=40 * 1024,
            max_headers=200,
        )
        self.write_buffer_bytes = write_buffer_bytes
        self.draining = False
        """Set it to have every answer from now on close its connection."""

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    @property
    def clients(self) -> list[ClientConnection]:
        """The open connections."""
        return [connection for connection in self.connections if isinstance(connection, ClientConnection)]
