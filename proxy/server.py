"""The address that clients use: what every request must pass before anything is done for it.

Owns limits, host and origin rules, the allow-list of routes and the reading of bodies. Knows nothing of backends.
"""

from http import HTTPStatus

import structlog
from aiohttp import web

from proxy import dialects
from proxy.catalog import Catalog
from proxy.config import LimitsConfig
from proxy.dialects import ClientError, Kind, Route, RouteError
from proxy.dialects.contract import Headers
from proxy.inference import Inference
from proxy.model_store.serving import Serving
from proxy.origins import Origins
from proxy.relay import BodyTooLarge, Client, check_request, read_body
from proxy.requests import RequestBook, RequestRecord
from proxy.tenancy import Tenancy
from scheduler.domain import Dialect, Outcome

log = structlog.get_logger("slotgate.server")


class Server:
    """Answers clients; `answer` is what a `relay.Frontend` calls for each request."""

    def __init__(
        self,
        inference: Inference,
        catalog: Catalog,
        book: RequestBook,
        limits: LimitsConfig,
        origins: Origins,
        tenancy: Tenancy,
        changes: Serving,
    ) -> None:
        self._inference = inference
        self._catalog = catalog
        self._book = book
        self.limits = limits
        self.origins = origins
        self.tenancy = tenancy
        self._changes = changes
        self.served = 0
        """Requests that ended."""
        self._open_bytes = 0
        """Size of the bodies of all requests that are being answered."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and account for it whatever happens."""
        client = Client(request)
        path = request.raw_path.partition("?")[0]
        record = self._book.open(request.method, path, request.remote or "unix")
        try:
            await self._answer(request, client, record)
        except ConnectionError:
            client.abort()  # the client broke its request off
        except Exception:
            log.exception("request failed inside slotgate", request=record.id)
            record.outcome = Outcome.FAILED
            self._admit(client, record)
        finally:
            record.bytes_out = client.bytes_sent
            self._book.close(record)
            self.served += 1
        return client.response()

    def _admit(self, client: Client, record: RequestRecord) -> None:
        """Tell the client that the failure is ours, in its own dialect where that is known."""
        text = "slotgate failed inside; its log says how"
        if client.head_sent:
            client.abort()
        elif record.dialect is None:
            self._refuse(client, record, HTTPStatus.INTERNAL_SERVER_ERROR, text, [])
        else:
            error = ClientError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            self._client_error(client, record, Dialect(record.dialect), error, [("X-Slotgate-Request", record.id)])

    async def _answer(self, request: web.BaseRequest, client: Client, record: RequestRecord) -> None:
        if (refusal := check_request(request)) is not None:
            client.keep_alive = False
            self._refuse(client, record, refusal[0], refusal[1], [])
            return
        origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
        origins = self.origins
        if not origins.host_allowed(host) or (origin is not None and not origins.origin_allowed(origin, host)):
            self._reply(client, record, HTTPStatus.FORBIDDEN, [], b"")
            return
        if request.method == "OPTIONS" and origin is not None and not origins.same_origin(origin, host):
            methods = dialects.allowed_methods(request.raw_path.partition("?")[0])
            self._reply(client, record, HTTPStatus.NO_CONTENT, origins.preflight_headers(origin, methods), b"")
            return
        headers = [("X-Slotgate-Request", record.id), *origins.response_headers(origin, host)]
        found = dialects.find(request.method, request.raw_path)
        if isinstance(found, RouteError):
            self._reply(client, record, found.status, found.headers + headers, found.body)
            return
        record.dialect = found.dialect.value
        try:
            await self._route(found, request, client, record, headers)
        except BodyTooLarge as error:
            client.keep_alive = False
            too_large = ClientError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{error}; see limits.max_body_bytes")
            self._client_error(client, record, found.dialect, too_large, headers)
        except ClientError as error:
            self._client_error(client, record, found.dialect, error, headers)

    async def _route(
        self, route: Route, request: web.BaseRequest, client: Client, record: RequestRecord, headers: Headers
    ) -> None:
        if route.kind is Kind.STORE:
            record.tenant, record.priority = self.tenancy.of(request.headers, record.client)
            await self._changes.answer(route, request, client, record, headers)
            return
        body = await read_body(request, self.limits.max_body_bytes)
        record.bytes_in = len(body)
        if route.kind is Kind.LOCAL:
            status, local_headers, answer = await self._catalog.answer(route, body)
            self._reply(client, record, status, local_headers + headers, answer)
            return
        if self._open_bytes + len(body) > self.limits.max_open_bytes:
            raise ClientError(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are open; try again later")
        call = dialects.read_call(route, body, request.headers.items())
        record.operation = call.operation.value
        record.model = call.model
        record.tenant, record.priority = self.tenancy.of(request.headers, record.client)
        record.is_admin = self.tenancy.is_admin(request.headers)
        held = max(len(body), len(call.body))  # the latter is unpacked
        self._open_bytes += held
        try:
            await self._inference.run(call, client, record, headers)
        finally:
            self._open_bytes -= held

    def _client_error(
        self, client: Client, record: RequestRecord, dialect: Dialect, error: ClientError, headers: Headers
    ) -> None:
        record.detail = error.message
        status, error_headers, body = dialects.render_error(dialect, error.status, error.kind, error.message)
        self._reply(client, record, status, error_headers + headers, body, Outcome.REJECTED)

    def _refuse(self, client: Client, record: RequestRecord, status: int, reason: str, headers: Headers) -> None:
        """Refuse what is not even a request of a known dialect."""
        record.detail = reason
        body = f"{reason}\n".encode()
        self._reply(client, record, status, [("Content-Type", "text/plain; charset=utf-8"), *headers], body)

    @staticmethod
    def _reply(
        client: Client,
        record: RequestRecord,
        status: int,
        headers: Headers,
        body: bytes,
        outcome: Outcome | None = None,
    ) -> None:
        record.status = status
        if outcome is None:
            outcome = Outcome.DONE if status < HTTPStatus.BAD_REQUEST else Outcome.REJECTED
        if record.outcome is not Outcome.FAILED:
            record.outcome = outcome
        client.reply(status, headers, body)
