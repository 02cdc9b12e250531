"""Which headers cross the proxy, and how a head is written. Owns no state; must not know sockets or dialects."""

import functools
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from proxy.dialects.contract import Headers

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110 section 7.6.1, with the de facto `Keep-Alive` and `Proxy-Connection`."""

KEPT_FROM_ENGINES = HOP_BY_HOP | {
    "accept-encoding",  # a compressed answer could be neither watched nor transformed
    "authorization",  # the client's key is ours to check; engines get their own
    "content-length",
    "cookie",
    "expect",  # answered by us
    "host",
    "origin",  # Ollama refuses foreign origins; the check is ours
    "x-api-key",
    "x-conversation-id",  # llama-server would no longer stop when the client leaves
}

KEPT_FROM_CLIENTS = HOP_BY_HOP | {"content-length", "server"}

REASONS = {status.value: status.phrase for status in HTTPStatus}


@functools.lru_cache(maxsize=1024)
def _toward_engines(name: str) -> str | None:
    """A name in lower case; None: it is dropped. Cached, because names are few and requests are many."""
    lower = name.lower()
    return None if lower in KEPT_FROM_ENGINES else lower


@functools.lru_cache(maxsize=1024)
def _toward_clients(name: str) -> str | None:
    lower = name.lower()
    return None if lower in KEPT_FROM_CLIENTS or lower.startswith("access-control-") else lower


def nominated(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Names listed in `Connection:`: hop-by-hop by the sender's own word."""
    values = [value for name, value in headers if len(name) == len("Connection") and name.lower() == "connection"]
    if not values:
        return frozenset()
    return frozenset(part.strip().lower() for value in values for part in value.split(","))


def to_engine(headers: Headers) -> Headers:
    """The headers of a request that an engine may see."""
    named = nominated(headers)
    return [pair for pair in headers if (lower := _toward_engines(pair[0])) is not None and lower not in named]


def to_client(headers: Headers) -> Headers:
    """The headers of an answer that a client may see: no framing, nothing of one hop, no CORS of the engine."""
    named = nominated(headers)
    return [pair for pair in headers if (lower := _toward_clients(pair[0])) is not None and lower not in named]


def unsized(headers: Headers) -> Headers:
    """Without the length of a body that is not the one sent."""
    return [pair for pair in headers if pair[0].lower() != "content-length"]


def render_head(first_line: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A request or response head, with the empty line that ends it.

    Raises:
        ValueError: a line break or NUL in a name or value: nothing that anybody sends may add a header.
    """
    lines = [first_line, *[f"{name}: {value}" for name, value in headers], "\r\n"]
    text = "\r\n".join(lines)
    breaks = len(lines)
    if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
        raise ValueError(f"a header has a line break or NUL in it: {first_line!r}")
    return text.encode("utf-8", "surrogateescape")


def status_line(status: int) -> str:
    """`HTTP/1.1 200 OK`; statuses that nobody registered get an empty reason."""
    return f"HTTP/1.1 {status} {REASONS.get(status, '')}"


@functools.lru_cache(maxsize=2)
def http_date(unix_s: int) -> str:
    """A moment as the Date header has it. Cached, because many answers begin within one second."""
    return formatdate(unix_s, usegmt=True)
