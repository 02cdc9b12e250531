"""The words that dialects, dispatcher and relay share about one attempt. Owns no I/O; must not know aiohttp."""

from typing import Protocol, runtime_checkable

import msgspec

from scheduler.domain import Failure


class Outgoing(msgspec.Struct):
    """The request as an engine shall get it. The relay adds Host, Content-Length, Connection and `endpoint.headers`."""

    method: str
    path: str
    """Canonical path with its query; the prefix of the endpoint is added by the relay."""
    headers: list[tuple[str, str]]
    body: bytes = b""


class TruncatedReply(Exception):
    """Raised by `ReplyTransform.finish`: the engine's body ended, but its end mark never came."""


@runtime_checkable
class ReplyTransform(Protocol):
    """Turns an engine's 2xx answer into the client's dialect. Sans-io; one object per attempt."""

    def head(self, status: int, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The engine's response headers in, the client's out. Framing and hop-by-hop headers are the relay's."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Decoded body bytes of the engine in, body bytes for the client out; may be empty."""
        ...

    def finish(self) -> bytes:
        """The engine's body ended; what is left for the client. Not called once `passthrough` took effect.

        Raises:
            TruncatedReply: the end mark of the engine's stream is missing.
        """
        ...

    @property
    def passthrough(self) -> bool:
        """True once `feed` would change nothing any more: from then on the relay pipes the engine's bytes itself."""
        ...


@runtime_checkable
class Watch(Protocol):
    """Looks at a copy of the engine's decoded body bytes: counts, usage, end mark. Changes nothing."""

    def see(self, data: bytes) -> None:
        """The next bytes; called once per read of the engine's socket, so it must be cheap."""
        ...

    def complete(self) -> bool:
        """The end mark was seen. Always True where the dialect has none."""
        ...


class Exchanged(msgspec.Struct):
    """How an attempt ended that gave the client an answer."""

    status: int
    """As the engine sent it."""
    first_byte_s: float | None
    """`loop.time()` at which the first body byte came from the engine; None: the body was empty."""
    engine_bytes: int
    """Read from the engine, heads and framing included."""
    client_bytes: int
    """Written to the client during this attempt, heads and framing included."""
    error_body: bytes = b""
    """Body of an engine's answer >= 400. It has been passed on, unless the client's head was out already (heartbeats):
    then nothing was written and the caller owes the client an error in the stream's own form."""


class AttemptError(Exception):
    """An attempt that gave no complete answer."""

    def __init__(self, failure: Failure, detail: str, *, committed: bool = False) -> None:
        super().__init__(f"{failure}: {detail}" if detail else str(failure))
        self.failure = failure
        self.detail = detail
        """What the engine or the system said; for the log and for the last error shown, not for headers."""
        self.committed = committed
        """Bytes of this engine's answer went out: no retry; the caller writes its error frame and aborts."""
