"""Owns what goes into a stream besides an engine's answer: heartbeats of waiting requests, and errors in the middle."""

import time
from collections.abc import Callable

import msgspec

from proxy.dialects.call import Call
from proxy.dialects.contract import Headers
from proxy.dialects.errors import error_object
from proxy.dialects.shapes import ChatRecord, GenerateRecord, Message, encode
from proxy.dialects.times import rfc3339_nano
from scheduler.domain import Dialect

_SSE_HEAD = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")]
_NDJSON_HEAD = [("Content-Type", "application/x-ndjson")]


def heartbeat(call: Call, clock_ns: Callable[[], int] = time.time_ns) -> tuple[Headers, bytes] | None:
    """Head and keep-alive bytes for a stream that has to wait; None where the answer is not streamed.

    SSE gets a comment, which every client skips. NDJSON has no comments, and a blank line makes Ollama's Python client
    fail: it gets a record with nothing in it.
    """
    if not call.stream:
        return None
    if call.dialect is not Dialect.OLLAMA:
        return list(_SSE_HEAD), b": queued\n\n"
    model, now = call.model or "", rfc3339_nano(clock_ns())
    if call.route.path == "/api/chat":
        record = encode(ChatRecord(model, now, Message("assistant", ""), done=False))
    else:
        record = encode(GenerateRecord(model=model, created_at=now, response="", done=False))
    return list(_NDJSON_HEAD), record + b"\n"


def error_frame(call: Call, message: str, *, midline: bool = False) -> bytes:
    """An error inside a stream that has begun, in the stream's own form; empty where the answer is not streamed.

    It never ends the stream: the caller aborts the connection, so that nothing looks finished. `midline`: the bytes
    sent so far end inside a line or an event (see `Plan.untouched` and `StreamWatch.midline`).
    """
    if not call.stream:
        return b""
    if call.dialect is Dialect.OLLAMA:
        return (b"\n" if midline else b"") + encode({"error": message}) + b"\n"
    error: dict[str, object] = error_object(call.dialect, 500, "", message)
    event = b""
    if call.route.path == "/v1/responses":
        event = b"event: error\n"
        error = {"type": "error", "code": "server_error", "message": message, "param": None}
    elif call.dialect is Dialect.ANTHROPIC:
        event = b"event: error\n"
        error.pop("request_id")
    # The blank line ends the event that was cut off.
    return (b"\n\n" if midline else b"") + event + b"data: " + msgspec.json.encode(error) + b"\n\n"
