"""HTTP/1.1 as an engine speaks it: connections, framing, keep-alive, resets. Must not know any API.

Frames are written straight from the engine's step, without a task per stream, so that thousands of paced tokens a
second stay cheap; heads are laid out by the API, byte for byte as the real engine does.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, unquote

import httptools
import structlog

from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.emulated")

Headers = list[tuple[str, str]]


class HeadStyle(Protocol):
    """Lays out the head of an answer: status line to blank line."""

    def __call__(self, exchange: "Exchange", status: int, headers: Headers, length: int | None, keep: bool) -> bytes:
        """`length` None: chunked. `keep`: whether the connection stays open afterwards."""


class Exchange:
    """One request and its answer."""

    def __init__(self, connection: "Connection", method: str, url: str, headers: dict[str, str]) -> None:
        self.connection = connection
        self.method = method
        self.url = url
        path, _, query = url.partition("?")
        self.path = unquote(path)
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.headers = headers
        """Names in lower case; of repeated ones the last."""
        self.body = b""
        self.status = 0
        """0: nothing was sent yet."""
        self.ended = False
        self.gone = False
        """The client has closed its side."""
        self.on_gone: Callable[[], None] | None = None
        self.on_ended: list[Callable[[], None]] = []
        self.keep = True
        self.jobs: list[Any] = []
        """What the API computes for it; kept here for whoever looks on."""

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a body of known length."""
        if self.ended:
            return
        head = self.connection.style(self, status, headers, len(body), self._keeps(status))
        self.status = status
        self.connection.write(head + (b"" if self.method == "HEAD" else body))
        self._end()

    def begin(self, status: int, headers: Headers) -> None:
        """Send the head of a chunked answer."""
        if self.ended:
            return
        self.status = status
        self.connection.write(self.connection.style(self, status, headers, None, self._keeps(status)))

    def chunk(self, data: bytes) -> None:
        """Send one chunk."""
        if data and not self.ended:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End a chunked answer."""
        if not self.ended:
            self.connection.write(b"0\r\n\r\n")
            self._end()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection without ending the answer; `reset` makes it a TCP reset."""
        if not self.ended:
            self._close(reset=reset)

    def left(self) -> None:
        """The client has gone (told by the connection)."""
        if not self.ended and not self.gone:
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()

    def _keeps(self, status: int) -> bool:
        self.keep = self.connection.keeps(self, status)
        return self.keep

    def _end(self) -> None:
        self._tell_ended()
        self.connection.answered(self)

    def _close(self, *, reset: bool) -> None:
        self._tell_ended()
        self.connection.cut(reset=reset)

    def _tell_ended(self) -> None:
        self.ended = True
        for tell in self.on_ended:
            tell()


class Manners:
    """What differs between engines on the wire; times in seconds, None: never."""

    def __init__(
        self,
        style: HeadStyle,
        *,
        idle_timeout_s: float | None = None,
        requests_per_connection: int | None = None,
        closes_after_errors: bool = False,
    ) -> None:
        self.style = style
        self.idle_timeout_s = idle_timeout_s
        self.requests_per_connection = requests_per_connection
        self.closes_after_errors = closes_after_errors


class Listener:
    """Accepts connections at one address and hands each request to `respond`."""

    def __init__(self, manners: Manners, respond: Callable[[Exchange], Awaitable[None]]) -> None:
        self.manners = manners
        self.respond = respond
        self.tasks = Tasks()
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.reset_new = False
        """Reset every new connection before it says anything."""
        self._listening: asyncio.Server | None = None
        self._wanted = False
        self._host, self._port, self._unix_path = "", 0, ""

    @property
    def url(self) -> str:
        """`http://host:port` or `unix:/path`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"unix:{self._unix_path}" if self._unix_path else f"http://{host}:{self._port}"

    async def start(
        self, *, host: str = "127.0.0.1", port: int = 0, unix_path: str = "", patience_s: float = 0.0
    ) -> None:
        """Listen; port 0 takes a free one and keeps it over `refuse` and `reopen`.

        Args:
            host: name or address.
            port: 0 for any.
            unix_path: instead of host and port.
            patience_s: how long to try while the address is in use (uvloop closes ports a little later than told to).

        Raises:
            OSError: the address is in use or not ours.
        """
        self._host, self._port, self._unix_path = host, port, unix_path
        self._wanted = True
        await self._open(patience_s)

    def reopen(self) -> None:
        """Listen again where it listened before, soon."""
        if not self._wanted:
            self._wanted = True
            self.tasks.start(self._open(1.0), "emulated port")

    async def _open(self, patience_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while self._wanted and self._listening is None:
            try:
                await self._listen(loop)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or loop.time() > deadline:
                    raise
                await asyncio.sleep(0.01)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._unix_path:
            self._listening = await loop.create_unix_server(lambda: Connection(self), self._unix_path)
        else:
            self._listening = await loop.create_server(
                lambda: Connection(self), self._host, self._port, reuse_address=True, backlog=512
            )
            self._port = self._listening.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones live on."""
        self._wanted = False
        if self._listening is not None:
            self._listening.close()
            self._listening = None
            if self._unix_path:
                _remove(self._unix_path)

    def cut_all(self, *, reset: bool = False) -> None:
        """Drop every open connection."""
        for connection in list(self.connections):
            connection.cut(reset=reset)

    async def close(self) -> None:
        """Stop listening and drop everything."""
        self.refuse()
        self.cut_all()
        await self.tasks.close()


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - a plain string all the way
    except FileNotFoundError:
        return


class Connection(asyncio.Protocol):
    """One client connection: parses requests, answers them one after another."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.style = listener.manners.style
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[Exchange] = []
        self._current: Exchange | None = None
        self._half_closed = False
        self._served = 0
        self._idle: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)  # not checked: uvloop's own class is another one
        self._listener.accepted += 1
        self._listener.connections.add(self)
        if self._listener.reset_new:
            self.cut(reset=True)
        else:
            self._wait_idle()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            log.debug("upgrade ignored")
        except httptools.HttpParserError as error:
            log.debug("bad request", error=str(error))
            self.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.close()

    def eof_received(self) -> bool:
        """The client has closed its side. What is computed already still goes out, as the real engines do."""
        self._half_closed = True
        for exchange in [*self._waiting, *([self._current] if self._current else [])]:
            exchange.left()
        if self._current is None:
            self.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by asyncio."""
        self._stop_idle()
        self._listener.connections.discard(self)
        for exchange in [*self._waiting, *([self._current] if self._current else [])]:
            exchange.left()

    # -- httptools

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange = Exchange(self, self._parser.get_method().decode(), self._url.decode("latin-1"), self._headers)
        exchange.body = b"".join(self._body)
        exchange.keep = self._parser.should_keep_alive()
        self._waiting.append(exchange)
        self._next()

    # -- answers

    def keeps(self, exchange: Exchange, status: int) -> bool:
        """Whether the connection stays open after this answer."""
        manners = self._listener.manners
        most = manners.requests_per_connection
        return (
            exchange.keep
            and not (manners.closes_after_errors and status >= 400)
            and not (most is not None and self._served + 1 >= most)
        )

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, exchange: Exchange) -> None:
        """An answer is complete: the next request, or the end."""
        self._current = None
        self._served += 1
        if not exchange.keep or self._half_closed:
            self.close()
        elif self._waiting:
            self._next()
        else:
            self._wait_idle()

    def close(self) -> None:
        """Close after what is written."""
        if self._transport is not None:
            self._transport.close()

    def cut(self, *, reset: bool = False) -> None:
        """Close at once, without what is not yet written."""
        if self._transport is None:
            return
        if reset:
            _linger_off(self._transport)
        self._transport.abort()

    def _next(self) -> None:
        if self._current is None and self._waiting:
            self._current = self._waiting.pop(0)
            self._listener.tasks.start(self._respond(self._current), "emulated answer")

    async def _respond(self, exchange: Exchange) -> None:
        try:
            await self._listener.respond(exchange)
        except Exception:
            exchange.abort()
            raise

    def _wait_idle(self) -> None:
        if (seconds := self._listener.manners.idle_timeout_s) is not None:
            self._stop_idle()
            self._idle = asyncio.get_running_loop().call_later(seconds, self.close)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _linger_off(transport: asyncio.Transport) -> None:
    """Make closing send a reset. On a copy of the descriptor: not every loop lets its own socket be set."""
    original = transport.get_extra_info("socket")
    copy = socket.socket(fileno=os.dup(original.fileno()))
    with copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
