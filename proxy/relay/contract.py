"""Whom an attempt's answer goes to, and how an attempt ends. Owns no I/O; must not know aiohttp."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol

import msgspec

from proxy.dialects.contract import Headers
from scheduler.domain import Failure

NO_END_MARK: Final = "the answer ended without its end mark"
"""Detail of an attempt whose engine closed its answer properly, and too early."""


class Framing(Enum):
    """How the body's end is told to the client."""

    UNDECIDED = auto()
    CHUNKED = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()  # HTTP/1.0
    NONE = auto()  # HEAD, 204, 304


class Flow(Protocol):
    """What an exchange needs of a connection that it writes to."""

    on_drained: Callable[[], None] | None
    behind: bool
    sent_bytes: int
    transport: asyncio.Transport | None


class Receiver(Protocol):
    """Who takes an engine's answer: a `Client`, whose docstrings say what each part means, or a `Collector`."""

    framing: Framing
    head_sent: bool
    committed: bool
    inside_chunk: bool

    @property
    def connection(self) -> Flow:
        """Where the bytes go."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Settle status and headers."""
        ...

    def write(self, body: bytes, *, last: bool = False) -> None:
        """Take body bytes."""
        ...

    def pipe(self, raw: bytes, *, last: bool = False) -> None:
        """Take framed body bytes; only where `framing` is CHUNKED."""
        ...

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Take a whole answer."""
        ...


class Exchanged(msgspec.Struct):
    """How an attempt ended that gave the client an answer."""

    status: int
    """As the engine sent it."""
    error_body: bytes = b""
    """Body of an engine's answer >= 400. It has been passed on, unless the client's head was out already (heartbeats):
    then nothing was written and the caller owes the client an error in the stream's own form."""


class AttemptError(Exception):
    """An attempt that gave no complete answer."""

    def __init__(self, failure: Failure, detail: str, *, committed: bool = False, error_body: bytes = b"") -> None:
        super().__init__(f"{failure}: {detail}" if detail else str(failure))
        self.failure = failure
        self.detail = detail
        """What the engine or the system said; for the log and for the last error shown, not for headers."""
        self.committed = committed
        """Bytes of this engine's answer went out: no retry; the caller writes its error frame and aborts."""
        self.error_body = error_body
        """Of an answer that was an error, whole; empty: there was none, or it was too long."""
