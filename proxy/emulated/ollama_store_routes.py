"""The routes of an emulated Ollama that change its model store, or its account. Must not know loads or slots."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from proxy.emulated.faults import Fault, Kind
from proxy.emulated.go_values import read_object
from proxy.emulated.ollama_create import create
from proxy.emulated.ollama_heads import JSON, NDJSON, PLAIN_JSON, OllamaError, go_json, send
from proxy.emulated.ollama_names import Name, read_name
from proxy.emulated.ollama_registry import Record, Registry, RegistryError
from proxy.emulated.ollama_store import Store, StoredModel, blob_path, sha256
from proxy.emulated.wire import Exchange
from proxy.tasks import Tasks

_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}\Z")
_BAD_NAME = "invalid model name"
Find = Callable[..., StoredModel]


class StoreRoutes:
    """Pull, push, create, copy, delete, blobs; and the account.

    Args:
        store: that they change.
        registry: from which is pulled.
        find: finds a model of the store by a name of a request, or raises as the routes do.
        cloud: whether somebody is signed in.
    """

    def __init__(self, store: Store, registry: Registry, find: Find, *, cloud: bool) -> None:
        self._store, self._registry, self._find, self._cloud = store, registry, find, cloud
        self._tasks = Tasks()

    async def close(self) -> None:
        """Stop what goes on."""
        await self._tasks.close()
        await self._registry.close()

    # -- models

    async def copy(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/copy."""
        body = read_object(exchange.body, "api.CopyRequest")
        name = read_name(str(body.get("destination") or ""))
        if name is None:
            raise OllamaError(400, f'destination "{body.get("destination") or ""}" is invalid')
        self._store.copy(self._find(body.get("source"), quote='"'), name)
        exchange.whole(200, [], b"")

    async def delete(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """DELETE /api/delete. What is loaded stays so."""
        body = read_object(exchange.body, "api.DeleteRequest")
        self._store.remove(self._find(body.get("model") or body.get("name")))
        exchange.whole(200, [], b"")

    async def pull(self, exchange: Exchange, fault: Fault | None) -> None:
        """POST /api/pull."""
        body = read_object(exchange.body, "api.PullRequest")
        name = _name_of(body)
        failing = fault is not None and fault.kind is Kind.PULL_FAILS
        after = fault.after_bytes if fault is not None and failing else None
        message = fault.message if fault is not None else ""
        await self._progress(exchange, body, self._registry.pull(name, after, message))

    async def push(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/push."""
        body = read_object(exchange.body, "api.PushRequest")
        if not (body.get("model") or body.get("name")):
            raise OllamaError(400, "model is required")
        model = self._find(body.get("model") or body.get("name"))
        await self._progress(exchange, body, self._registry.push(model.name, model.manifest))

    async def create(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/create."""
        body = read_object(exchange.body, "api.CreateRequest")
        name = _name_of(body)
        await self._progress(exchange, body, self._create(name, body))

    async def _create(self, name: Name, body: dict[str, Any]) -> AsyncGenerator[Record, None]:
        base, weights = None, ""
        if body.get("from"):
            base = self._store.find(str(body["from"]))
            if base is None:  # it is pulled first
                source = _name_of({"model": body["from"]})
                async with aclosing(self._registry.pull(source)) as records:
                    async for record in records:
                        if record["status"] != "success":
                            yield record
                base = self._store.find(str(body["from"]))
        elif isinstance(body.get("files"), dict) and body["files"]:
            weights = str(next(iter(body["files"].values())))
            if not _DIGEST.match(weights):
                raise RegistryError("invalid digest format", 400)
            if not self._store.has(weights):
                raise RegistryError(f"open {self._store.place(weights)}: no such file or directory")
        else:
            raise RegistryError("neither 'from' or 'files' was specified", 400)
        steps: Iterator[Record] = create(self._store, name, body, base, weights)
        for record in steps:
            yield record

    async def _progress(self, exchange: Exchange, body: dict[str, Any], records: AsyncGenerator[Record, None]) -> None:
        """Send records as they come, or the last one. A client that leaves stops the work."""
        task = self._tasks.start(self._send(exchange, records, streams=body.get("stream") is not False), "progress")

        def stop() -> None:
            task.cancel()

        exchange.on_gone = stop
        if exchange.gone:
            stop()
        try:
            await task
        except asyncio.CancelledError:
            exchange.abort()
            if not exchange.gone:
                raise
        finally:
            exchange.on_gone = None

    @staticmethod
    async def _send(exchange: Exchange, records: AsyncGenerator[Record, None], *, streams: bool) -> None:
        last: Record = {}
        status = 200
        async with aclosing(records) as each:
            try:
                async for record in each:
                    last = record
                    if streams:
                        _send_line(exchange, record)
            except RegistryError as error:
                last, status = {"error": str(error)}, error.status
                if streams and not exchange.status:
                    raise OllamaError(error.status, str(error)) from None
                if streams:
                    _send_line(exchange, last)
        if streams:
            exchange.end()
        else:
            send(exchange, go_json(last), status, headers=PLAIN_JSON)

    # -- blobs

    async def blob(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """HEAD or POST /api/blobs/DIGEST."""
        digest = exchange.path.removeprefix("/api/blobs/")
        if not _DIGEST.match(digest):
            raise OllamaError(400, "invalid digest format")
        digest = digest.replace("-", ":")
        known = self._store.has(digest)
        if exchange.method == "HEAD":
            if known:
                exchange.whole(200, [], b"")
            else:
                exchange.whole(404, JSON, go_json({"error": f'blob "{digest}" not found'}))
            return
        if known:
            exchange.whole(200, [], b"")
            return
        found = sha256(exchange.body)
        if found != digest:
            raise OllamaError(400, f'digest mismatch, expected "{digest}", got "{found}"')
        self._store.files.write(blob_path(digest), exchange.body)
        exchange.whole(201, [], b"")

    # -- the account

    async def me(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/me."""
        if self._cloud:
            send(exchange, go_json({"id": "emulated", "email": "", "name": "emulated", "plan": "free"}))
        else:
            url = "https://ollama.com/connect?name=emulated&key=emulated"
            send(exchange, go_json({"error": "unauthorized", "signin_url": url}), 401)

    async def sign_out(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/signout, DELETE /api/user/keys/KEY."""
        if not self._cloud:
            raise OllamaError(401, "you are not currently signed in")
        exchange.whole(200, [], b"")

    async def recommendations(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """GET /api/experimental/model-recommendations."""
        send(exchange, go_json({"recommendations": []}))

    async def web(self, exchange: Exchange, fault: Fault | None) -> None:  # noqa: ARG002
        """POST /api/experimental/web_search and web_fetch."""
        search = exchange.path.endswith("web_search")
        if not self._cloud:
            raise OllamaError(403, f"ollama cloud is disabled: web {'search' if search else 'fetch'} is unavailable")
        send(exchange, go_json({"results": []} if search else {"title": "", "content": "", "links": []}))


def _name_of(body: dict[str, Any]) -> Name:
    name = read_name(str(body.get("model") or body.get("name") or ""))
    if name is None:
        raise OllamaError(400, _BAD_NAME)
    return name


def _send_line(exchange: Exchange, record: Record) -> None:
    if not exchange.status:
        exchange.begin(200, NDJSON)
    exchange.chunk(go_json(record) + b"\n")
