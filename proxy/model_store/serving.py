"""Ollama's routes that change models, for clients over HTTP: who may, and answers in Ollama's own form.

Owns the form; what is done is `changes`' and `blobs`' business.
"""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

from aiohttp import HttpVersion11, web

from proxy.config import Config
from proxy.dialects import Route
from proxy.dialects.contract import Headers
from proxy.model_store.blobs import Blobs
from proxy.model_store.changes import Changes
from proxy.model_store.guard import Guard
from proxy.model_store.listening import Listener
from proxy.model_store.names import blob_digest
from proxy.model_store.progress import error
from proxy.model_store.single import Outcome
from proxy.model_store.wishes import STREAMS, Change, read_wish
from proxy.relay import Client, read_body
from proxy.requests import RequestRecord
from proxy.telemetry.access_log import Phase
from proxy.tenancy import Tenancy
from scheduler.domain import Outcome as Ended

NDJSON = ("Content-Type", "application/x-ndjson")
JSON = ("Content-Type", "application/json")
JSON_UTF8 = ("Content-Type", "application/json; charset=utf-8")
BLOBS = "/api/blobs/{digest}"


class Serving:
    """Answers clients."""

    def __init__(self, changes: Changes, blobs: Blobs, config: Config, tenancy: Tenancy) -> None:
        self._changes = changes
        self._blobs = blobs
        self.reconfigure(config, tenancy)

    def reconfigure(self, config: Config, tenancy: Tenancy) -> None:
        """Take over another configuration."""
        self._guard = Guard(config.model_store, tenancy)
        self._limits = config.limits

    async def answer(
        self, route: Route, request: web.BaseRequest, client: Client, record: RequestRecord, headers: Headers
    ) -> None:
        """Answer a request whose body was not read yet.

        Raises:
            ClientError, BodyTooLarge: refused; nothing was answered.
            ConnectionError: the client broke off.
        """
        admin = self._guard.admit(request.headers)
        if route.path == BLOBS:
            await self._blob(blob_digest(route.model or ""), request, client, record, headers)
            return
        change = Change(route.path.rpartition("/")[2])
        record.operation = change.value
        body = await read_body(request, self._limits.max_body_bytes)
        record.bytes_in = len(body)
        wish = read_wish(change, body, admin=admin)
        record.model = wish.model
        streams = change in STREAMS and wish.stream
        listener = self._changes.begin(wish, patience_s=None if streams else self._limits.max_wait_s)
        record.phase = Phase.HEAD
        try:
            if streams:
                await self._stream(listener, client, record, headers)
            else:
                _whole(await listener.outcome(), change, client, record, headers)
        finally:
            self._changes.leave(listener)

    async def _stream(self, listener: Listener, client: Client, record: RequestRecord, headers: Headers) -> None:
        async for lines in listener.lines():
            _write(client, record, lines, headers)
            await _caught_up(client)
        outcome = await listener.outcome()
        if outcome.ok:
            _write(client, record, b'{"status":"success"}\n', headers, last=True)
            record.outcome = Ended.DONE
            return
        record.detail, record.outcome = outcome.error, Ended.ENGINE_REFUSED
        if client.head_sent:
            line = outcome.raw or error(outcome.error)
            client.write(line.rstrip(b"\n") + b"\n", last=True)
            return
        record.status = outcome.status
        client.reply(outcome.status, [JSON_UTF8, *headers], error(outcome.error))

    async def _blob(
        self, digest: str, request: web.BaseRequest, client: Client, record: RequestRecord, headers: Headers
    ) -> None:
        record.operation = "blob"
        if request.method == "HEAD":
            record.status = HTTPStatus.OK if await self._blobs.exists(digest) else HTTPStatus.NOT_FOUND
            record.outcome = Ended.DONE
            missing = error(f'blob "{digest}" not found')
            if record.status == HTTPStatus.OK:
                client.reply(record.status, headers, b"")
            else:
                client.reply(record.status, [JSON_UTF8, *headers], missing)
            return
        client.keep_alive = False  # until the body is read whole
        record.status = await self._blobs.upload(digest, request.content_length, _pieces(request, record))
        record.outcome = Ended.DONE
        client.keep_alive = request.keep_alive
        client.reply(record.status, headers, b"")


def _whole(outcome: Outcome, change: Change, client: Client, record: RequestRecord, headers: Headers) -> None:
    """An answer in one piece: that of copy and delete has no body."""
    record.status = outcome.status
    if outcome.ok:
        record.outcome = Ended.DONE
        body = b'{"status":"success"}' if change in STREAMS else b""
        client.reply(outcome.status, [*([JSON] if body else []), *headers], body)
        return
    record.detail, record.outcome = outcome.error, Ended.ENGINE_REFUSED
    form = JSON if change in STREAMS else JSON_UTF8
    client.reply(outcome.status, [form, *headers], outcome.raw or error(outcome.error))


def _write(client: Client, record: RequestRecord, lines: bytes, headers: Headers, *, last: bool = False) -> None:
    if not client.head_sent:
        record.status, record.phase = HTTPStatus.OK, Phase.DATA
        client.start(HTTPStatus.OK, [NDJSON, *headers])
    client.write(lines, last=last)


async def _caught_up(client: Client) -> None:
    """Return when the client has read enough for more to be written."""
    connection = client.connection
    if not connection.behind:
        return
    drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on() -> None:
        if not drained.done():
            drained.set_result(None)

    connection.on_drained = go_on
    try:
        await drained
    finally:
        connection.on_drained = None


async def _pieces(request: web.BaseRequest, record: RequestRecord) -> AsyncIterator[bytes]:
    """The body as it comes.

    Raises:
        ConnectionError: the client broke it off.
    """
    if "Expect" in request.headers and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        while piece := await request.content.readany():
            record.bytes_in += len(piece)
            yield piece
    except web.RequestPayloadError as broken:
        raise ConnectionError(f"the request's body broke: {broken}") from broken
