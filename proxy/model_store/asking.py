"""One request to one Ollama about its models: lines of progress as they come, bodies as large as they are.

Owns no decision. Goes over the relay's connections, so that gates, sockets and API keys are theirs to know.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from proxy.relay import AttemptError, ConnectionPool, Outgoing
from proxy.relay.connection import EngineConnection
from proxy.relay.exchange import render_request
from proxy.relay.framing import ChunkedBody, ReplyHead
from proxy.relay.headers import render_head
from scheduler.domain import Failure

STALL_S = 3600.0
"""An Ollama says nothing while it checks the digest of what it has pulled: for some hundred GB on a slow disk that is
most of an hour."""
MAX_LINE_BYTES = 1024 * 1024
JSON = ("Content-Type", "application/json")


class Answered(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes
    """Empty where lines were asked for and the status is a good one: they have been told."""


class Hearing:
    """Takes one answer. Implements `relay.connection.Answer`."""

    def __init__(self, on_line: Callable[[bytes], None] | None) -> None:
        """`on_line` is told each line of a good answer, without its end."""
        self.engine_bytes = 0
        self._on_line = on_line
        self._status = 0
        self._rest = bytearray()
        self.done: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def head(self, head: ReplyHead, chunks: ChunkedBody | None) -> None:  # noqa: ARG002 - the answer's contract
        """The status."""
        self._status = head.status
        if head.status >= 300:
            self._on_line = None

    def body(self, raw: bytes, body: bytes, last: bool) -> None:  # noqa: ARG002 - the answer's contract
        """Lines, or what is kept until the end."""
        self._rest += body
        if self._on_line is not None and b"\n" in body:
            *lines, rest = self._rest.split(b"\n")
            self._rest = bytearray(rest)
            for each in lines:
                if each.strip():
                    self._on_line(bytes(each))
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"an answer with more than {MAX_LINE_BYTES} bytes in one line")
        if last:
            self._end()

    def _end(self) -> None:
        rest = bytes(self._rest)
        if self._on_line is not None:
            if rest.strip():
                self._on_line(rest)
            rest = b""
        if not self.done.done():
            self.done.set_result(Answered(self._status, rest))

    def lost(self, error: Exception | None, *, untouched: bool) -> None:  # noqa: ARG002 - the answer's contract
        """The connection ended first."""
        self._fail(Failure.RESET, str(error or "closed by the engine"))

    def broken(self, error: Exception) -> None:
        """It cannot be understood."""
        self._fail(Failure.ENGINE_ERROR, str(error) or repr(error))

    def stalled(self, waited_s: float, *, in_head: bool) -> None:  # noqa: ARG002 - the answer's contract
        """Nothing came for too long."""
        self._fail(Failure.TIMEOUT, f"nothing came for {waited_s:.0f} s")

    def _fail(self, failure: Failure, detail: str) -> None:
        if not self.done.done():
            self.done.set_exception(AttemptError(failure, detail))


async def ask(
    pool: ConnectionPool,
    method: str,
    path: str,
    body: bytes = b"",
    on_line: Callable[[bytes], None] | None = None,
    stall_s: float = STALL_S,
) -> Answered:
    """Ask; any status is an answer. Cancelled, the connection is closed at once, by which an Ollama ends its work.

    Raises:
        AttemptError: there was none, or it did not end.
    """
    hearing = Hearing(on_line)
    connection = await pool.open()
    try:
        endpoint = connection.engine or pool.endpoint
        head = render_request(endpoint, Outgoing(method, path, [JSON] if body else [], body))
        pool.lend(connection, stall_s)
        try:
            connection.send(method, head, body, hearing)
        except ConnectionError as error:
            raise AttemptError(Failure.RESET, str(error)) from None
        return await hearing.done
    finally:
        _leave(connection, hearing)


class Upload:
    """One body on its way to one Ollama, piece by piece."""

    def __init__(self, pool: ConnectionPool, path: str, length: int | None) -> None:
        """`length` in bytes; None: not known, so it goes in chunks."""
        self._pool = pool
        self._path = path
        self._length = length
        self._left = length
        self._hearing = Hearing(None)
        self._connection: EngineConnection | None = None

    async def begin(self) -> None:
        """Connect, and send the head.

        Raises:
            AttemptError: that cannot be done.
        """
        connection = self._connection = await self._pool.open()
        endpoint = connection.engine or self._pool.endpoint
        sized = ("Content-Length", str(self._length)) if self._length is not None else ("Transfer-Encoding", "chunked")
        headers = [("Host", endpoint.host), *endpoint.headers, ("Content-Type", "application/octet-stream"), sized]
        head = render_head(f"POST {endpoint.prefix}{self._path} HTTP/1.1", headers)
        self._pool.lend(connection, STALL_S)
        try:
            connection.send("POST", head, b"", self._hearing, more=self._length != 0)
        except ConnectionError as error:
            raise AttemptError(Failure.RESET, str(error)) from None

    async def write(self, piece: bytes) -> None:
        """Send a piece; returns when the next may come.

        Raises:
            AttemptError: the connection is gone. An answer that came early is no error: `end` has it.
        """
        if self._left is not None:
            self._left -= len(piece)
            await self._write_on(piece, last=self._left == 0)
        else:
            await self._write_on(b"%x\r\n%b\r\n" % (len(piece), piece), last=False)

    async def end(self) -> Answered:
        """The body is whole: the answer.

        Raises:
            AttemptError: none came.
        """
        if self._length is None:
            await self._write_on(b"0\r\n\r\n", last=True)
        return await self._hearing.done

    def close(self) -> None:
        """Give up what is not finished."""
        if self._connection is not None:
            _leave(self._connection, self._hearing)

    async def _write_on(self, data: bytes, *, last: bool) -> None:
        hearing = self._hearing
        if hearing.done.done():
            hearing.done.result()  # raises what ended it
            return
        assert self._connection is not None  # noqa: S101 - begun
        hearing.engine_bytes += len(data)  # the sweep that looks for stalls sees this as progress
        with contextlib.suppress(ConnectionError):  # the answer tells why, or `lost`
            await self._connection.write_on(data, last=last)


def _leave(connection: EngineConnection, hearing: Hearing) -> None:
    """Nobody waits for the answer any more."""
    if not hearing.done.done() or hearing.done.cancelled():
        hearing.done.cancel()
        connection.abort()
    else:
        hearing.done.exception()  # it may be nobody's to see
