"""One line per request: who asked what, where it ran, how long each phase took and who ended it.

Owns the form of the line and nothing else; writing is `output`'s business.
"""

import time
from enum import StrEnum
from typing import Literal

import msgspec

from proxy.telemetry.output import Output
from scheduler.domain import Outcome


class Phase(StrEnum):
    """How far a request had come. The second letter of a termination code."""

    REQUEST = "R"  # its head or body was still being read or checked
    QUEUE = "Q"  # it waited for a slot
    HEAD = "H"  # it ran at an engine that had not sent a byte of its answer
    DATA = "D"  # bytes of an answer were on their way to the client


def termination(outcome: Outcome, phase: Phase) -> str:
    """Two letters, as HAProxy has them: who ended the request, and in which phase.

    `--` complete; `CR CQ CH CD` the client left; `SR SQ SH SD` slotgate ended it (bad request, queue full or waited too
    long, shutting down); `EH` every engine tried failed before the first byte; `ED` the engine died in the middle of
    its answer; `EE` the engine refused the request and its answer was passed on.
    """
    match outcome:
        case Outcome.DONE:
            return "--"
        case Outcome.CLIENT_LEFT:
            return "C" + phase
        case Outcome.REJECTED:
            return "S" + phase
        case Outcome.FAILED:
            return "EH"
        case Outcome.TRUNCATED:
            return "ED"
        case Outcome.ENGINE_REFUSED:
            return "EE"


class AccessLine(msgspec.Struct, kw_only=True):
    """One request, its fields in the order in which they are written.

    Times are milliseconds from its arrival, None for phases that it did not reach. Written lines are not reused: `time`
    and the rounding of times are filled in on writing.
    """

    time: str = ""
    level: str = "info"
    event: str = "request"
    termination: str
    status: int
    """HTTP status that went to the client; 0 if none did."""
    outcome: Outcome
    method: str
    path: str
    """Without the query: it may hold secrets."""
    dialect: str | None = None
    operation: str | None = None
    model: str | None = None
    backend: str | None = None
    """The last one tried."""
    queue_ms: float | None = None
    """Until a slot was there, over all attempts."""
    first_byte_ms: float | None = None
    """Until the first byte of an engine's answer went out."""
    total_ms: float
    attempts: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    """What `cached_tokens` should have been, by our account of the engine's slots."""
    output_tokens: int | None = None
    slot: int | None = None
    """The slot that it ran on, as far as known."""
    context_tokens: int | None = None
    """The context where it ran, if prompt and answer may not fit it."""
    tenant: str = ""
    """Whose request it was: name or hash of an API key, user, or address."""
    client: str
    """Address of the client, without its port."""
    request: str
    detail: str = ""
    """Why it ended as it did, where that is not clear from the rest."""


class AccessLog:
    """Renders request lines and appends them to an output."""

    def __init__(self, output: Output, format_: Literal["json", "console"]) -> None:
        self._output = output
        self._render = self._json if format_ == "json" else self._console
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._stamp = ""

    def write(self, line: AccessLine, at_unix_s: float | None = None) -> None:
        """Log one request that ended now, or at the given time. Never blocks, never raises for a broken output."""
        self._output.write(self._render(line, time.time() if at_unix_s is None else at_unix_s))

    def _json(self, line: AccessLine, at_unix_s: float) -> bytes:
        second = int(at_unix_s)
        if second != self._second:  # formatting a time costs more than the rest of the line: once a second
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        line.time = f"{self._stamp}.{int((at_unix_s - second) * 1000):03d}Z"
        # Tenths by way of int: round() takes three times as long, and this runs for every request.
        line.total_ms = int(line.total_ms * 10 + 0.5) / 10
        if line.queue_ms is not None:
            line.queue_ms = int(line.queue_ms * 10 + 0.5) / 10
        if line.first_byte_ms is not None:
            line.first_byte_ms = int(line.first_byte_ms * 10 + 0.5) / 10
        return self._encode(line) + b"\n"

    def _console(self, line: AccessLine, at_unix_s: float) -> bytes:
        clock = time.strftime("%H:%M:%S", time.localtime(at_unix_s))
        cached = ""
        if line.cached_tokens or line.predicted_cached_tokens:
            predicted = line.predicted_cached_tokens
            expected = "" if predicted is None else f", {predicted} predicted"
            cached = f" ({line.cached_tokens or 0} cached{expected})"
        tokens = ""
        if line.prompt_tokens is not None:
            tokens = f"  tokens {line.prompt_tokens}{cached} > {line.output_tokens or 0}"
        slot = "" if line.slot is None else f"  slot {line.slot}"
        if line.context_tokens is not None:
            slot += f"  over context {line.context_tokens}"
        attempts = f"  attempts {line.attempts}" if line.attempts > 1 else ""
        detail = f"  {' '.join(line.detail.split())}" if line.detail else ""
        text = (
            f"{clock} {line.status or '---'} {line.termination} {line.method:<4} {line.path:<20} "
            f"{line.model or '-':<24} {line.backend or '-':<14} "
            f"queue {_ms(line.queue_ms)}  first {_ms(line.first_byte_ms)}  total {_ms(line.total_ms)}"
            f"{tokens}{slot}{attempts}  {line.client}  {line.request}{detail}\n"
        )
        return _printable(text).encode("utf-8", "backslashreplace")


def _ms(value: float | None) -> str:
    """Milliseconds in seven places: `12.3ms`, `4.56s`."""
    if value is None:
        return f"{'-':>7}"
    return f"{value:5.1f}ms" if value < 1000 else f"{value / 1000:6.2f}s" if value < 1e6 else f"{value / 1000:6.0f}s"


def _printable(text: str) -> str:
    """Paths and model names come from clients: no control character of theirs may reach a terminal."""
    body = text[:-1]
    return (body if body.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in body)) + "\n"
