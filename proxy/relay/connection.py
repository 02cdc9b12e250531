"""One connection to an engine: writes a request, finds the answer's head and end. Must not know clients or retries."""

import asyncio
from typing import Protocol, cast

from proxy.endpoint import Endpoint
from proxy.relay.framing import MAX_HEAD_BYTES, ChunkedBody, FramingError, ReplyHead, parse_head


class Answer(Protocol):
    """Who takes an engine's answer. All calls come from within the socket's read event."""

    engine_bytes: int
    """Grows with every read: how the pool's sweep sees progress."""

    def head(self, head: ReplyHead, chunks: ChunkedBody | None) -> None:
        """The head, once; before any body. Interim answers (1xx) are left out."""
        ...

    def body(self, raw: bytes, body: bytes, last: bool) -> None:
        """Body bytes: as sent (chunk framing included, if the head said chunked) and decoded. `last`: the end."""
        ...

    def lost(self, error: Exception | None, *, untouched: bool) -> None:
        """The connection ended before the answer did. `untouched`: not a byte of the answer had come."""
        ...

    def broken(self, error: Exception) -> None:
        """What came cannot be understood, or the answer could not take it; the connection is gone."""
        ...

    def stalled(self, waited_s: float, *, in_head: bool) -> None:
        """Nothing came for too long; the connection is gone."""
        ...


class Home(Protocol):
    """Where a connection goes when its answer is complete, and what knows that it is gone."""

    def give(self, connection: "EngineConnection") -> None:
        """Take back an idle connection, to reuse or to close."""
        ...

    def forget(self, connection: "EngineConnection") -> None:
        """The connection is closed."""
        ...


class EngineConnection(asyncio.Protocol):
    """HTTP/1.1 over one socket, one request at a time."""

    __slots__ = (
        "_answer",
        "_bodiless",
        "_bytes_seen",
        "_chunks",
        "_head",
        "_home",
        "_keep_alive",
        "_left",
        "_loop",
        "_more",
        "_touched",
        "_transport",
        "_writable",
        "engine",
        "idle_since_s",
        "in_head",
        "moved_at_s",
        "paused",
    )

    def __init__(self, home: Home) -> None:
        self._home = home
        self.engine: Endpoint | None = None
        """How requests must name the engine, where the pool's endpoint does not tell: behind a gate."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._head = b""
        self._chunks: ChunkedBody | None = None
        self._left: int | None = None
        """Body bytes to come; None: until the engine closes."""
        self._bodiless = False
        self._keep_alive = False
        self._touched = False
        self._more = False
        """The request's body is not written whole: what follows on this connection would be part of it."""
        self._writable: asyncio.Future[None] | None = None
        """While the engine does not keep up with what is written."""
        self.in_head = True
        self.paused = False
        self.idle_since_s = 0.0
        self.moved_at_s = 0.0
        """When the sweep last saw progress."""
        self._bytes_seen = 0

    # What the exchange asks for.

    def send(self, method: str, head: bytes, body: bytes, answer: Answer, *, more: bool = False) -> None:
        """Write a request; the answer is told about everything that follows. `more`: `write_on` writes the body's rest.

        Raises:
            ConnectionError: the connection is closed already.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionError("closed by the engine")
        self._answer = answer
        self._bodiless = method == "HEAD"
        self._head = b""
        self._chunks = None
        self._left = None
        self._touched = False
        self._more = more
        self.in_head = True
        self._bytes_seen = answer.engine_bytes
        self.moved_at_s = self._loop.time()
        if len(body) > 16 * 1024:
            transport.writelines((head, body))
        else:
            transport.write(head + body)

    async def write_on(self, data: bytes, *, last: bool = False) -> None:
        """Write more of a request's body; returns when more may follow. Its framing is the caller's.

        Raises:
            ConnectionError: the connection is closed, or its answer is complete already.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._answer is None:
            raise ConnectionError("closed by the engine")
        self._more = not last
        transport.write(data)
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            self.moved_at_s = self._loop.time()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once. Never half-close: engines take that for a client that left, but only sometimes notice."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()
        self._home.forget(self)

    def drop(self) -> None:
        """Close as if the engine had: the running answer is told."""
        answer, touched = self._answer, self._touched
        self.abort()
        if answer is not None:
            answer.lost(None, untouched=not touched)

    @property
    def usable(self) -> bool:
        """Open, with nothing left of the last request: another may be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0

    def sweep(self, now_s: float, stall_timeout_s: float) -> None:
        """Look whether the engine moved since the last look; called by the pool about once a second."""
        answer = self._answer
        if answer is None:
            return
        if answer.engine_bytes != self._bytes_seen or self.paused:
            self._bytes_seen = answer.engine_bytes
            self.moved_at_s = now_s
            return
        waited_s = now_s - self.moved_at_s
        if waited_s >= stall_timeout_s:
            self.abort()
            answer.stalled(waited_s, in_head=self.in_head)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """The engine reads more slowly than we write."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has caught up."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        """The hot path: one call per read."""
        answer = self._answer
        if answer is None:
            # Bytes that nobody asked for: whatever this engine speaks, the next answer could not be told from it.
            self.abort()
            return
        answer.engine_bytes += len(data)
        try:
            chunks = self._chunks
            if chunks is not None:
                raw, body = chunks.feed(data)
                if chunks.done:
                    self._finish(answer, raw, body, clean=not chunks.surplus)
                elif raw:
                    answer.body(raw, body, False)
            elif self.in_head:
                self._take_head(answer, data)
            else:
                self._take_plain(answer, data)
        except Exception as error:  # noqa: BLE001 - whatever a transform raises must end this answer, not the loop's peace
            self.abort()
            answer.broken(error)

    def eof_received(self) -> bool:
        """The engine closed its side."""
        answer = self._answer
        if answer is not None and not self.in_head and self._chunks is None and self._left is None:
            try:
                self._finish(answer, b"", b"", clean=False)
            except Exception as error:  # noqa: BLE001 - as above
                self.abort()
                answer.broken(error)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        answer, self._answer = self._answer, None
        self._transport = None
        self.resume_writing()
        self._home.forget(self)
        if answer is not None:
            answer.lost(error, untouched=not self._touched)

    # Steps of an answer.

    def _take_head(self, answer: Answer, data: bytes) -> None:
        self._touched = True
        if self._head:
            data = self._head + data
            self._head = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise FramingError("the head of the engine's answer does not end")
                self._head = data
                return
            head = parse_head(data[: end + 4], bodiless=self._bodiless)
            data = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise FramingError("the engine switched protocols")
        self.in_head = False
        self._keep_alive = head.keep_alive
        self._left = head.length
        chunks = self._chunks = ChunkedBody() if head.chunked else None
        answer.head(head, chunks)
        if chunks is not None:
            if data:
                raw, body = chunks.feed(data)
                if chunks.done:
                    self._finish(answer, raw, body, clean=not chunks.surplus)
                elif raw:
                    answer.body(raw, body, False)
        elif data or head.length == 0:
            self._take_plain(answer, data)

    def _take_plain(self, answer: Answer, data: bytes) -> None:
        left = self._left
        if left is None:
            answer.body(data, data, False)
        elif len(data) < left:
            self._left = left - len(data)
            answer.body(data, data, False)
        else:
            body = data[:left]
            self._finish(answer, body, body, clean=len(data) == left)

    def _finish(self, answer: Answer, raw: bytes, body: bytes, *, clean: bool) -> None:
        """The answer is complete. The connection goes home first, so that the request that follows may have it."""
        self._answer = None
        if clean and self._keep_alive and not self._more and self.usable:
            self.resume()
            self._home.give(self)
        else:
            self.abort()
        answer.body(raw, body, True)
