"""Owns the allow-list of paths: what clients may reach, in which dialect. Must not know engines, bodies or backends.

Engines decode percent-escapes, repeated slashes and dots before they route, so only an exact match on the path as it
came over the wire is safe. Nothing is normalised here: what is not in the table, letter for letter, does not exist. The
one thing done for a path that is not there is what Ollama does: a known one with a slash too much is redirected.
"""

import html
import re
import string
from enum import StrEnum
from http import HTTPStatus
from urllib.parse import quote, unquote

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
    STORE = "store"
    """The Ollamas' model stores, all of them; only for those who may change models."""


class Route(msgspec.Struct, frozen=True):
    """One path that clients may use."""

    method: str
    path: str
    """Canonical; `/v1/models/{model}` where the last part is a name, `/api/user/keys/{key}` where it is a key, and
    `/api/blobs/{digest}` where it is a blob."""
    dialect: Dialect
    operation: Operation | None = None
    """None for routes that slotgate answers itself."""
    kind: Kind = Kind.INFERENCE
    model: str | None = None
    """The decoded last part of `/v1/models/{model}`."""
    query: tuple[tuple[str, str], ...] = ()
    """The documented parameters of the query string; all others are dropped."""


TRANSCRIPTIONS = "/v1/audio/transcriptions"
"""The one route whose body is a form."""


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
        (openai, TRANSCRIPTIONS, Operation.CHAT),
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
        ("GET", ollama, "/api/status"),
        ("POST", ollama, "/api/me"),
        ("POST", ollama, "/api/signout"),
        ("DELETE", ollama, "/api/user/keys/{key}"),
        ("POST", ollama, "/api/experimental/web_search"),
        ("POST", ollama, "/api/experimental/web_fetch"),
        ("GET", ollama, "/api/experimental/model-recommendations"),
        ("GET", openai, "/v1/models"),
        ("GET", openai, "/v1/models/{model}"),
        ("GET", llamacpp, "/props"),
        ("GET", llamacpp, "/slots"),
        ("GET", llamacpp, "/health"),
    ]
    store = [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("HEAD", "/api/blobs/{digest}"),
        ("POST", "/api/blobs/{digest}"),
    ]
    routes = [Route("POST", path, dialect, operation) for dialect, path, operation in inference]
    routes += [Route(m, path, dialect, kind=Kind.LOCAL) for methods, dialect, path in local for m in methods.split()]
    routes += [Route(method, path, ollama, kind=Kind.STORE) for method, path in store]
    return {(route.method, route.path): route for route in routes}


ROUTES: dict[tuple[str, str], Route] = _table()
"""Everything that clients can reach, by method and canonical path."""

_METHODS: dict[str, list[str]] = {}
for _method, _path in ROUTES:
    _METHODS.setdefault(_path, []).append(_method)

_QUERY = {"/slots": ("fail_on_no_slot",)}
"""Query parameters that mean something, by path."""

_NOT_OLLAMAS = frozenset({"/v1/messages/count_tokens", "/v1/rerank"})
"""Paths that only a llama-server has, among those of the shared APIs."""

_URL_CHARS = string.ascii_letters + string.digits + string.punctuation
"""What stays as it is in a Location header; everything else is escaped."""

_LLAMACPP_ROOTS = frozenset(
    names(
        "apply-template chat completion completions detokenize embedding embeddings health infill lora-adapters "
        "metrics models props rerank reranking responses slots tokenize tools cors-proxy predict"
    )
)
"""First path segments under which llama.cpp clients look for things; a miss is answered in that server's form."""

_PATTERNS = {
    "/v1/models/": ("/v1/models/{model}", re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)*")),
    "/api/user/keys/": ("/api/user/keys/{key}", re.compile(r"[A-Za-z0-9_=-]{1,1024}")),
    "/api/blobs/": ("/api/blobs/{digest}", re.compile(r"[A-Za-z0-9:_-]{1,128}")),
}
"""What a path with one free part begins with: its route, and what that part may be once it is decoded."""
_METHOD_ORDER = ("HEAD", "GET", "POST", "DELETE")
"""In which Ollama lists methods in `Allow`: that in which its routes name them first."""
_TEXT = ("Content-Type", "text/plain")
_JSON = ("Content-Type", "application/json; charset=utf-8")


def find(method: str, raw_path: str) -> Route | RouteError:
    """The route for a request target exactly as it came over the wire, or the answer to give when there is none.

    Unknown paths get Ollama's `404 page not found`, or llama-server's JSON where a llama.cpp client would ask; a
    known path with another method gets Ollama's 405 with `Allow` (llama-server has no 405: its paths get its 404).
    One slash after a known path is redirected as by Ollama: 301 for GET, 307 otherwise, with the query string.
    """
    path, mark, query = raw_path.partition("?")
    route = _route(method, path)
    if route is not None:
        return _with_query(route, query) if query and path in _QUERY else route
    if path.endswith("/") and len(path) > 2 and _is_ollamas(method, path[:-1]):
        return _redirect(method, path[:-1] + mark + query)
    if not (allowed := allowed_methods(path)):
        return _unknown(path)
    return _wrong_method(path, allowed)


def allowed_methods(path: str) -> list[str]:
    """What may be done with a path, in the order of `Allow`; nothing with an unknown one."""
    known = _METHODS.get(_canonical(path)[0], [])
    return [method for method in _METHOD_ORDER if method in known]


def _canonical(path: str) -> tuple[str, str | None]:
    """The path that the table knows, and the decoded part that is free in it."""
    for prefix, (pattern, allowed) in _PATTERNS.items():
        if path.startswith(prefix):
            part = unquote(path.removeprefix(prefix))
            return (pattern, part) if allowed.fullmatch(part) else ("", None)
    return ("", None) if "{" in path else (path, None)


def _route(method: str, path: str) -> Route | None:
    route = ROUTES.get((method, path))
    if route is not None and "{" not in path:
        return route
    known, part = _canonical(path)
    route = ROUTES.get((method, known))
    return route if route is None or part is None else msgspec.structs.replace(route, model=part)


def _is_ollamas(method: str, path: str) -> bool:
    """Whether Ollama has a route there: only its own paths are redirected to."""
    route = _route(method, path)
    if route is None:
        return method in allowed_methods(path)
    return route.dialect is not Dialect.LLAMACPP and route.path not in _NOT_OLLAMAS


def _redirect(method: str, target: str) -> RouteError:
    target = quote(target, safe=_URL_CHARS, errors="surrogateescape")
    status = 301 if method == "GET" else 307
    if method not in ("GET", "HEAD"):
        return RouteError(status, [("Location", target)], b"")
    shown = html.escape(target, quote=True)
    body = f'<a href="{shown}">{HTTPStatus(status).phrase}</a>.\n\n'.encode()
    return RouteError(status, [("Content-Type", "text/html; charset=utf-8"), ("Location", target)], body)


def _with_query(route: Route, query: str) -> Route:
    kept = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name in _QUERY[route.path]:
            kept.append((name, unquote(value)))
    return msgspec.structs.replace(route, query=tuple(kept))


def _unknown(path: str) -> RouteError:
    if path[1:].partition("/")[0] in _LLAMACPP_ROOTS:
        body = b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'
        return RouteError(404, [_JSON], body)
    return RouteError(404, [_TEXT], b"404 page not found")


def _wrong_method(path: str, allowed: list[str]) -> RouteError:
    if path[1:].partition("/")[0] in _LLAMACPP_ROOTS:
        return _unknown(path)
    return RouteError(405, [("Allow", ", ".join(allowed)), _TEXT], b"405 method not allowed")
