"""Finds where an engine's answer begins, continues and ends. Owns no I/O; must not know clients, dialects or retries.

Theory of operation. Heads are parsed by llhttp (httptools), in its strict mode. Bodies are not: the relay sends the
engine's own chunk framing on to the client, and for that it must know at which byte each chunk begins. It may send a
chunk's bytes as soon as they come, but never the last chunk (`0\\r\\n\\r\\n`) before somebody has checked that the
engine said all it had to say; a last chunk that went out makes a cut answer look whole. llhttp tells no positions, so
`ChunkedBody` walks the framing itself, as strictly: hexadecimal sizes only, CRLF only, bounded extensions and
trailers. A read that is exactly one chunk, the shape of nearly every streamed token, takes three calls of C.
"""

import re
from typing import Any, Final

import httptools
import msgspec

from proxy.dialects.contract import Headers

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_TRAILER_BYTES: Final = 8 * 1024
LAST_CHUNK: Final = b"0\r\n\r\n"
_MAX_SIZE_LINE_BYTES: Final = 1024
_CRLF: Final = b"\r\n"
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[^\r\n]{0,1000})?\r\n")


class FramingError(Exception):
    """What an engine sent is not HTTP/1."""


class ReplyHead(msgspec.Struct):
    """The head of an answer, and what it says about the body."""

    status: int
    headers: Headers
    keep_alive: bool
    """The engine keeps the connection open after this answer."""
    chunked: bool
    length: int | None
    """Body bytes; None: chunked, or everything until the engine closes."""


class _Collector:
    """Takes llhttp's callbacks for one head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        self.complete = False
        self.parser: Any = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        # Only inside the callbacks: once feed_data has returned, llhttp may have cleared its flags and say False.
        self.keep_alive = self.parser.should_keep_alive()
        self.complete = True


def parse_head(block: bytes, *, bodiless: bool = False) -> ReplyHead:
    """Parse one response head, its final empty line included.

    Args:
        block: the head.
        bodiless: the request was HEAD, so that no body follows whatever the headers say.

    Raises:
        FramingError: it is not an HTTP/1 head, or says two things about its length.
    """
    collector = _Collector()
    parser = collector.parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(block)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise FramingError(f"the engine's answer is not HTTP/1: {error}") from None
    if not collector.complete:
        raise FramingError("the engine's answer is not HTTP/1: its head does not end")
    status: int = parser.get_status_code()
    headers = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in collector.headers]
    chunked, length = _body_size(status, headers)
    if bodiless:
        chunked, length = False, 0
    keep_alive = collector.keep_alive and (chunked or length is not None)
    collector.parser = None
    return ReplyHead(status=status, headers=headers, keep_alive=keep_alive, chunked=chunked, length=length)


def _body_size(status: int, headers: Headers) -> tuple[bool, int | None]:
    chunked, length = False, None
    for name, value in headers:
        lower = name.lower()
        if lower == "transfer-encoding":
            if chunked or value.strip().lower() != "chunked":
                raise FramingError(f"the engine answers with Transfer-Encoding {value[:40]!r}")
            chunked = True
        elif lower == "content-length":
            if length is not None or not value.isascii() or not value.isdigit():
                raise FramingError(f"the engine answers with Content-Length {value[:40]!r}")
            length = int(value)
    if chunked and length is not None:
        raise FramingError("the engine answers with both Transfer-Encoding and Content-Length")
    if status < 200 or status in (204, 304):
        return False, 0
    return chunked, length


def _size_line_for(total: int) -> bytes:
    """The size line with which `total` bytes are exactly one chunk; where none does, one that they cannot hold."""
    for digits in (1, 2, 3):
        size = total - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return b"%x\r\n" % size
    return b"!" * (total + 1)


_SIZE_LINES: Final = tuple(_size_line_for(total) for total in range(2048))
"""By the length of a read: how it begins if it is one whole chunk, which nearly every streamed token is."""


class ChunkedBody:
    """Decodes a chunked body and says which of its raw bytes may already be sent on."""

    __slots__ = ("_held", "_left", "_plain", "_trailers", "done", "surplus")

    def __init__(self) -> None:
        self._held = b""
        """An unfinished size line, or the trailers."""
        self._left = 0
        """Bytes of the current chunk still to come, its closing CRLF included."""
        self._trailers = False
        self._plain = True
        """The next byte begins a chunk, and nothing is held."""
        self.done = False
        self.surplus = b""
        """Bytes after the end of the body: a well-behaved engine sends none."""

    @property
    def at_boundary(self) -> bool:
        """The next byte that `feed` gives out as raw begins a chunk."""
        return self._left == 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take the next bytes of the engine.

        Returns:
            The raw bytes that may be sent on, never any part of the last chunk; and the decoded bytes.

        Raises:
            FramingError: they are not chunked coding.
        """
        total = len(data)
        if self._plain and total < len(_SIZE_LINES):
            line = _SIZE_LINES[total]
            if data.startswith(line) and data.endswith(_CRLF):
                return data, data[len(line) : -2]
        # Longer than one chunk, a part of one, the last one, or a size written otherwise.
        taken = self._walk(data)
        self._plain = not (self._left or self._held or self._trailers)
        return taken

    def _walk(self, data: bytes) -> tuple[bytes, bytes]:
        if self._trailers:
            self._end(self._held + data)
            return b"", b""
        if self._held:
            data = self._held + data
            self._held = b""
        pieces: list[bytes] = []
        position = 0
        while position < len(data):
            if self._left:
                position = self._take(data, position, pieces)
                continue
            line = _SIZE_LINE.match(data, position)
            if line is None:
                rest = data[position:]
                if b"\n" in rest or len(rest) > _MAX_SIZE_LINE_BYTES:
                    raise FramingError(f"the engine sent {rest[:20]!r} where a chunk should begin")
                self._held = rest
                return data[:position], b"".join(pieces)
            size = int(line[1], 16)
            if size == 0:
                self._trailers = True
                self._end(data[line.end() :])
                return data[:position], b"".join(pieces)
            self._left = size + 2
            position = line.end()
        return data, b"".join(pieces)

    def _take(self, data: bytes, position: int, pieces: list[bytes]) -> int:
        """Move over the bytes of the current chunk that are there; returns the new position."""
        end = min(position + self._left, len(data))
        content_end = min(position + max(self._left - 2, 0), end)
        if content_end > position:
            pieces.append(data[position:content_end])
        mark = data[content_end:end]
        if mark:
            left = self._left - (content_end - position)
            if not _CRLF[2 - left :].startswith(mark):
                raise FramingError(f"the engine sent {mark!r} where a chunk should end")
        self._left -= end - position
        return end

    def _end(self, data: bytes) -> None:
        """Wait for the empty line behind the last chunk. Trailers are dropped: they belong to one hop."""
        if data.startswith(_CRLF):
            self.done, self.surplus, self._held = True, data[2:], b""
            return
        head, mark, surplus = data.partition(b"\r\n\r\n")
        if len(head) > MAX_TRAILER_BYTES:
            raise FramingError("the engine sent too long trailers")
        if mark:
            self.done, self.surplus, self._held = True, surplus, b""
        else:
            self._held = data
