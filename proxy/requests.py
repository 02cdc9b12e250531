"""What is remembered of requests: timers while one runs, a log line when it ends, and the last few for who asks.

Bounded: nothing but a fixed number of lines outlives a request.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable

from proxy.admin_api import RecentRequest
from proxy.context_note import ContextNote
from proxy.dialects import Usage
from proxy.telemetry.access_log import AccessLine, AccessLog, Phase, termination
from scheduler.domain import Measured, Outcome

KEPT = 512
"""Ended requests that are remembered."""
_MAX_DETAIL_CHARS = 1000
"""Of why a request ended: errors repeat what clients wrote, which may be megabytes."""


class RequestRecord:
    """One request while it is being answered. Times are seconds on the monotonic clock."""

    __slots__ = (
        "arrived_s", "attempts", "backend", "bytes_in", "bytes_out", "client", "context", "context_tokens", "detail",
        "dialect", "expected_wait_s", "first_byte_s", "id", "is_admin", "measured", "method", "model", "operation",
        "outcome", "path", "phase", "position", "predicted", "priority", "queued_s", "slot", "status", "tenant",
        "usage", "waiting_since_s",
    )  # fmt: skip

    def __init__(self, request_id: str, method: str, path: str, client: str, now_s: float) -> None:
        self.id = request_id
        self.method = method
        self.path = path
        self.client = client
        self.tenant = client
        """Whose it is, as far as its headers tell; see `tenancy`."""
        self.priority = "normal"
        self.is_admin = False
        """It brings an API key that may change and unload models."""
        self.arrived_s = now_s
        self.dialect: str | None = None
        self.operation: str | None = None
        self.model: str | None = None
        self.backend: str | None = None
        self.status = 0
        self.outcome = Outcome.CLIENT_LEFT
        """Until something else is known: a request that ends for no other reason was left by its client."""
        self.phase = Phase.REQUEST
        self.detail = ""
        self.attempts = 0
        self.waiting_since_s: float | None = None
        """None: it does not wait."""
        self.queued_s: float | None = None
        self.first_byte_s: float | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.usage: Usage | None = None
        self.measured: Measured | None = None
        """What its answer cost, if it is complete."""
        self.slot: int | None = None
        """The slot that it ran on, as far as known."""
        self.predicted: int | None = None
        """Tokens of its prompt that should have been cached; None: nobody could tell."""
        self.position: int | None = None
        """Its place in line when it began to wait, 1 for the next; None: it never did."""
        self.expected_wait_s: float | None = None
        """How long it would probably wait, then; None: nobody could tell."""
        self.context = ""
        """Why its prompt and answer may not fit the context that they get; empty: they do, or nobody can tell."""
        self.context_tokens: int | None = None
        """That context."""

    def waits(self, now_s: float) -> None:
        """It waits for a slot from now on."""
        self.phase = Phase.QUEUE
        self.waiting_since_s = now_s

    def stands(self, outlook: tuple[int, float | None] | None) -> None:
        """Its place in line and expected wait, as it begins to wait; None: it need not. Only the first time counts."""
        if outlook is not None and self.position is None:
            self.position, self.expected_wait_s = outlook

    def waited(self, now_s: float) -> None:
        """It waits no longer, if it did."""
        if self.waiting_since_s is not None:
            self.queued_s = (self.queued_s or 0.0) + now_s - self.waiting_since_s
            self.waiting_since_s = None

    def placed(self, backend: str, now_s: float, slot: int | None = None, predicted: int | None = None) -> None:
        """It has a slot; `slot` says which, where we do."""
        self.backend = backend
        self.slot = slot
        self.predicted = predicted
        self.attempts += 1
        self.waited(now_s)
        self.phase = Phase.HEAD

    def short_of_context(self, note: ContextNote | None) -> None:
        """Whether prompt and answer may not fit the context where it is sent now."""
        self.context = "" if note is None else str(note)
        self.context_tokens = None if note is None else note.context_tokens

    def piece_placed(self, backend: str, now_s: float) -> None:
        """A piece of it has slots: `backend` names all, in the order of their first use."""
        if self.backend is None:
            self.placed(backend, now_s)
        elif backend not in self.backend.split(","):
            self.backend += f",{backend}"


class RequestBook:
    """Opens and closes the records of all requests."""

    def __init__(self, log: AccessLog | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`log` None: no line per request."""
        self._log = log
        self._clock = clock
        self._open: dict[str, RequestRecord] = {}
        self._ended: deque[RecentRequest] = deque(maxlen=KEPT)
        self._prefix = secrets.token_hex(4)
        self._count = 0

    def open(self, method: str, path: str, client: str) -> RequestRecord:
        """A request has come; its id is unlike any other's in the fleet."""
        self._count += 1
        record = RequestRecord(f"{self._prefix}-{self._count}", method, path, client, self._clock())
        self._open[record.id] = record
        return record

    def close(self, record: RequestRecord) -> None:
        """The request is over."""
        self._open.pop(record.id, None)
        usage = record.usage
        arrived_s, first_byte_s, queued_s = record.arrived_s, record.first_byte_s, record.queued_s
        line = AccessLine(
            termination=termination(record.outcome, record.phase),
            status=record.status,
            outcome=record.outcome,
            method=record.method,
            path=record.path,
            dialect=record.dialect,
            operation=record.operation,
            model=record.model,
            backend=record.backend,
            queue_ms=None if queued_s is None else queued_s * 1000,
            first_byte_ms=None if first_byte_s is None else (first_byte_s - arrived_s) * 1000,
            total_ms=(self._clock() - arrived_s) * 1000,
            attempts=record.attempts,
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            predicted_cached_tokens=record.predicted,
            output_tokens=usage.output_tokens if usage else None,
            slot=record.slot,
            context_tokens=record.context_tokens,
            tenant=record.tenant,
            client=record.client,
            request=record.id,
            detail=record.detail[:_MAX_DETAIL_CHARS],
        )
        now_unix_s = time.time()
        self._ended.append(_recent(line, record, now_unix_s))
        if self._log is not None:
            self._log.write(line, now_unix_s)

    def recent(self) -> list[RecentRequest]:
        """The last requests that ended, newest last."""
        return list(self._ended)

    def being_answered(self, request_id: str) -> RequestRecord | None:
        """The record of a request that is not over; None: there is none."""
        return self._open.get(request_id)

    def ended(self, request_id: str) -> RecentRequest | None:
        """How a request ended; None: it has not, or that is forgotten."""
        return next((each for each in reversed(self._ended) if each.id == request_id), None)


def _recent(line: AccessLine, record: RequestRecord, at_unix_s: float) -> RecentRequest:
    return RecentRequest(
        id=line.request, ended_at_unix_s=at_unix_s, status=line.status, outcome=line.outcome,
        termination=line.termination, total_ms=line.total_ms, dialect=line.dialect, operation=line.operation,
        model=line.model, backend=line.backend, queue_ms=line.queue_ms, first_byte_ms=line.first_byte_ms,
        prompt_tokens=line.prompt_tokens, cached_tokens=line.cached_tokens,
        predicted_cached_tokens=line.predicted_cached_tokens, output_tokens=line.output_tokens, slot=line.slot,
        tenant=line.tenant, priority=record.priority, position=record.position,
        expected_wait_s=record.expected_wait_s, context=record.context,
    )  # fmt: skip
