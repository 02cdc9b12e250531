"""Heads, JSON and errors as Ollama (a Go program) lays them out. Must not know what is answered."""

import secrets
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import orjson

from proxy.emulated.wire import Exchange, Headers, Manners

JSON = [("Content-Type", "application/json; charset=utf-8")]
PLAIN_JSON = [("Content-Type", "application/json")]
NDJSON = [("Content-Type", "application/x-ndjson")]
EVENTS = [("Content-Type", "text/event-stream")]
NAMED_EVENTS = [("Cache-Control", "no-cache"), ("Content-Type", "text/event-stream")]
_WHOLE_MOST = 2048
"""Go writes a longer body in chunks."""


def ollama_head(exchange: Exchange, status: int, headers: Headers, length: int | None, keep: bool) -> bytes:
    """The head as Go writes it: the headers by name, then Date, then the framing."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    if (origin := exchange.headers.get("origin")) and status != 403:
        headers = [("Access-Control-Allow-Origin", origin), ("Vary", "Origin"), *headers]
    lines += [f"{name}: {value}" for name, value in sorted(headers, key=lambda header: header[0])]
    lines.append(f"Date: {formatdate(usegmt=True)}")
    if length is not None and status != 204:
        lines.append(f"Content-Length: {length}")
    if not keep:
        lines.append("Connection: close")
    if length is None:
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def ollama_manners() -> Manners:
    """Go keeps idle connections open."""
    return Manners(ollama_head)


def go_json(value: Any) -> bytes:
    """JSON as Go writes it: without blanks, with the characters that matter to HTML escaped."""
    raw = orjson.dumps(value)
    return raw.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")


def send(exchange: Exchange, body: bytes, status: int = 200, headers: Headers = JSON) -> None:
    """Answer with a body."""
    if len(body) <= _WHOLE_MOST:
        exchange.whole(status, headers, body)
        return
    exchange.begin(status, headers)
    exchange.chunk(body)
    exchange.end()


def now_rfc3339() -> str:
    """The time in UTC with nanoseconds, without trailing zeros, as Go prints it."""
    return rfc3339(time.time_ns())


def rfc3339(nanoseconds: int) -> str:
    """A time since 1970 as Go prints it."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    # Years that time.gmtime cannot hold do not occur: "for ever" is 292 years from now.
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{text}{digits}Z"


class OllamaError(Exception):
    """What Ollama answers instead; each of its APIs has its own shape for it."""

    def __init__(self, status: int, message: str, *, early: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.early = early
        """Raised while the request was read: the OpenAI and Anthropic routes then name a charset."""


def error_body(path: str, status: int, message: str) -> bytes:
    """An error in the shape of the API that the path belongs to."""
    if path.startswith("/v1/messages"):
        kinds = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
        error = {"type": kinds.get(status, "api_error"), "message": message}
        return go_json({"type": "error", "error": error, "request_id": f"req_{secrets.token_hex(12)}"}) + b"\n"
    if path.startswith("/v1/"):
        kinds = {400: "invalid_request_error", 404: "not_found_error"}
        kind = kinds.get(status, "api_error")
        return go_json({"error": {"message": message, "type": kind, "param": None, "code": None}})
    return go_json({"error": message})


def send_error(exchange: Exchange, error: OllamaError) -> None:
    """Answer with an error."""
    headers = PLAIN_JSON if exchange.path.startswith("/v1/") and not error.early else JSON
    send(exchange, error_body(exchange.path, error.status, error.message), error.status, headers)
