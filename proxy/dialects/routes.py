"""Owns the allow-list of paths: what clients may reach, in which dialect. Must not know engines, bodies or backends.

Engines decode percent-escapes, repeated slashes and dots before they route, so only an exact match on the path as it
came over the wire is safe. Nothing is normalised here: what is not in the table, letter for letter, does not exist.
"""

import re
from enum import StrEnum
from urllib.parse import unquote

import msgspec

from proxy.dialects.contract import Headers
from proxy.dialects.reading import names
from scheduler.domain import Dialect, Operation


class Kind(StrEnum):
    """Who answers a route."""

    INFERENCE = "inference"
    """An engine, chosen by the scheduler."""
    LOCAL = "local"
    """slotgate itself, from what it knows of all backends."""


class Route(msgspec.Struct, frozen=True):
    """One path that clients may use."""

    method: str
    path: str
    """Canonical; `/v1/models/{model}` where the last part is a name."""
    dialect: Dialect
    operation: Operation | None = None
    """None for routes that slotgate answers itself."""
    kind: Kind = Kind.INFERENCE
    model: str | None = None
    """The decoded last part of `/v1/models/{model}`."""
    query: tuple[tuple[str, str], ...] = ()
    """The documented parameters of the query string; all others are dropped."""


class RouteError(msgspec.Struct, frozen=True):
    """The answer to a request that has no route."""

    status: int
    headers: Headers
    body: bytes


def _table() -> dict[tuple[str, str], Route]:
    ollama, openai, anthropic, llamacpp = Dialect.OLLAMA, Dialect.OPENAI, Dialect.ANTHROPIC, Dialect.LLAMACPP
    inference = [
        (ollama, "/api/generate", Operation.GENERATE),
        (ollama, "/api/chat", Operation.CHAT),
        (ollama, "/api/embed", Operation.EMBED),
        (ollama, "/api/embeddings", Operation.EMBED),
        (openai, "/v1/chat/completions", Operation.CHAT),
        (openai, "/v1/completions", Operation.GENERATE),
        (openai, "/v1/responses", Operation.CHAT),
        (openai, "/v1/embeddings", Operation.EMBED),
        (anthropic, "/v1/messages", Operation.CHAT),
        (anthropic, "/v1/messages/count_tokens", Operation.TOKENIZE),
        (llamacpp, "/completion", Operation.GENERATE),
        (llamacpp, "/completions", Operation.GENERATE),
        (llamacpp, "/infill", Operation.INFILL),
        (llamacpp, "/tokenize", Operation.TOKENIZE),
        (llamacpp, "/detokenize", Operation.TOKENIZE),
        (llamacpp, "/apply-template", Operation.TOKENIZE),
        (llamacpp, "/embedding", Operation.EMBED),
        (llamacpp, "/rerank", Operation.RERANK),
        (llamacpp, "/v1/rerank", Operation.RERANK),
    ]
    local = [
        ("GET HEAD", ollama, "/"),
        ("GET HEAD", ollama, "/api/version"),
        ("GET HEAD", ollama, "/api/tags"),
        ("GET", ollama, "/api/ps"),
        ("POST", ollama, "/api/show"),
        ("GET", openai, "/v1/models"),
        ("GET", openai, "/v1/models/{model}"),
        ("GET", llamacpp, "/props"),
        ("GET", llamacpp, "/slots"),
        ("GET", llamacpp, "/health"),
    ]
    routes = [Route("POST", path, dialect, operation) for dialect, path, operation in inference]
    routes += [Route(m, path, dialect, kind=Kind.LOCAL) for methods, dialect, path in local for m in methods.split()]
    return {(route.method, route.path): route for route in routes}


ROUTES: dict[tuple[str, str], Route] = _table()
"""Everything that clients can reach, by method and canonical path."""

_METHODS: dict[str, list[str]] = {}
for _method, _path in ROUTES:
    _METHODS.setdefault(_path, []).append(_method)

_QUERY = {"/slots": ("fail_on_no_slot",)}
"""Query parameters that mean something, by path."""

_CLOSED = {
    "/api/pull": "POST",
    "/api/push": "POST",
    "/api/create": "POST",
    "/api/copy": "POST",
    "/api/delete": "DELETE",
}
"""Ollama's routes that change the model store."""

_CLOSED_TEXT = (
    "changing the model store is closed at slotgate: pull, push, create, copy and delete models at the backend itself, "
    "for example with OLLAMA_HOST set to the backend's own address"
)

_LLAMACPP_ROOTS = frozenset(
    names(
        "apply-template chat completion completions detokenize embedding embeddings health infill lora-adapters "
        "metrics models props rerank reranking responses slots tokenize tools cors-proxy predict"
    )
)
"""First path segments under which llama.cpp clients look for things; a miss is answered in that server's form."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)*")
_MODEL_PREFIX = "/v1/models/"
_BLOB_PREFIX = "/api/blobs/"
_TEXT = ("Content-Type", "text/plain")
_JSON = ("Content-Type", "application/json; charset=utf-8")


def find(method: str, raw_path: str) -> Route | RouteError:
    """The route for a request target exactly as it came over the wire, or the answer to give when there is none.

    Unknown paths get Ollama's `404 page not found`, or llama-server's JSON where a llama.cpp client would ask; a
    known path with another method gets Ollama's 405 with `Allow` (llama-server has no 405: its paths get its 404).
    """
    path, _, query = raw_path.partition("?")
    route = ROUTES.get((method, path))
    if route is not None:
        return _with_query(route, query) if query and path in _QUERY else route
    if path.startswith(_MODEL_PREFIX):
        return _model_route(method, path)
    if path in _METHODS:
        return _wrong_method(path, _METHODS[path])
    if path in _CLOSED or path.startswith(_BLOB_PREFIX):
        allowed = [_CLOSED[path]] if path in _CLOSED else ["HEAD", "POST"]
        return _closed() if method in allowed else _wrong_method(path, allowed)
    return _unknown(path)


def _with_query(route: Route, query: str) -> Route:
    kept = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name in _QUERY[route.path]:
            kept.append((name, unquote(value)))
    return msgspec.structs.replace(route, query=tuple(kept))


def _model_route(method: str, path: str) -> Route | RouteError:
    name = unquote(path.removeprefix(_MODEL_PREFIX))
    if not _MODEL_NAME.fullmatch(name):
        return _unknown(path)
    route = ROUTES.get((method, "/v1/models/{model}"))
    if route is None:
        return _wrong_method(path, _METHODS["/v1/models/{model}"])
    return msgspec.structs.replace(route, model=name)


def _unknown(path: str) -> RouteError:
    if path[1:].partition("/")[0] in _LLAMACPP_ROOTS:
        body = b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'
        return RouteError(404, [_JSON], body)
    return RouteError(404, [_TEXT], b"404 page not found")


def _wrong_method(path: str, allowed: list[str]) -> RouteError:
    if path[1:].partition("/")[0] in _LLAMACPP_ROOTS:
        return _unknown(path)
    return RouteError(405, [("Allow", ", ".join(allowed)), _TEXT], b"405 method not allowed")


def _closed() -> RouteError:
    return RouteError(403, [_JSON], msgspec.json.encode({"error": _CLOSED_TEXT}))
