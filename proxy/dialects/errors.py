"""Owns how an error looks in each dialect: status, headers, body. Must not know how requests are read or routed."""

import math
import secrets

import msgspec

from proxy.dialects.contract import Rendered
from scheduler.domain import Dialect


class ClientError(Exception):
    """A request that cannot be answered as it stands; `render_error` gives it the dialect's form."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        """The dialect's error type; empty: the one that goes with the status."""


def refusal_text(body: bytes) -> str:
    """What an engine said in an error body of any dialect."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return body[:1000].decode("utf-8", "replace").strip() or "the engine refused the request"
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


OPENAI_KINDS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Error types by status as Ollama's OpenAI API uses them; all others are `api_error`."""

ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
"""Error types of the Anthropic API by status; all others are `api_error`."""

LLAMACPP_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    415: "invalid_request_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""Error types of llama-server by status; all others are `server_error`."""


def error_object(dialect: Dialect, status: int, kind: str, message: str) -> dict[str, object]:
    """The JSON object that the dialect puts into an error body."""
    match dialect:
        case Dialect.OLLAMA:
            return {"error": message}
        case Dialect.OPENAI:
            kind = kind or OPENAI_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
            return {"error": {"message": message, "type": kind, "param": None, "code": None}}
        case Dialect.ANTHROPIC:
            kind = kind or ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
            error = {"type": kind, "message": message}
            return {"type": "error", "error": error, "request_id": f"req_{secrets.token_hex(12)}"}
        case Dialect.LLAMACPP:
            kind = kind or LLAMACPP_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
            return {"error": {"code": status, "message": message, "type": kind}}


def render_error(
    dialect: Dialect, status: int, kind: str, message: str, retry_after_s: float | None = None
) -> Rendered:
    """Status, headers and body of an error; `kind` may be empty, then it follows from the status.

    `Retry-After` is in whole seconds, rounded up, at least 1. As in Ollama, errors of the OpenAI and Anthropic routes
    name no charset and end with a line break, unless the request itself could not be read (400).
    """
    content_type, end = "application/json", b"\n"
    if dialect in (Dialect.OLLAMA, Dialect.LLAMACPP) or status == 400:
        content_type, end = "application/json; charset=utf-8", b""
    headers = [("Content-Type", content_type)]
    if retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(retry_after_s)))))
    return status, headers, msgspec.json.encode(error_object(dialect, status, kind, message)) + end
