"""Takes an engine's answer for slotgate itself, where a `Client` would take it for somebody else."""

import asyncio
from collections.abc import Callable

from proxy.dialects.contract import EngineError, Headers, check_held
from proxy.relay.contract import Framing


class _Still:
    """A flow that never stops: memory takes everything at once."""

    def __init__(self) -> None:
        self.on_drained: Callable[[], None] | None = None
        self.behind = False
        self.sent_bytes = 0
        self.transport: asyncio.Transport | None = None


class Collector:
    """Keeps one whole answer: status, headers, body."""

    def __init__(self) -> None:
        self.connection = _Still()
        self.framing = Framing.LENGTH  # so that nothing is piped with its framing
        self.head_sent = False
        self.committed = False
        self.inside_chunk = False
        self.status = 0
        self.headers: Headers = []
        self._body = bytearray()

    @property
    def body(self) -> bytes:
        """What came so far."""
        return bytes(self._body)

    def start(self, status: int, headers: Headers) -> None:
        """Settle status and headers; the length is left out, it is that of the body."""
        self.status = status
        self.headers = [pair for pair in headers if pair[0].lower() != "content-length"]
        self.head_sent = True

    def write(self, body: bytes, *, last: bool = False) -> None:  # noqa: ARG002 - the receiver's contract
        """Keep body bytes.

        Raises:
            EngineError: more than `MAX_HELD_BYTES`.
        """
        self._body += body
        check_held(len(self._body))

    def pipe(self, raw: bytes, *, last: bool = False) -> None:  # noqa: ARG002 - the receiver's contract
        """Never called.

        Raises:
            EngineError: always.
        """
        raise EngineError("a collector takes no framing")

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Keep a whole answer."""
        self.start(status, headers)
        self.write(body, last=True)
