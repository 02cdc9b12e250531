"""One inference request from its call to its end: placed, exchanged, tried again where that is allowed, accounted.

Knows nothing of how backends are chosen (the scheduler's business) or how bytes move (the relay's).
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from proxy import dialects
from proxy.attempts import Attempts, explain, log_failed, measured, waiting
from proxy.backends.fleet import Fleet
from proxy.batch_run import BatchRun, Held, PieceRefused
from proxy.cloud import CloudModels
from proxy.config import LimitsConfig
from proxy.dialects import Call, ClientError, Plan
from proxy.dialects.contract import Headers
from proxy.dialects.errors import refusal_text
from proxy.dispatcher import Dispatcher
from proxy.pools import Pools
from proxy.relay import NO_END_MARK, AttemptError, Client
from proxy.requests import RequestRecord
from proxy.residency import Residencies
from proxy.telemetry.access_log import Phase
from proxy.ticketed import Assignment, Refused, Ticketed
from scheduler.domain import Operation, Outcome, Request
from scheduler.effects import Unload
from scheduler.names import canonical
from scheduler.planning import serves_pin
from scheduler.residencies import unloadable
from scheduler.runner import shares

log = structlog.get_logger("slotgate.inference")

STOPPED_RETRY_AFTER_S = 5.0
"""A restart takes about so long."""


class Stopped(Exception):
    """The proxy stops and has ended the request; its client is still there."""


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
        self._client.heartbeat(data, 200, headers + self._headers + waiting(self._record))
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
        residencies: Residencies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._residencies = residencies
        self._cloud = CloudModels(dispatcher.backends, fleet)
        self._attempts = Attempts(dispatcher, fleet, pools, limits, residencies)
        self._clock = clock
        self._held = Held()

    @property
    def limits(self) -> LimitsConfig:
        """Waits and timeouts; may be replaced while requests run."""
        return self._attempts.limits

    @limits.setter
    def limits(self, limits: LimitsConfig) -> None:
        self._attempts.limits = limits

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
        try:
            call = self._residencies.guarded(call, is_admin=record.is_admin)
        except ClientError as error:
            record.outcome = Outcome.REJECTED
            record.detail = error.message
            self._answer_error(call, client, record, error, headers)
            return
        request = Request(
            id=record.id,
            operation=call.operation,
            dialect=call.dialect,
            model=canonical(call.model) if call.model else None,
            arrived_s=record.arrived_s,
            wait_until_s=record.arrived_s + self.limits.max_wait_s,
            stream=call.stream,
            seats=call.seats,
            divisible=bool(call.batch),
            engines=call.engines,
            tenant=record.tenant,
            priority=record.priority,
            prompt_bytes=call.prompt_bytes,
            prompt=dialects.prompt_of(call) if call.fields.get("cache_prompt", True) else None,
            max_output_tokens=call.max_output_tokens,
            can_name_slot=dialects.can_name_slot(call),
        )
        request = self._cloud.meant(self._residencies.wish(call, request), call.model)
        record.waits(self._clock())
        answer = self._answer_batch if request.divisible else self._answer_one
        try:
            await answer(call, client, record, request, headers)
        except Refused as refused:
            record.waited(self._clock())
            record.outcome = Outcome.FAILED if record.attempts else Outcome.REJECTED
            record.detail = f"{refused.rejection}: {refused.detail}"
            status, kind, message = dialects.rejection_error(call, refused.rejection, refused.detail)
            retry_after_s = refused.retry_after_s
            if refused.engine_said:
                status, kind, message, retry_after_s = 500, "", refused.engine_said, None
            told = ClientError(status, message, kind)
            self._answer_error(call, client, record, told, headers, retry_after_s)
        except ClientError as error:
            record.outcome = Outcome.REJECTED
            record.detail = error.message
            self._answer_error(call, client, record, error, headers)
        except Stopped:
            record.outcome = Outcome.REJECTED
            record.detail = "slotgate stops"
            stopped = ClientError(503, "slotgate is shutting down")
            self._answer_error(call, client, record, stopped, headers, STOPPED_RETRY_AFTER_S)
        finally:
            self._dispatcher.journal.ended(record.id, record.measured, record.outcome)

    async def _answer_one(
        self, call: Call, client: Client, record: RequestRecord, request: Request, headers: Headers
    ) -> None:
        ticketed = self._dispatcher.submit(request)
        record.stands(ticketed.outlook())
        heartbeats = Heartbeats(call, client, self.limits, headers, record)
        try:
            await self._try_until_done(call, client, record, ticketed, heartbeats, headers)
        except ClientError:
            ticketed.ended(Outcome.REJECTED)
            raise
        except asyncio.CancelledError:
            if not ticketed.cut:
                raise
            raise _stopped() from None
        finally:
            heartbeats.stop()
            ticketed.close()

    async def _answer_batch(
        self, call: Call, client: Client, record: RequestRecord, request: Request, headers: Headers
    ) -> None:
        max_wait_s = self.limits.max_wait_s
        run = BatchRun(call, request, record, self._dispatcher, self._attempts, self._held, max_wait_s, self._clock)
        try:
            status, batch_headers, body = await run.run()
            record.outcome = Outcome.DONE
        except PieceRefused as refused:
            status, batch_headers, body = refused.answer
            record.status = status
            record.outcome = Outcome.ENGINE_REFUSED
            batch_headers = batch_headers + explain(record, None)
        except asyncio.CancelledError:
            if not run.cut:
                raise
            raise _stopped() from None
        finally:
            for backend_id in run.to_unload():
                self._unload(backend_id, call)
        client.reply(status, batch_headers + headers, body)

    async def _try_until_done(
        self, call: Call, client: Client, record: RequestRecord, ticketed: Ticketed, beats: Heartbeats, headers: Headers
    ) -> None:
        while True:
            assignment = await ticketed.assignment()
            record.placed(assignment.backend_id, self._clock(), assignment.slot, assignment.predicted)
            try:
                done = await self._attempt(call, client, record, ticketed, beats, headers, assignment)
            except AttemptError as error:
                log_failed(record, assignment, error)
                record.waits(self._clock())
                ticketed.failed(error.failure, error.detail, error.error_body)
            else:
                record.outcome = done
                ticketed.ended(done, record.measured)
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
        if (local := dialects.local_reply(call, self._attempts.backend(assignment).engine)) is not None:
            status, local_headers, body = local
            record.status = status
            client.reply(status, local_headers + headers + explain(record, assignment.decision), body)
            return Outcome.DONE
        if call.operation is Operation.UNLOAD and record.attempts == 1:
            self._unload_elsewhere(call, assignment.backend_id)
        plan = self._attempts.plan(call, assignment)
        note = self._residencies.note_context(ticketed.request, self._attempts.backend(assignment), assignment)
        record.short_of_context(note)

        answer_headers = list(headers)
        sent_s = self._clock()

        def first_byte() -> None:
            beats.stop()
            record.first_byte_s = self._clock()
            record.phase = Phase.DATA
            record.status = record.status or 200  # a refusal's status is known with the end of its body
            answer_headers.extend(explain(record, assignment.decision))
            ticketed.started()

        try:
            exchanged = await self._attempts.exchange(ticketed, assignment, plan, client, answer_headers, first_byte)
        except AttemptError as error:
            if not error.committed:
                raise
            self._cut(call, client, record, plan, error)
            return Outcome.ENGINE_REFUSED if _gave_up(plan, error) else Outcome.TRUNCATED
        finally:
            usage = record.usage = plan.watch.usage
        record.status = exchanged.status
        if exchanged.status < 400:
            if usage.slot is not None:
                record.slot = usage.slot
            first_byte_s = record.first_byte_s if call.stream else None
            record.measured = measured(plan, usage, sent_s, first_byte_s, self._clock())
            return Outcome.DONE
        if not client.committed:  # heartbeats have settled the status: the refusal goes into the stream
            message = refusal_text(exchanged.error_body)
            client.cut(dialects.error_frame(call, message))
        return Outcome.ENGINE_REFUSED

    def _unload_elsewhere(self, call: Call, asked: str) -> None:
        """A client that unloads a model means all of its copies; the Ollama at `asked` gets its own request."""
        snapshot = self._dispatcher.scheduler.snapshot(self._clock())
        for backend_id in set(unloadable(snapshot, canonical(call.model or ""))) - {asked}:
            self._unload(backend_id, call)

    def _unload(self, backend_id: str, call: Call) -> None:
        model = canonical(call.model or "")
        if not self._is_pinned(model, backend_id):
            self._residencies.loads.unload(Unload(backend_id, model))

    def _is_pinned(self, model: str, backend_id: str) -> bool:
        pins = self._residencies.pins.all
        return any(
            shares(model, residency, view.backend) and serves_pin(view, residency, pins)
            for view in self._dispatcher.scheduler.snapshot(self._clock()).backends
            if view.backend.id == backend_id
            for residency in view.residencies
        )

    def _cut(self, call: Call, client: Client, record: RequestRecord, plan: Plan, error: AttemptError) -> None:
        """The engine died in the middle: say so in the dialect, and make sure that nothing looks finished."""
        record.status = 200
        record.detail = f"{error.failure}: {error.detail}"
        log.warning("answer cut", request=record.id, backend=record.backend, detail=error.detail)
        if plan.untouched and plan.watch.error is not None:
            client.end()  # the engine's own error is out already, and nothing else would follow
            return
        midline = plan.untouched and plan.watch.midline
        message = f"the backend failed in the middle of the answer: {error.detail}"
        if _gave_up(plan, error):
            message = "the model repeated itself, and the engine ended its answer"
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


def _gave_up(plan: Plan, error: AttemptError) -> bool:
    """Whether a sound engine ended its answer early, because the model would not have come to an end."""
    return error.detail == NO_END_MARK and plan.watch.repeated


def _stopped() -> Stopped:
    """The stop has cancelled the request's task, which goes on to tell the client."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    return Stopped()
