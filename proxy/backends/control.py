"""Owns asking engines small questions over HTTP. The only module that imports httpx, since its line moved to `httpx2`.

Requests of clients do not go this way; they go through `proxy.relay`.
"""

import asyncio
from typing import Any, TypeVar

import httpx
import msgspec

from proxy.endpoint import Endpoint
from proxy.gate_client import GateClient
from proxy.relay import AttemptError, Collector, ConnectionPool, Outgoing, exchange
from scheduler.domain import Failure

T = TypeVar("T")

KEEPALIVE_EXPIRY_S = 4.0
"""llama-server closes idle connections after 5 s."""


class ProbeError(Exception):
    """A question got no answer, or a bad one; the message is one line for `status`."""

    def __init__(self, message: str, *, refused: bool = False, loading: bool = False, another: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Nobody listens there."""
        self.loading = loading
        """The engine is alive and loads its model."""
        self.another = another
        """Another engine than the one that was meant answers there."""


class ControlAnswer(msgspec.Struct, frozen=True):
    """What came back."""

    path: str
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self, type_: type[T]) -> T:
        """The body, decoded and checked.

        Raises:
            ProbeError: it is something else.
        """
        try:
            return msgspec.json.decode(self.body, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProbeError(f"the answer to {self.path} is not what the engine should say: {error}") from error


class Control:
    """Questions to one endpoint, over a kept connection."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, gates: GateClient | None = None) -> None:
        self._endpoint = endpoint
        self._pool = ConnectionPool(endpoint, gates) if endpoint.gate is not None else None
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=f"http://{endpoint.host}{endpoint.prefix}",
            headers=dict(endpoint.headers),
            timeout=timeout_s,
            trust_env=False,  # an engine is asked directly, whatever proxy variables say
            transport=httpx.AsyncHTTPTransport(
                uds=endpoint.unix_path,
                verify=False,  # plain HTTP only; spares building a TLS context
                limits=httpx.Limits(max_keepalive_connections=2, keepalive_expiry=KEEPALIVE_EXPIRY_S),
            ),
        )

    async def get(self, path: str, timeout_s: float | None = None) -> ControlAnswer:
        """Ask; any status is an answer.

        Raises:
            ProbeError: none came within the timeout.
        """
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, content: Any, timeout_s: float | None = None) -> ControlAnswer:
        """Ask with a JSON body.

        Raises:
            ProbeError: no answer came within the timeout.
        """
        return await self._ask("POST", path, content, timeout_s)

    async def _ask(
        self, method: str, path: str, content: Any, timeout_s: float | None, again: bool = True
    ) -> ControlAnswer:
        if self._pool is not None:
            return await self._ask_through_gate(self._pool, method, path, content, timeout_s or self._timeout_s)
        try:
            response = await self._client.request(method, path, json=content, timeout=timeout_s or self._timeout_s)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
            if again:  # a kept connection that the engine closed meanwhile
                return await self._ask(method, path, content, timeout_s, again=False)
            raise ProbeError(f"{method} {path}: the connection broke: {_text(error)}") from error
        except httpx.ConnectError as error:
            raise ProbeError(f"cannot connect to {self._endpoint}: {_text(error)}", refused=True) from error
        except httpx.TimeoutException as error:
            raise ProbeError(f"{method} {path}: no answer within {timeout_s or self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise ProbeError(f"{method} {path}: {_text(error)}") from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return ControlAnswer(path, response.status_code, headers, response.content)

    @staticmethod
    async def _ask_through_gate(
        pool: ConnectionPool, method: str, path: str, content: Any, timeout_s: float
    ) -> ControlAnswer:
        """The same over the relay's connections, which know gates."""
        body = b"" if content is None else msgspec.json.encode(content)
        headers = [] if content is None else [("Content-Type", "application/json")]
        collector = Collector()
        try:
            async with asyncio.timeout(timeout_s):
                await exchange(
                    pool, Outgoing(method, path, headers, body), collector, on_first_byte=lambda: None, headers=[]
                )
        except TimeoutError:
            raise ProbeError(f"{method} {path}: no answer within {timeout_s:g} s") from None
        except AttemptError as error:
            refused, loading = error.failure is Failure.CONNECT, error.failure is Failure.LOADING
            raise ProbeError(f"{method} {path}: {error.detail}", refused=refused, loading=loading) from error
        told = {name.lower(): value for name, value in collector.headers}
        return ControlAnswer(path, collector.status, told, collector.body)

    async def close(self) -> None:
        """Close the kept connections."""
        if self._pool is not None:
            self._pool.close()
        await self._client.aclose()


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
