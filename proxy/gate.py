"""The gate: where other boxes of the fleet reach this box's backends. Must not know what is said behind the handshake.

Theory of operation. A box dials, speaks TLS if this gate does, and sends one head: CONNECT, the name of a backend and
the fleet's secret. Let in, its connection and one to the engine become a passage (`proxy.passage`). What an engine
wants in each request (its Host, its path prefix, its API key) is told in the answer to CONNECT: keys do not leave a box
through the store.

Ends. The engine's end of stream goes to the box in its own form, behind everything that was sent before, and its
reset as a reset. A box that ends its side has left: boxes never half-close, and its engine must stop at once.
"""

import asyncio
import hmac
import socket
import ssl
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from proxy.endpoint import Endpoint
from proxy.gate_client import HEADER_BOX, HEADER_ENGINE, HEADER_HOST, HEADER_PREFIX, watch_peer
from proxy.passage import BUFFER_BYTES, EngineSide, Side
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.gate")

MAX_HEAD_BYTES: Final = 4096
HEAD_TIMEOUT_S: Final = 5.0
"""From the connection to the end of its head; TLS has as long before."""
CONNECT_TIMEOUT_S: Final = 4.0
"""For the engine's side: below what the other box waits (`ConnectionPool`), so that it hears the reason."""
MAX_PASSAGES: Final = 4096
MAX_UNKNOWN: Final = 256
"""Connections that have not shown the secret."""
LINGER_S: Final = 5.0
"""After an engine's end of stream, until its passage is closed."""
TOLD_EVERY_S: Final = 1.0
"""Refused secrets of one address are logged so often."""
_MAX_TOLD: Final = 1024
_TLS_FLUSH_S: Final = 600.0
"""A slow reader gets so long for what was sent before the end."""
_BEGINNING: Final = b"CONNECT "
_NOTHING_ELSE: Final = "a gate of slotgate: it takes CONNECT of other boxes and nothing else"
_REASONS: Final = {
    400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 408: "Request Timeout", 431: "Head Too Large",
    502: "Bad Gateway", 503: "Service Unavailable",
}  # fmt: skip


class Addresses(Protocol):
    """Who knows where backends are."""

    def endpoint(self, backend_id: str) -> Endpoint:
        """The backend's address; LookupError if it has none."""
        ...


class GateListener:
    """Lets other boxes through to this box's backends."""

    def __init__(
        self,
        backends: Addresses,
        secret: str,
        *,
        box: str = "",
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        max_passages: int = MAX_PASSAGES,
        max_unknown: int = MAX_UNKNOWN,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        linger_s: float = LINGER_S,
    ) -> None:
        """Set it up; listens nowhere yet.

        Args:
            backends: where this box's backends are.
            secret: the fleet's.
            box: name of this box, for the messages of others.
            tls_cert: certificate, with those above it, in PEM; None: no TLS.
            tls_key: its key.
            max_passages: boxes' connections at once; further ones are refused.
            max_unknown: connections that have not shown the secret; further ones are closed.
            head_timeout_s: how long a connection may stay unknown.
            linger_s: after an engine's end of stream, until the box's side is closed too.

        Raises:
            ValueError: there is no secret, or certificate and key cannot be used.
        """
        if not secret:
            raise ValueError("a gate needs a secret: set box.secret or box.secret_file")
        self.backends = backends
        self.box = box
        self.head_timeout_s = head_timeout_s
        self.linger_s = linger_s
        self._secret = secret.encode()
        self._tls_files = (tls_cert, tls_key)
        self._tls = None if tls_cert is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._tls is not None:
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
            self.renew_certificate()
        self._max_passages, self._max_unknown = max_passages, max_unknown
        self._unknown: set[_BoxSide] = set()
        self._passages: set[_BoxSide] = set()
        self._told_s: dict[str, float] = {}
        self._listeners: list[asyncio.Server] = []
        self._closed = False
        self.tasks = Tasks()

    @property
    def passages(self) -> int:
        """Connections of other boxes to engines here, idle ones included: boxes keep theirs for a few seconds."""
        return len(self._passages)

    def renew_certificate(self) -> None:
        """Read certificate and key again; new connections get them. What is in use stays if they cannot be used.

        Raises:
            ValueError: they cannot be used.
        """
        cert, key = self._tls_files
        if self._tls is None or cert is None:
            return
        try:
            # First into a context of its own: a certificate without its key must not take the place of a good pair.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls):
                context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"box.tls_cert {cert} and box.tls_key {key} cannot be used: {why}. "
                "How to fix: name a certificate and its key, without a password, in PEM, readable for slotgate's user"
            ) from error

    async def start(self, sockets: list[socket.socket]) -> None:
        """Listen on sockets that are bound already; they are closed with the gate."""
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {"ssl": self._tls, "ssl_handshake_timeout": self.head_timeout_s, "ssl_shutdown_timeout": _TLS_FLUSH_S}
        for each in sockets:
            self._listeners.append(await loop.create_server(lambda: _BoxSide(self), sock=each, **tls))

    def stop_listening(self) -> None:
        """Take no new connections; passages stay. Boxes close those that they do not need within a few seconds."""
        self._closed = True
        for listener in self._listeners:
            listener.close()
        for side in tuple(self._unknown):
            side.abort()

    async def close(self) -> None:
        """Close everything; answers that still run are cut as if their engines had reset them."""
        self.stop_listening()
        await self.tasks.close()
        for side in tuple(self._passages):
            side.reset()

    # What connections ask for.

    def enter(self, side: "_BoxSide") -> bool:
        """A stranger; False: there are too many."""
        if self._closed or len(self._unknown) >= self._max_unknown:
            return False
        self._unknown.add(side)
        return True

    def admit(self, side: "_BoxSide") -> bool:
        """It has shown the secret; False: there are too many."""
        self._unknown.discard(side)
        if len(self._passages) >= self._max_passages:
            return False
        self._passages.add(side)
        return True

    def leave(self, side: "_BoxSide") -> None:
        """It is closed."""
        self._unknown.discard(side)
        self._passages.discard(side)

    def knows(self, authorization: str) -> bool:
        """Whether a header shows the secret; takes as long for every wrong one of the same length."""
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._secret)

    def refused(self, address: str) -> None:
        """Log a wrong secret, unless the same address was told of just now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s.get(address, float("-inf")) < TOLD_EVERY_S:
            return
        if len(self._told_s) >= _MAX_TOLD:
            self._told_s = {known: at_s for known, at_s in self._told_s.items() if now_s - at_s < TOLD_EVERY_S}
            if len(self._told_s) >= _MAX_TOLD:
                return
        self._told_s[address] = now_s
        log.warning("secret refused at the gate", peer=address, fix="set box.secret to the same on all boxes")


class _BoxSide(Side):
    """The connection of another box: a stranger at first."""

    def __init__(self, gate: GateListener) -> None:
        super().__init__()
        self.gate = gate
        """Which one of the box it is; empty: it did not tell."""
        self._engine: EngineSide | None = None
        self._head: bytes | None = b""
        """What came of it; None: it is answered, or being so."""
        self._early = b""
        """What came behind the head before the engine was there."""
        self._timer: asyncio.TimerHandle | None = None
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.gate.enter(self):
            self.abort()
            return
        watch_peer(transport)
        self._timer = asyncio.get_running_loop().call_later(self.gate.head_timeout_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
        elif self._head is None:
            self._early += data
            if len(self._early) > BUFFER_BYTES:
                self.hold()
        else:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not self._head.startswith(_BEGINNING[: len(self._head)]):  # TLS where there is none, above all
                self._answer(400, _NOTHING_ELSE)
            elif len(head) > MAX_HEAD_BYTES:
                self._answer(431, f"a head has at most {MAX_HEAD_BYTES} bytes")
            elif end:
                self._head, self._early = None, rest
                self._judge(head)

    def eof_received(self) -> bool:
        """The box has left: boxes never half-close."""
        self._let_engine_go()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.transport = None
        self._stop_timer()
        self._let_engine_go()
        self.gate.leave(self)

    def _let_engine_go(self) -> None:
        if self._dialing is not None:
            self._dialing.cancel()
        if self._engine is not None:
            self._engine.leave()

    def _judge(self, head: bytes) -> None:
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._answer(400, _NOTHING_ELSE)
        elif not self.gate.knows(headers.get("authorization", "")):
            self.gate.refused(self._address())
            self._answer(401, "the secret is another one here")
        elif not self.gate.admit(self):
            self._answer(503, "this gate has no room for a further connection")
        else:
            self._stop_timer()
            self._dial(words[1])

    def _dial(self, backend: str) -> None:
        try:
            endpoint = self.gate.backends.endpoint(backend)
        except LookupError:
            self._answer(404, f"{backend!r} is not there now")
            return
        if endpoint.gate is not None:
            self._answer(404, f"{backend!r} is another box's")
            return
        self._dialing = self.gate.tasks.start(self._connect(endpoint), "gate")

    async def _connect(self, endpoint: Endpoint) -> None:
        engine = EngineSide(self.gate.linger_s)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if endpoint.unix_path is not None:
                    await loop.create_unix_connection(lambda: engine, endpoint.unix_path)
                else:
                    await loop.create_connection(lambda: engine, endpoint.address, endpoint.port)
        except TimeoutError:
            self._answer(502, f"no connection with {endpoint} within {CONNECT_TIMEOUT_S:g} s")
        except OSError as error:
            self._answer(502, f"{endpoint}: {error.strerror or error}")
        else:
            self._open(endpoint, engine)
        finally:
            self._dialing = None
            if self._engine is None:
                engine.abort()

    def _open(self, endpoint: Endpoint, engine: EngineSide) -> None:
        if not self.open:
            return
        if not engine.open:
            self._answer(502, f"{endpoint}: closed at once")
            return
        told = [(HEADER_BOX, self.gate.box), (HEADER_HOST, endpoint.host), (HEADER_PREFIX, endpoint.prefix)]
        told += [(HEADER_ENGINE, f"{name}: {value}") for name, value in endpoint.headers]
        self._write_head(200, "OK", told)
        self._engine = self.other = engine
        engine.other = self
        if self._early:
            engine.transport.write(self._early)
            self._early = b""
        if not engine.full:
            self.go_on()

    def _answer(self, status: int, reason: str) -> None:
        self._head = None
        self._stop_timer()
        if not self.open:
            return
        body = reason.encode("utf-8", "replace") + b"\n"
        told = [(HEADER_BOX, self.gate.box), ("Content-Type", "text/plain; charset=utf-8")]
        self._write_head(status, _REASONS[status], [*told, ("Content-Length", str(len(body))), ("Connection", "close")])
        self.transport.write(body)
        self.transport.close()

    def _write_head(self, status: int, phrase: str, headers: list[tuple[str, str]]) -> None:
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers if value), "", ""]
        self.transport.write("\r\n".join(lines).encode("latin-1", "replace"))

    def _too_slow(self) -> None:
        self._timer = None
        self._answer(408, f"no whole head within {self.gate.head_timeout_s:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _address(self) -> str:
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else "unknown"


def _no_password() -> str:
    raise ValueError("the key wants a password")
