"""The words that dialects and relay share about one attempt. Sans-io; must not know how bytes travel."""

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import msgspec

Headers = list[tuple[str, str]]
"""Names and values, in the order in which they are sent."""

Rendered = tuple[int, Headers, bytes]
"""A whole answer: status, headers, body."""

ErrorBody = Callable[[int, bytes], Rendered]
"""Status and body of an engine's error in, the client's answer out."""

MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""Most that an engine may send for an answer that is held until its end: some 100,000 tokens with 20 alternatives each,
or 5,000 vectors of 4,096 numbers. An engine that runs on and on ends here instead of in this process's memory."""


class Outgoing(msgspec.Struct):
    """The request as an engine shall get it. The relay adds Host, Content-Length, Connection and `endpoint.headers`."""

    method: str
    path: str
    """Canonical path with its query; the prefix of the endpoint is added by the relay."""
    headers: Headers
    body: bytes = b""
    final: bool = False
    """Whatever refuses it, no other backend would do better, and it is not the fault of this one."""


class TruncatedReply(Exception):
    """Raised by `ReplyTransform.finish`: the engine's body ended, but its end mark never came."""


class EngineError(Exception):
    """The engine reported an error inside an answer that began with 200, or sent what cannot be taken."""


@runtime_checkable
class ReplyTransform(Protocol):
    """Turns an engine's 2xx answer into the client's dialect. Sans-io; one object per attempt."""

    def head(self, status: int, headers: Headers) -> Headers:
        """The engine's response headers in, the client's out. Framing and hop-by-hop headers are the relay's."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Decoded body bytes of the engine in, body bytes for the client out; may be empty.

        Raises:
            EngineError: the answer cannot go on.
        """
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


def check_held(size: int) -> None:
    """Judge how much of an answer an engine has sent that is held until its end.

    Raises:
        EngineError: more than `MAX_HELD_BYTES`.
    """
    if size > MAX_HELD_BYTES:
        raise EngineError(f"the engine's answer is larger than {MAX_HELD_BYTES} bytes")
