"""A proxy in the small, for tests: scripted engine, pool, frontend and raw clients, all over real sockets."""

import asyncio
import contextlib
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httptools
from aiohttp import web

from proxy.endpoint import Endpoint
from proxy.relay import (
    AttemptError,
    Client,
    ConnectionPool,
    Exchanged,
    Frontend,
    Outgoing,
    check_request,
    exchange,
    read_body,
)

CHUNKED_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def sized(body: bytes, status: str = "200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status.encode(), len(body), extra, body)


class Call:
    """One request as the scripted engine got it, and the way back."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = head
        self.body = body
        self.reader = reader
        self.writer = writer

    def write(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def gone(self) -> None:
        """Wait until the proxy closes the connection."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read() == b""

    def reset(self) -> None:
        """Close with RST, as a killed process does."""
        sock = self.writer.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


class ScriptedEngine:
    """Answers each request by a script; keeps the connection unless the script closed it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.connections = 0
        self.open = 0
        self.reads_bodies = True
        self.endpoint = Endpoint(host="")
        self._server: asyncio.Server | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, *, unix: bool = False) -> None:
        if unix:
            self._folder = tempfile.TemporaryDirectory()
            path = str(Path(self._folder.name) / "engine.sock")
            self._server = await asyncio.start_unix_server(self._serve, path, limit=2**20)
            self.endpoint = Endpoint(host="localhost", unix_path=path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
            port = self._server.sockets[0].getsockname()[1]
            self.endpoint = Endpoint(host=f"127.0.0.1:{port}", port=port, address="127.0.0.1")

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._folder is not None:
            self._folder.cleanup()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self.connections += 1
        self.open += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:") and self.reads_bodies:
                        length = int(line.split(b":")[1])
                call = Call(head, await reader.readexactly(length), reader, writer)
                self.calls.append(call)
                await self.script(call)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()


class Got:
    """An answer as a strict client understood it."""

    def __init__(self, raw: bytes, status: int, headers: dict[str, str], body: bytes, complete: bool) -> None:
        self.raw = raw
        self.status = status
        self.headers = headers
        self.body = body
        self.complete = complete


class RawClient:
    """A client that speaks bytes and checks framing with llhttp."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._rest = b""
        self._reset()

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = b""
        self._complete: Any = False
        self._raw = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._complete = True

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def post(self, path: str = "/api/chat", body: bytes = b"{}", extra: bytes = b"", version: str = "1.1") -> None:
        self.send(
            f"POST {path} HTTP/{version}\r\nHost: slotgate\r\nContent-Length: {len(body)}\r\n".encode(),
            extra,
            b"\r\n",
            body,
        )

    async def answer(self) -> Got:
        """Read one answer, or what comes of it until the connection ends."""
        self._reset()
        parser = httptools.HttpResponseParser(self)
        while not self._complete:
            data, self._rest = self._rest or await self._read(), b""
            if not data:
                break
            # Byte by byte only where two answers meet: llhttp does not say where the first one ended.
            if data.count(b"HTTP/1.1 ") > 1 or (self._raw and b"HTTP/1.1 " in data):
                for index in range(len(data)):
                    parser.feed_data(data[index : index + 1])
                    self._raw += data[index : index + 1]
                    if self._complete:
                        self._rest = data[index + 1 :]
                        break
            else:
                parser.feed_data(data)
                self._raw += data
        status = parser.get_status_code() if self._raw else 0
        return Got(self._raw, status, self._headers, self._body, self._complete)

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(10):
                return await self.reader.read(65536)
        except ConnectionError:
            return b""

    async def ended(self) -> bool:
        """The proxy closed the connection, properly or not."""
        return await self._read() == b""

    def close(self) -> None:
        self.writer.transport.abort()


Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Rig:
    """Everything between a raw client and a scripted engine."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(self._silent)
        self.pool: Any = None
        self.frontend: Any = None
        self.port = 0
        self.path = ""
        self.options: dict[str, Any] = {}
        """Given to every `exchange`; callables are called per attempt."""
        self.extra: list[tuple[str, str]] = [("X-Slotgate-Backend", "gpu0")]
        self.results: list[Exchanged] = []
        self.errors: list[AttemptError] = []
        self.cancelled = 0
        self.first_bytes = 0
        self.clients: list[RawClient] = []
        self.answer: Answer = self.relay
        self._server: Any = None

    async def _silent(self, call: Call) -> None:
        await call.gone()

    async def __aenter__(self) -> Self:
        await self.engine.start()
        self.pool = ConnectionPool(self.engine.endpoint, sweep_interval_s=0.02)
        self.frontend = Frontend(self._answer)
        self._server = await asyncio.get_running_loop().create_server(self.frontend, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.close()
        self._server.close()
        await self.frontend.shutdown(1)
        self.pool.close()
        await self.engine.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.answer(request)

    async def relay(self, request: web.BaseRequest) -> web.StreamResponse:
        """The smallest thing around `exchange` that a proxy can be."""
        client = Client(request)
        if (refused := check_request(request)) is not None:
            client.keep_alive = False
            client.reply(refused[0], [], refused[1].encode())
            return client.response()
        outgoing = Outgoing(
            request.method, request.raw_path, list(request.headers.items()), await read_body(request, 2**26)
        )
        await self.attempt(client, outgoing)
        return client.response()

    async def attempt(self, client: Client, outgoing: Outgoing) -> None:
        options = {name: value() if name in ("transform", "watch") else value for name, value in self.options.items()}
        try:
            self.results.append(
                await exchange(
                    self.pool, outgoing, client, on_first_byte=self._first_byte, headers=self.extra, **options
                )
            )
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except AttemptError as error:
            self.errors.append(error)
            if error.committed:
                client.cut(b'{"error":"engine died"}\n')
            elif not client.head_sent:
                client.reply(502, [], str(error.failure).encode())

    def _first_byte(self) -> None:
        self.first_bytes += 1

    async def connect(self, *, receive_buffer_bytes: int | None = None) -> RawClient:
        sock = socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**16)
        client = RawClient(reader, writer)
        self.clients.append(client)
        return client

    async def ask(self, **request: Any) -> Got:
        """One request over its own connection."""
        client = await self.connect()
        client.post(**request)
        got = await client.answer()
        client.close()
        return got


class EndMark:
    """A watch for Ollama's end mark."""

    def __init__(self) -> None:
        self.seen = b""

    def see(self, data: bytes) -> None:
        self.seen += data

    def complete(self) -> bool:
        return b'"done":true' in self.seen


class Upper:
    """A transform that changes every byte, or only those before a mark."""

    def __init__(self, until_mark: bytes | None = None, *, swallow: bool = False) -> None:
        self.mark = until_mark
        self.swallow = swallow
        self.kept = b""
        self.passthrough = False

    def head(self, status: int, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [("Content-Type", "text/upper"), *[pair for pair in headers if pair[0] != "Content-Type"]]

    def feed(self, data: bytes) -> bytes:
        if self.swallow:
            self.kept += data
            return b""
        if self.mark is not None and self.mark in data:
            self.passthrough = True
        return data.upper()

    def finish(self) -> bytes:
        return self.kept.upper() + b"."
