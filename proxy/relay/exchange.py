"""One attempt at one backend: request out, answer piped to the client. Owns commit-at-first-byte; decides no routing.

Theory of operation. `exchange` writes the request and then sleeps on one future; everything else happens inside the
read events of the engine's socket, in `Transfer`. An answer passes through three states. *Opening*: nothing of it went
to the client; refusals, a first event that is an error, a lost connection still allow another backend. *Committed*:
the head and the first bytes are out, in one write; from here a failure can only be shown, not retried. *Piping*: the
engine's chunk framing is the client's, so reads go out as they came. Answers that are transformed, or whose framing the
client does not share, stay committed and are framed anew; they may change to piping where a chunk begins.
"""

import asyncio
from collections.abc import Callable

import structlog

from proxy.dialects.contract import ErrorBody, Headers, Outgoing, ReplyTransform, TruncatedReply, Watch
from proxy.endpoint import Endpoint
from proxy.relay.connection import EngineConnection
from proxy.relay.contract import NO_END_MARK, AttemptError, Exchanged, Framing, Receiver
from proxy.relay.framing import ChunkedBody, FramingError, ReplyHead
from proxy.relay.headers import render_head, to_client, to_engine, unsized
from proxy.relay.pool import STALL_TIMEOUT_S, ConnectionPool
from proxy.relay.verdicts import opens_with_error, retryable
from scheduler.domain import Failure

log = structlog.get_logger("slotgate.relay")

MAX_REFUSAL_BYTES = 1024 * 1024
"""Of an answer >= 300, which is read whole before anything is decided."""
STALE_WITHIN_S = 1.0
"""From the request to the loss of a kept connection that the engine had closed before it got the request: its reset is
a round trip away. Later the engine has read the request, may have begun to compute, and is not asked the same again."""
_MAX_DETAIL_BYTES = 4096


class _Stale(Exception):
    """A kept connection turned out to be closed before a byte of the answer came."""


def render_request(endpoint: Endpoint, outgoing: Outgoing) -> bytes:
    """The request's head as this endpoint gets it.

    Raises:
        ValueError: path, method or a header holds what would end the line it stands in.
    """
    path = outgoing.path
    if not path.startswith("/") or " " in path or " " in outgoing.method:
        raise ValueError(f"not a request line: {outgoing.method!r} {path!r}")
    headers = [("Host", endpoint.host), *to_engine(outgoing.headers), *endpoint.headers]
    if outgoing.body or outgoing.method not in ("GET", "HEAD"):
        headers.append(("Content-Length", str(len(outgoing.body))))
    return render_head(f"{outgoing.method} {endpoint.prefix}{path} HTTP/1.1", headers)


class Transfer:
    """Takes one answer from an engine and gives it to a client. All its methods run inside read events."""

    __slots__ = (
        "_chunks",
        "_client",
        "_client_connection",
        "_connection",
        "_done",
        "_error_body",
        "_extra",
        "_final",
        "_head",
        "_loop",
        "_on_first_byte",
        "_opening",
        "_opening_raw",
        "_passing",
        "_piping",
        "_raw_fits",
        "_refusal",
        "_see",
        "_sent_s",
        "_transform",
        "_watch",
        "engine_bytes",
        "error_body",
        "status",
    )

    def __init__(
        self,
        client: Receiver,
        *,
        transform: ReplyTransform | None,
        watch: Watch | None,
        on_first_byte: Callable[[], None],
        extra: Headers,
        error_body: ErrorBody | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._client_connection = client.connection
        self._transform = transform
        self._watch = watch
        self._see = watch.see if watch is not None else None
        self._on_first_byte = on_first_byte
        self._extra = extra
        self._error_body = error_body
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._connection: EngineConnection | None = None
        self._head: ReplyHead | None = None
        self._chunks: ChunkedBody | None = None
        self._refusal: bytearray | None = None
        self._sent_s = 0.0
        self._opening: bytes | None = b""
        """The first bytes, until they are judged; None: they were no error, and no later ones are looked at."""
        self._opening_raw = b""
        self._passing = transform is None or transform.passthrough
        """Body bytes go out as they are."""
        self._raw_fits = self._passing
        """The next raw bytes continue, at a chunk's beginning or in a chunk sent raw, what the client has got."""
        self._piping = False
        """Raw bytes go straight out."""
        self.status = 0
        self.engine_bytes = 0
        self.error_body = b""

    async def over(self, connection: EngineConnection, outgoing: Outgoing, head: bytes) -> None:
        """Send the request over a connection and wait for the end of its answer.

        Raises:
            AttemptError: the attempt failed.
            _Stale: the connection was closed already; try another.
        """
        self._connection, self._final = connection, outgoing.final
        self._client_connection.on_drained = connection.resume
        self._sent_s = self._loop.time()
        try:
            try:
                connection.send(outgoing.method, head, outgoing.body, self)
            except ConnectionError:
                raise _Stale from None
            await self._done
        except BaseException:
            # A failed attempt has closed its connection; one that was cancelled, because the client left, does it here.
            if not self._done.done() or self._done.cancelled():
                connection.abort()
            raise
        finally:
            self._client_connection.on_drained = None

    # What the connection calls.

    def head(self, head: ReplyHead, chunks: ChunkedBody | None) -> None:
        """The status decides who reads the body."""
        self._head = head
        self._chunks = chunks
        self.status = head.status
        if head.status >= 300:
            self._refusal = bytearray()

    def body(self, raw: bytes, body: bytes, last: bool) -> None:
        """The hot path."""
        if self._piping and not last:
            if self._see is not None and body:
                self._see(body)
            connection = self._client_connection
            transport = connection.transport
            # None: a client that left; this exchange is about to be cancelled.
            if transport is not None:
                connection.sent_bytes += len(raw)
                transport.write(raw)
                if connection.behind:
                    self._pause()
            return
        self._advance(raw, body, last)

    def lost(self, error: Exception | None, *, untouched: bool) -> None:
        """The engine, or the network, ended the connection."""
        if untouched and self._loop.time() - self._sent_s <= STALE_WITHIN_S:
            self._end(_Stale())
            return
        detail = (error.strerror if isinstance(error, OSError) else None) or str(error or "closed by the engine")
        if self._opening:
            detail = f"{detail} after {self._opening[:_MAX_DETAIL_BYTES].decode('utf-8', 'replace')}"
        committed = self._client.committed
        self._fail(Failure.TRUNCATED if committed else Failure.RESET, detail)

    def broken(self, error: Exception) -> None:
        """Bad framing, or a transform or watch that could not read what came."""
        if not self._done.done():
            ours = not isinstance(error, FramingError)
            log.warning("engine's answer not understood", error=repr(error), exc_info=error if ours else None)
        self._fail(Failure.ENGINE_ERROR, str(error) or repr(error))

    def stalled(self, waited_s: float, *, in_head: bool) -> None:
        """Nothing came for too long."""
        self._fail(Failure.TIMEOUT, f"no {'answer' if in_head else 'further byte'} within {waited_s:.0f} s")

    # The way to the client.

    def _advance(self, raw: bytes, body: bytes, last: bool) -> None:
        """Everything that is not piping: refusals, openings, transformed answers, other framings, ends."""
        if self._refusal is not None:
            self._take_refusal(self._refusal, body, last)
            return
        if self._see is not None and body:
            self._see(body)
        if self._opening is not None:
            opened = self._open(self._opening + body, self._opening_raw + raw, last)
            if opened is None:
                return
            raw, body = opened
        out, whole = self._convert(body, last)
        if not self._client.committed and self._transform is not None and opens_with_error(out):
            # Behind what the transform took out, progress frames for instance, it is the first that a client would see.
            self._abort()
            self._fail(Failure.ENGINE_ERROR, said=out)
            return
        if last and not whole:
            self._truncated(raw, out)
            return
        if last or out:
            self._write(raw, out, last)
        if not self._piping:
            self._raw_fits = self._passing and self._chunks is not None and self._chunks.at_boundary
        if last:
            self._end(None)
        elif self._client_connection.behind:
            self._pause()

    def _open(self, body: bytes, raw: bytes, last: bool) -> tuple[bytes, bytes] | None:
        """Hold the first bytes until they are known not to be an error; None: held, or an error."""
        verdict = opens_with_error(body)
        if not verdict and (verdict is False or last or len(body) > MAX_REFUSAL_BYTES):
            self._opening, self._opening_raw = None, b""
            return raw, body
        self._opening, self._opening_raw = body, raw
        if verdict and (last or b"\n" in body.lstrip() or len(body) > MAX_REFUSAL_BYTES):
            self._abort()
            self._fail(Failure.ENGINE_ERROR, said=body)
        return None

    def _convert(self, body: bytes, last: bool) -> tuple[bytes, bool]:
        """Body bytes for the client, and whether the answer has its end mark (if it ends here)."""
        out = body
        whole = True
        if self._transform is not None and not self._passing:
            out = self._transform.feed(body) if body else b""
            if last:
                try:
                    out += self._transform.finish()
                except TruncatedReply:
                    whole = False
            self._passing = self._transform.passthrough
        if last and self._watch is not None and not self._watch.complete():
            whole = False
        return out, whole

    def _write(self, raw: bytes, out: bytes, last: bool) -> None:
        client = self._client
        if not client.committed and self._commit(out, last):
            return
        if self._raw_fits and self._chunks is not None and client.framing is Framing.CHUNKED:
            self._piping = True
            client.pipe(raw, last=last)
        else:
            client.write(out, last=last)

    def _commit(self, out: bytes, last: bool) -> bool:
        """The first byte: from here on no other backend can take over. True: the whole answer is out already."""
        client, head = self._client, self._head
        assert head is not None  # noqa: S101 - bodies follow heads
        if client.head_sent:
            self._on_first_byte()
            client.committed = True
            return False
        headers = to_client(head.headers)
        if self._transform is not None:
            headers = unsized(self._transform.head(head.status, headers))
            if last:
                headers.append(("Content-Length", str(len(out))))
        elif head.length is not None:
            # As the engine said it: in an answer to HEAD it is not the length of what follows.
            headers += [pair for pair in head.headers if pair[0].lower() == "content-length"]
        self._on_first_byte()
        client.start(head.status, headers + self._extra)
        client.committed = True  # not before: a head that cannot be rendered commits to nothing
        if last and self._transform is not None:
            client.write(out, last=True)
            return True
        return False

    def _truncated(self, raw: bytes, out: bytes) -> None:
        """The engine closed its answer properly but had not finished it. What came goes out; the end does not."""
        client = self._client
        if client.committed and client.framing is not Framing.LENGTH and out:
            self._write(raw, out, last=False)
        self._fail(Failure.TRUNCATED, NO_END_MARK)

    def _take_refusal(self, refusal: bytearray, body: bytes, last: bool) -> None:
        refusal += body
        if len(refusal) > MAX_REFUSAL_BYTES:
            self._abort()
            self._fail(Failure.ENGINE_ERROR, f"status {self.status} with more than {MAX_REFUSAL_BYTES} bytes")
        elif last:
            self._refuse(bytes(refusal))

    def _refuse(self, body: bytes) -> None:
        client, head = self._client, self._head
        assert head is not None  # noqa: S101 - bodies follow heads
        if not self._final and (failure := retryable(head.status, body)) is not None:
            self._fail(failure, said=body)
            return
        self.error_body = body
        if not client.head_sent:
            status, headers = head.status, to_client(head.headers)
            if self._error_body is not None and status >= 400:
                status, headers, body = self._error_body(status, body)
                headers = unsized(headers)
            self._on_first_byte()
            client.reply(status, headers + self._extra, body)
            client.committed = True
        self._end(None)

    # Ends.

    def _pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def _fail(self, failure: Failure, detail: str = "", said: bytes = b"") -> None:
        self._client.inside_chunk = self._piping and self._chunks is not None and not self._chunks.at_boundary
        detail = detail or said[:_MAX_DETAIL_BYTES].decode("utf-8", "replace").strip()
        self._end(AttemptError(failure, detail, committed=self._client.committed, error_body=said))

    def _end(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


async def exchange(
    pool: ConnectionPool,
    outgoing: Outgoing,
    client: Receiver,
    *,
    transform: ReplyTransform | None = None,
    watch: Watch | None = None,
    on_first_byte: Callable[[], None],
    headers: Headers,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    error_body: ErrorBody | None = None,
) -> Exchanged:
    """Make one attempt at one backend.

    Cancel it when the client leaves: the engine's connection is closed at once, in prefill too.

    Args:
        pool: the backend's connections.
        outgoing: the request as the engine shall get it.
        client: whom to answer. Heartbeats may have settled its head; then the engine's head is dropped.
        transform: translates a 2xx answer; None: the engine's bytes pass untouched.
        watch: sees the decoded bytes of a 2xx answer and says at its end whether it is complete.
        on_first_byte: called just before the first byte of the engine's answer goes out.
        headers: added to the answer; read after `on_first_byte`, which may still fill the list.
        stall_timeout_s: longest time without a byte from the engine, unless the client is what it waits for.
        error_body: rewords a refusal that is passed on; None: as the engine said it.

    Returns:
        What went through. With `status >= 400` the refusal has been passed on, unless the client's head was out.

    Raises:
        AttemptError: no complete answer. While `committed` is False nothing of it went to the client.
    """
    head = render_request(pool.endpoint, outgoing)
    connection = pool.take()
    while True:
        reused = connection is not None
        if connection is None:
            connection = await pool.open()
        if connection.engine is not None:
            head = render_request(connection.engine, outgoing)
        transfer = Transfer(
            client, transform=transform, watch=watch, on_first_byte=on_first_byte, extra=headers, error_body=error_body
        )
        pool.lend(connection, stall_timeout_s)
        try:
            await transfer.over(connection, outgoing, head)
        except _Stale:
            pool.forget(connection)
            if not reused:
                raise AttemptError(Failure.RESET, "closed by the engine before it answered") from None
            # A kept connection that the engine had closed meanwhile. Nothing was answered: nothing is answered twice.
            connection = None
            continue
        return Exchanged(status=transfer.status, error_body=transfer.error_body)
