"""Judges an engine's refusals: may another backend do better? Owns the known texts; must not know sockets."""

import re
from typing import Final

from scheduler.domain import Failure

_RETRYABLE_500: Final = (
    # llama-server with a unified KV cache that overflowed: every request in flight gets it, whatever its own size.
    b"Context size has been exceeded",
    # Ollama, when its child died or could not start.
    b"unexpected EOF",
    b"runner process has terminated",
    b"runner has unexpectedly stopped",
    b"runner process no longer running",
    b"timed out waiting for llama",
    b"connection refused",
    b"connection reset",
    b"broken pipe",
    b"do load request",
)

_ERROR_EVENT: Final = re.compile(
    rb"""\s*(?:(?:data:[ ]?)?\{\s*(?:"error"\s*:(?!\s*null)|"type"\s*:\s*"error")|event:[ ]?error\b|error:[ ]?\{)"""
)
_ERROR_BEGINNINGS: Final = (
    b'data: {"error":null',
    b'data:{"error":null',
    b'{"error":null',
    b'data: {"type":"error"',
    b'data:{"type":"error"',
    b'{"type":"error"',
    b"event: error\n",
    b"event:error\n",
    b"error: {",
    b"error:{",
)


def retryable(status: int, body: bytes) -> Failure | None:
    """Why an answer >= 400 may be better elsewhere; None: it is about the request, so the client shall see it."""
    if status == 503:
        return Failure.LOADING if b"oading model" in body else Failure.OVERLOADED
    if status == 429:
        return Failure.OVERLOADED
    if status in (502, 504):
        return Failure.ENGINE_ERROR
    if status == 500 and any(text in body for text in _RETRYABLE_500):
        return Failure.ENGINE_ERROR
    return None


def opens_with_error(data: bytes) -> bool | None:
    """Whether a 200 body (SSE, NDJSON or JSON) begins with an error; None: too few bytes to tell."""
    if _ERROR_EVENT.match(data):
        return True
    start = data.lstrip()
    if len(start) < 24 and any(text.startswith(start) for text in _ERROR_BEGINNINGS):
        return None
    return False
