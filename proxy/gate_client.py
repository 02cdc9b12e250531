"""Dials the gates of other boxes: TCP, TLS, secret, backend; what follows is that engine's. Must not know requests."""

import asyncio
import functools
import socket
import ssl
from pathlib import Path
from typing import Any, Final, TypeVar

from proxy.endpoint import Endpoint, Gate

P = TypeVar("P", bound=asyncio.Protocol)

MAX_ANSWER_BYTES: Final = 16 * 1024
"""Of a gate's answer: a few headers and a reason."""
HEADER_BOX: Final = "Slotgate-Box"
"""In a gate's answer: the name of its box."""
HEADER_HOST: Final = "Slotgate-Host"
"""In a gate's answer: what the engine wants as Host."""
HEADER_PREFIX: Final = "Slotgate-Prefix"
"""In a gate's answer: what the engine's paths begin with."""
HEADER_ENGINE: Final = "Slotgate-Engine-Header"
"""In a gate's answer, any number of times: a header, with its value, that the engine wants in every request."""
_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 35_000}
"""A box that vanished from the network (loss of power) is noticed after 35 s, with or without data on its way to it."""


class GateError(ConnectionError):
    """There is no way through a gate; the message says whose, why and, where that is known, how to mend it."""


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask a silent peer now and then whether it is still there. Not for unix sockets."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class GateClient:
    """How this box makes itself known at the gates of others."""

    def __init__(self, secret: str = "", tls_ca: Path | None = None) -> None:
        """Set it up; dials nobody.

        Args:
            secret: the fleet's; empty: gates cannot be used from here.
            tls_ca: certificates to check gates against, in PEM; None: those that the system trusts.

        Raises:
            ValueError: there are no certificates in `tls_ca`, or it cannot be read.
        """
        self._secret = secret
        self._tls_ca = tls_ca
        if tls_ca is not None:
            _ = self._tls

    async def connect(self, gate: Gate, protocol: P) -> tuple[P, Endpoint]:
        """Have a protocol connected with the engine of a backend behind a gate, as if it had been to the engine.

        Returns:
            The protocol, and the engine's endpoint as its requests must name it: Host, prefix and headers.

        Raises:
            GateError: the gate cannot be reached, refused, or is none.
        """
        place = f"[{gate.host}]:{gate.port}" if ":" in gate.host else f"{gate.host}:{gate.port}"
        if not self._secret:
            raise GateError(f"the gate {place} wants the fleet's secret: set box.secret or box.secret_file on this box")
        loop = asyncio.get_running_loop()
        knock = _Knock(self._request(gate, place), place, protocol)
        try:
            await loop.create_connection(lambda: knock, gate.host, gate.port, ssl=self._tls if gate.tls else None)
        except ssl.SSLCertVerificationError as error:
            raise GateError(
                f"the certificate of the gate {place} is not trusted: {error.verify_message}. "
                "How to fix: set box.tls_ca to the certificates it is signed with, and box.gate_address of that box to "
                "a name in its certificate"
            ) from None
        except ssl.SSLError as error:
            raise GateError(f"no TLS with the gate {place}: {error.reason or error}") from None
        except OSError as error:
            raise GateError(f"the gate {place}: {error.strerror or str(error) or 'closed at once'}") from None
        try:
            return protocol, await knock.done
        except BaseException:
            knock.abort()
            raise

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._tls_ca)
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"box.tls_ca {self._tls_ca} cannot be used: {why}. How to fix: name a file with certificates in PEM"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    def _request(self, gate: Gate, place: str) -> bytes:
        if not gate.backend.isascii() or not gate.backend.isprintable() or " " in gate.backend:
            raise GateError(f"{gate.backend!r} is no name of a backend at the gate {place}")
        lines = [f"CONNECT {gate.backend} HTTP/1.1", f"Host: {place}", f"Authorization: Bearer {self._secret}"]
        return "\r\n".join([*lines, "", ""]).encode()


class _Knock(asyncio.Protocol):
    """Asks at the gate; let in, it hands the connection over within the same read event, so that nothing is missed."""

    def __init__(self, request: bytes, place: str, protocol: asyncio.Protocol) -> None:
        self._request = request
        self._place = place
        self._protocol = protocol
        self._transport: Any = None
        self._answer = b""
        self.done: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        watch_peer(transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        try:
            if not self._answer.startswith(b"HTTP/1.1 "[: len(self._answer)]) or len(self._answer) > MAX_ANSWER_BYTES:
                raise GateError(f"{self._place} is no gate: it answers {self._answer[:32]!r}")
            if not end:
                return
            status, headers = _parsed(head)
            if status == 200:
                self._let_in(headers, body)
            elif len(body) >= int(_first(headers, "Content-Length") or 0):
                raise GateError(self._refusal(status, headers, body))
        except (GateError, ValueError) as error:
            self._fail(error if isinstance(error, GateError) else GateError(f"{self._place} is no gate: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        why = getattr(error, "strerror", None) or str(error or "closed without an answer; does it want TLS?")
        self._fail(GateError(f"the gate {self._place}: {why}"))

    def abort(self) -> None:
        """Close at once, also where the connection was handed over and nobody waits for it any more."""
        self.done.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _let_in(self, headers: list[tuple[str, str]], body: bytes) -> None:
        if body:
            raise GateError(f"the engine behind the gate {self._place} spoke first")
        pairs = [value.partition(":") for name, value in headers if name == HEADER_ENGINE.lower()]
        endpoint = Endpoint(
            host=_first(headers, HEADER_HOST) or "localhost",
            prefix=_first(headers, HEADER_PREFIX) or "",
            headers=tuple((name.strip(), value.strip()) for name, _, value in pairs),
        )
        self._transport.set_protocol(self._protocol)
        self._protocol.connection_made(self._transport)
        self.done.set_result(endpoint)

    def _refusal(self, status: int, headers: list[tuple[str, str]], body: bytes) -> str:
        name = _first(headers, HEADER_BOX)
        box = f"box {name} ({self._place})" if name else f"the gate {self._place}"
        reason = body.decode("utf-8", "replace").strip()
        return {
            401: f"{box} refused the secret: set box.secret to the same on both boxes",
            404: f"{box} has no such backend: {reason}",
            502: f"{box} does not reach its engine: {reason}",
        }.get(status, f"{box} answered {status}: {reason}")

    def _fail(self, error: GateError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # told where it is awaited; nobody may be left to
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


def _parsed(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    """Status, and headers with names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return int(first.split(" ")[1]), [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def _first(headers: list[tuple[str, str]], name: str) -> str | None:
    return next((value for known, value in headers if known == name.lower()), None)
