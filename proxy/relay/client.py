"""The client's side of one exchange: heads, chunks and ends, written straight to the transport. Must not know engines.

aiohttp parses requests; answers go past it. A stream of tokens costs one `transport.write` per read of the engine's
socket then, with no task woken and nothing encoded twice.
"""

import time
from http import HTTPStatus
from typing import Any, Final

from aiohttp import HttpVersion11, web

from proxy.dialects.contract import Headers
from proxy.relay.contract import Framing
from proxy.relay.framing import LAST_CHUNK
from proxy.relay.frontend import ClientConnection
from proxy.relay.headers import http_date, render_head, status_line


class _Sent(web.StreamResponse):
    """Tells aiohttp that the answer is out: it writes nothing, and keeps or closes the connection."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing: the head is out."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: the end is out."""


# Shared by all requests: aiohttp only asks them whether to keep the connection.
_KEEP: Final = _Sent(keep_alive=True)
_CLOSE: Final = _Sent(keep_alive=False)


class Client:
    """One request's way back to its client."""

    __slots__ = (
        "_closing",
        "_connection",
        "_head",
        "_http11",
        "_method",
        "_sent_before",
        "committed",
        "finished",
        "framing",
        "head_sent",
        "inside_chunk",
        "keep_alive",
    )

    def __init__(self, request: web.BaseRequest) -> None:
        """Take over the answer to a request that came through a `Frontend`.

        Raises:
            TypeError: it came through a plain `web.Server`, which cannot tell when a slow client has caught up.
        """
        connection: Any = request.protocol
        if not isinstance(connection, ClientConnection):
            raise TypeError("the request did not come through proxy.relay.Frontend")
        self._connection = connection
        self._http11 = request.version >= HttpVersion11
        self._method = request.method
        frontend = connection.frontend
        self.keep_alive = self._http11 and request.keep_alive and not (frontend is None or frontend.draining)
        """Keep the connection after this answer; may be set to False until the head is started."""
        self._head = b""
        """Rendered and not yet written: it goes out in one write with the first bytes of the body."""
        self._sent_before = connection.sent_bytes
        self._closing = False
        self.framing = Framing.UNDECIDED
        self.head_sent = False
        """The status is settled, by an engine's answer, a heartbeat or an error."""
        self.committed = False
        """The first byte of an engine's answer is out: no retry from here on."""
        self.finished = False
        """The answer is complete; nothing may follow."""
        self.inside_chunk = False
        """The engine died in the middle of a chunk that was piped: what is written now would be part of it."""

    @property
    def bytes_sent(self) -> int:
        """Written for this request, heads and framing included."""
        return self._connection.sent_bytes - self._sent_before

    @property
    def connection(self) -> ClientConnection:
        """The connection, for its back-pressure."""
        return self._connection

    def start(self, status: int, headers: Headers) -> None:
        """Settle status and headers; they go out with the first bytes of the body.

        With a Content-Length among the headers the body must be exactly so long. Without one, HTTP/1.1 clients get
        chunks and HTTP/1.0 clients everything until the connection closes.

        Raises:
            RuntimeError: a head was started before.
            ValueError: a header has a line break in it. Nothing is settled then.
        """
        if self.head_sent:
            raise RuntimeError("the head is out already")
        sized = any(name.lower() == "content-length" for name, _ in headers)
        added: Headers = []
        framing, keep_alive = Framing.UNTIL_CLOSE, self.keep_alive
        if self._method == "HEAD" or status in (204, 304):
            framing = Framing.NONE
        elif sized:
            framing = Framing.LENGTH
        elif self._http11:
            framing = Framing.CHUNKED
            added.append(("Transfer-Encoding", "chunked"))
        else:
            keep_alive = False
        if not keep_alive:
            added.append(("Connection", "close"))
        self._head = render_head(status_line(status), [*headers, *added])
        self.framing, self.keep_alive = framing, keep_alive
        self.head_sent = True

    def heartbeat(self, data: bytes, status: int, headers: Headers) -> None:
        """Write keep-alive bytes of the stream's dialect; the first one settles the head. Commits to no engine."""
        if not self.head_sent:
            self.start(status, headers)
        self.write(data)

    def write(self, body: bytes, *, last: bool = False) -> None:
        """Write body bytes, framed as the head promised; `last` ends the body in the same write."""
        framing = self.framing
        if framing is Framing.CHUNKED:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if last:
                body += LAST_CHUNK
        elif framing is Framing.NONE:
            body = b""
        self._send(body, last)

    def pipe(self, raw: bytes, *, last: bool = False) -> None:
        """Write bytes that are chunk framing already; only for clients with `Framing.CHUNKED`."""
        self._send(raw + LAST_CHUNK if last else raw, last)

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole answer at once, with its Content-Length, which a 204 must not have (RFC 9110, 8.6).

        A Date is added where it has none.
        """
        added = [] if status == HTTPStatus.NO_CONTENT else [("Content-Length", str(len(body)))]
        if not any(name.lower() == "date" for name, _ in headers):
            added.insert(0, ("Date", http_date(int(time.time()))))
        self.start(status, [*headers, *added])
        self.write(body, last=True)

    def cut(self, frame: bytes) -> None:
        """End an answer that cannot be completed: write an error in the stream's own form, and close without an end.

        Chunked clients miss the last chunk, sized ones bytes (and get no frame, which would pass for body, as it would
        inside a chunk). HTTP/1.0 clients, for whom any proper close is an end, get a reset behind what the kernel has
        delivered; so does everybody whose head is not out, since a frame alone would be no answer.
        """
        if self.finished:
            return
        if not self.head_sent:
            self.abort()
            return
        if self.framing is Framing.LENGTH:
            self._head = b""
        elif not self.inside_chunk:
            self.write(frame)
        self.keep_alive = False
        self._closing = True
        self._connection.close_unfinished(reset=self.framing is Framing.UNTIL_CLOSE)

    def end(self) -> None:
        """End an answer whose last words are an error of the engine's own: properly, unless bytes of it are missing."""
        if self.finished:
            return
        if self.inside_chunk or self.framing is Framing.LENGTH or not self.head_sent:
            self.cut(b"")
        else:
            self.write(b"", last=True)

    def abort(self) -> None:
        """Reset the connection at once, so that nothing that went out looks finished."""
        self.keep_alive = False
        self._closing = True
        self._connection.abort()

    def response(self) -> web.StreamResponse:
        """What aiohttp's request function returns after this object has written the answer."""
        connection = self._connection
        if self.finished and self.keep_alive:
            connection.answering = False
            return _KEEP
        if not self.finished and not self._closing:
            connection.abort()
        return _CLOSE

    def _send(self, data: bytes, last: bool) -> None:
        if self.finished:
            raise RuntimeError("the answer is finished")
        if self._head:
            data = self._head + data
            self._head = b""
        self.finished = last
        connection = self._connection
        connection.unfinished = not last
        transport = connection.transport
        # A client that left: its request is about to be cancelled.
        if transport is None or transport.is_closing():
            return
        if data:
            connection.answering = True
            connection.sent_bytes += len(data)
            transport.write(data)
