"""One inference request from its call to its end: placed, exchanged, tried again where that is allowed, accounted.

Knows nothing of how backends are chosen (the scheduler's business) or how bytes move (the relay's).
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from proxy import dialects
from proxy.backends.control import Control, ProbeError
from proxy.backends.fleet import Fleet
from proxy.config import LimitsConfig
from proxy.dialects import Call, ClientError, Plan
from proxy.dialects.contract import Headers
from proxy.dispatcher import Assignment, Dispatcher, Refused, Ticketed
from proxy.pools import Pools
from proxy.relay import AttemptError, Client, ConnectionPool, Exchanged, exchange
from proxy.requests import RequestRecord
from proxy.tasks import Tasks
from proxy.telemetry.access_log import Phase
from scheduler.domain import Decision, Failure, Operation, Outcome, Request
from scheduler.names import canonical
from scheduler.residencies import unloadable

log = structlog.get_logger("slotgate.inference")

STOPPED_RETRY_AFTER_S = 5.0
"""A restart takes about so long."""
UNLOAD_TIMEOUT_S = 10.0
"""Ollama answers an unload at once, whatever still runs."""


SHOWN = 3
"""Candidates and rejections that the header names: it costs on every request."""


class Heartbeats:
    """Keeps a streamed request alive that waits: after a while its head goes out, then a sign of life now and then.

    Until then a clean error status is possible. Heartbeats settle the status and commit to no backend.
    """

    def __init__(
        self, call: Call, client: Client, limits: LimitsConfig, headers: Headers, record: RequestRecord
    ) -> None:
        self._call = call
        self._record = record
        self._client = client
        self._every_s = limits.heartbeat_every_s
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limits.heartbeat_after_s, self._beat) if call.stream else None

    def _beat(self) -> None:
        beat = dialects.heartbeat(self._call)
        if beat is None or self._client.committed:
            return
        headers, data = beat
        self._client.heartbeat(data, 200, headers + self._headers)
        self._record.status = 200
        self._timer = self._loop.call_later(self._every_s, self._beat)

    def stop(self) -> None:
        """No more of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Inference:
    """Runs inference requests; one object per proxy."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: Fleet,
        pools: Pools,
        limits: LimitsConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._pools = pools
        self.limits = limits
        self._clock = clock
        self._tasks = Tasks()

    async def close(self) -> None:
        """End what runs beside the requests."""
        await self._tasks.close()

    async def run(self, call: Call, client: Client, record: RequestRecord, headers: Headers) -> None:
        """Answer the client. Whatever happens: it gets an answer, sees its connection aborted, or is gone.

        Args:
            call: what it asked for.
            client: its side.
            record: filled in with what happens.
            headers: added to the answer.

        Raises:
            asyncio.CancelledError: the client left.
        """
        request = Request(
            id=record.id,
            operation=call.operation,
            dialect=call.dialect,
            model=canonical(call.model) if call.model else None,
            arrived_s=record.arrived_s,
            wait_until_s=record.arrived_s + self.limits.max_wait_s,
            stream=call.stream,
            seats=call.seats,
            engines=call.engines,
            tenant=record.client,
            prompt_bytes=call.prompt_bytes,
        )
        record.waits(self._clock())
        ticketed = self._dispatcher.submit(request)
        heartbeats = Heartbeats(call, client, self.limits, headers, record)
        try:
            await self._attempts(call, client, record, ticketed, heartbeats, headers)
        except Refused as refused:
            record.waited(self._clock())
            record.outcome = Outcome.FAILED if record.attempts else Outcome.REJECTED
            record.detail = f"{refused.rejection}: {refused.detail}"
            status, kind, message = dialects.rejection_error(call, refused.rejection, refused.detail)
            error = ClientError(status, message, kind)
            self._answer_error(call, client, record, error, headers, refused.retry_after_s)
        except ClientError as error:
            record.outcome = Outcome.REJECTED
            record.detail = error.message
            ticketed.ended(Outcome.REJECTED)
            self._answer_error(call, client, record, error, headers)
        except asyncio.CancelledError:
            if not ticketed.cut:
                raise
            self._tell_stop(call, client, record, headers)
        finally:
            heartbeats.stop()
            ticketed.close()

    async def _attempts(
        self, call: Call, client: Client, record: RequestRecord, ticketed: Ticketed, beats: Heartbeats, headers: Headers
    ) -> None:
        while True:
            assignment = await ticketed.assignment()
            record.placed(assignment.backend_id, self._clock())
            try:
                done = await self._attempt(call, client, record, ticketed, beats, headers, assignment)
            except AttemptError as error:
                log.info(
                    "attempt failed",
                    request=record.id,
                    backend=assignment.backend_id,
                    failure=error.failure.value,
                    detail=error.detail,
                )
                record.waits(self._clock())
                ticketed.failed(error.failure, error.detail)
            else:
                record.outcome = done
                ticketed.ended(done)
                return

    async def _attempt(
        self,
        call: Call,
        client: Client,
        record: RequestRecord,
        ticketed: Ticketed,
        beats: Heartbeats,
        headers: Headers,
        assignment: Assignment,
    ) -> Outcome:
        backend = self._dispatcher.backends.get(assignment.backend_id)
        facts = self._fleet.facts(assignment.backend_id)
        if backend is None or facts is None:
            raise self._pools.gone(assignment.backend_id)
        if (local := dialects.local_reply(call, backend.engine)) is not None:
            status, local_headers, body = local
            record.status = status
            client.reply(status, local_headers + headers + explain(record, assignment.decision), body)
            return Outcome.DONE
        if call.operation is Operation.UNLOAD and record.attempts == 1:
            self._tasks.start(self._unload_elsewhere(call, assignment.backend_id), "unload elsewhere")
        plan = dialects.plan(call, backend, facts)

        answer_headers = list(headers)

        def first_byte() -> None:
            beats.stop()
            record.first_byte_s = self._clock()
            record.phase = Phase.DATA
            record.status = record.status or 200  # a refusal's status is known with the end of its body
            answer_headers.extend(explain(record, assignment.decision))
            ticketed.started()

        pool = self._pools.of(assignment.backend_id)
        try:
            exchanged = await self._exchange(ticketed, pool, plan, client, answer_headers, first_byte)
        except AttemptError as error:
            if not error.committed:
                raise
            self._cut(call, client, record, plan, error)
            return Outcome.TRUNCATED
        finally:
            record.usage = plan.watch.usage
        record.status = exchanged.status
        if exchanged.status < 400:
            return Outcome.DONE
        if not client.committed:  # heartbeats have settled the status: the refusal goes into the stream
            message = refusal_text(exchanged.error_body)
            client.cut(dialects.error_frame(call, message))
        return Outcome.ENGINE_REFUSED

    async def _exchange(
        self,
        ticketed: Ticketed,
        pool: ConnectionPool,
        plan: Plan,
        client: Client,
        headers: Headers,
        first_byte: Callable[[], None],
    ) -> Exchanged:
        try:
            async with asyncio.timeout(None) as scope:  # it expires when the scheduler calls the attempt back
                ticketed.sending(scope)
                return await exchange(
                    pool,
                    plan.outgoing,
                    client,
                    transform=plan.transform,
                    watch=plan.watch,
                    on_first_byte=first_byte,
                    headers=headers,
                    stall_timeout_s=self.limits.stall_timeout_s,
                    error_body=plan.error_body,
                )
        except TimeoutError:
            raise AttemptError(Failure.TIMEOUT, "it went down", committed=client.committed) from None

    def _tell_stop(self, call: Call, client: Client, record: RequestRecord, headers: Headers) -> None:
        """The proxy stops before the request is done."""
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        record.outcome = Outcome.REJECTED
        record.detail = "slotgate stops"
        error = ClientError(503, "slotgate is shutting down")
        self._answer_error(call, client, record, error, headers, STOPPED_RETRY_AFTER_S)

    async def _unload_elsewhere(self, call: Call, asked: str) -> None:
        """A client that unloads a model means all of its copies; the Ollama at `asked` gets its own request."""
        snapshot = self._dispatcher.scheduler.snapshot(self._clock())
        others = set(unloadable(snapshot, canonical(call.model or ""))) - {asked}
        await asyncio.gather(*(self._unload(backend_id, call) for backend_id in others))

    async def _unload(self, backend_id: str, call: Call) -> None:
        control = None
        try:
            control = Control(self._fleet.endpoint(backend_id), UNLOAD_TIMEOUT_S)
            await control.post("/api/generate", {"model": call.model, "keep_alive": 0})
        except (LookupError, ProbeError) as error:
            log.warning("model not unloaded", backend=backend_id, model=call.model, error=str(error))
        finally:
            if control is not None:
                await control.close()

    def _cut(self, call: Call, client: Client, record: RequestRecord, plan: Plan, error: AttemptError) -> None:
        """The engine died in the middle: say so in the dialect, and make sure that nothing looks finished."""
        record.status = 200
        record.detail = f"{error.failure}: {error.detail}"
        log.warning("answer cut", request=record.id, backend=record.backend, detail=error.detail)
        if plan.untouched and plan.watch.error is not None:
            client.cut(b"")  # the engine's own error is out already
            return
        midline = plan.untouched and plan.watch.midline
        message = f"the backend failed in the middle of the answer: {error.detail}"
        client.cut(dialects.error_frame(call, message, midline=midline))

    def _answer_error(
        self,
        call: Call,
        client: Client,
        record: RequestRecord,
        error: ClientError,
        headers: Headers,
        retry_after_s: float | None = None,
    ) -> None:
        record.status = record.status or error.status
        if client.head_sent:
            client.cut(dialects.error_frame(call, error.message))
            return
        status, error_headers, body = dialects.render_error(
            call.dialect, error.status, error.kind, error.message, retry_after_s
        )
        client.reply(status, error_headers + headers + explain(record, None), body)


def explain(record: RequestRecord, decision: Decision | None) -> Headers:
    """Headers that say where the request ran, why, and how long each phase took."""
    timing = f"queue;dur={(record.queued_s or 0.0) * 1000:.1f}"
    if record.first_byte_s is not None:
        timing += f", first;dur={(record.first_byte_s - record.arrived_s) * 1000:.1f}"
    headers = [("Server-Timing", timing)]
    if record.backend is not None:
        headers.append(("X-Slotgate-Backend", record.backend))
    if decision is not None:
        headers.append(("X-Slotgate-Decision", decision_text(decision)))
    return headers


def decision_text(decision: Decision) -> str:
    """A decision on one line: the cost of each candidate, best first, then why the others were out.

    For example `gpu1=20.0ms(active=20.0), gpu0=40.0ms(active=40.0); gpu2:no-room`.
    """
    ranking = ", ".join(
        f"{candidate.backend_id}={candidate.cost_ms:.1f}ms{_terms(candidate.terms_ms)}"
        for candidate in decision.ranking[:SHOWN]
    )
    if len(decision.ranking) > SHOWN:
        ranking += f", {len(decision.ranking) - SHOWN} more"
    if not decision.rejections:
        return ranking
    rejected = [f"{name}:{why.value}" for name, why in decision.rejections.items()]
    more = f", {len(rejected) - SHOWN} more" if len(rejected) > SHOWN else ""
    return f"{ranking}; {', '.join(rejected[:SHOWN])}{more}"


def _terms(terms_ms: dict[str, float]) -> str:
    told = [f"{name}={value:.1f}" for name, value in terms_ms.items() if value]
    return f"({','.join(told)})" if told else ""


def refusal_text(body: bytes) -> str:
    """What an engine said in an error body of any dialect."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return body[:1000].decode("utf-8", "replace").strip() or "the engine refused the request"
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
