"""What every attempt at a backend has in common: its plan, its exchange with an end from outside, and its explanation.

Knows nothing of what follows from an attempt's end.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from proxy import dialects
from proxy.backends.fleet import Fleet
from proxy.config import LimitsConfig
from proxy.dialects import Call, Plan, Usage
from proxy.dialects.contract import Headers
from proxy.dispatcher import Dispatcher
from proxy.pools import Pools
from proxy.relay import AttemptError, Exchanged, Receiver, exchange
from proxy.requests import RequestRecord
from proxy.residency import Residencies
from proxy.ticketed import Assignment, Ticketed
from scheduler.domain import Backend, Candidate, Decision, Failure, Measured

log = structlog.get_logger("slotgate.inference")

_ANNOUNCED = frozenset({"/v1/responses"})
LOADED_MS = 500.0
"""An Ollama that took so long until the model was there had to load it: where it was loaded already, real answers say
0.5 to 24 ms, and loading 98 MB took 0.3 to 7 s (captures/ollama)."""
"""Paths where a stream begins before the first token is there."""

SHOWN = 3
"""Candidates and rejections that the header names: it costs on every request."""


class Attempts:
    """Makes attempts at backends."""

    def __init__(
        self, dispatcher: Dispatcher, fleet: Fleet, pools: Pools, limits: LimitsConfig, residencies: Residencies
    ) -> None:
        self.residencies = residencies
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._pools = pools
        self.limits = limits

    def backend(self, assignment: Assignment) -> Backend:
        """The assigned backend.

        Raises:
            AttemptError: it has left since.
        """
        backend = self._dispatcher.backends.get(assignment.backend_id)
        if backend is None:
            raise self._pools.gone(assignment.backend_id)
        return backend

    def plan(self, call: Call, assignment: Assignment) -> Plan:
        """What to send to the assigned backend, and what to do with the answer.

        Raises:
            AttemptError: it has left since.
            ClientError: the model there cannot do what is asked for.
        """
        backend, facts = self.backend(assignment), self._fleet.facts(assignment.backend_id)
        if facts is None:
            raise self._pools.gone(assignment.backend_id)
        residing = self.residencies.residing(call, backend, assignment.runner)
        return dialects.plan(call, backend, facts, assignment.slot, residing=residing)

    async def exchange(
        self,
        ticketed: Ticketed,
        assignment: Assignment,
        plan: Plan,
        receiver: Receiver,
        headers: Headers,
        first_byte: Callable[[], None],
    ) -> Exchanged:
        """Send the plan's request and hand the answer over; see `relay.exchange`.

        Raises:
            AttemptError: no complete answer, or the scheduler called the attempt back.
        """
        pool = self._pools.of(assignment.backend_id)
        try:
            async with asyncio.timeout(None) as scope:  # it expires when the scheduler calls the attempt back
                ticketed.sending(scope)
                outgoing = plan.outgoing
                if ticketed.request.cloud:  # what ollama.com refuses says nothing of the Ollama that passed it on
                    outgoing = msgspec.structs.replace(outgoing, final=True)
                return await exchange(
                    pool,
                    outgoing,
                    receiver,
                    transform=plan.transform,
                    watch=plan.watch,
                    on_first_byte=first_byte,
                    headers=headers,
                    stall_timeout_s=self.limits.stall_timeout_s,
                    error_body=plan.error_body,
                )
        except TimeoutError:
            raise AttemptError(Failure.TIMEOUT, "it went down", committed=receiver.committed) from None


def log_failed(record: RequestRecord, assignment: Assignment, error: AttemptError) -> None:
    """Note an attempt that may be followed by another."""
    log.info(
        "attempt failed",
        request=record.id,
        backend=assignment.backend_id,
        failure=error.failure.value,
        detail=error.detail,
    )


def measured(plan: Plan, usage: Usage, sent_s: float, first_byte_s: float | None, ended_s: float) -> Measured:
    """What a complete answer cost.

    Args:
        plan: of the attempt.
        usage: what the engine told.
        sent_s: when the request was sent; all times are seconds on one monotonic clock.
        first_byte_s: when the first byte of its answer went to the client; None: only its end did. Where the engine had
            to load the model meanwhile, that tells nothing of how fast it computes prompts.
        ended_s: when its last byte was there.
    """
    first_ms: float | None = None
    loaded = usage.load_ms is not None and usage.load_ms >= LOADED_MS
    if plan.streams and plan.outgoing.path not in _ANNOUNCED and not loaded:
        if first_byte_s is not None:
            first_ms = (first_byte_s - sent_s) * 1000.0
        elif usage.output_ms is not None:
            first_ms = max(0.0, (ended_s - sent_s) * 1000.0 - usage.output_ms)
    return Measured(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        prompt_ms=usage.prompt_ms,
        output_ms=usage.output_ms,
        first_byte_ms=first_ms,
        slot=usage.slot,
    )


def explain(record: RequestRecord, decision: Decision | None) -> Headers:
    """Headers that say where the request ran, why, how long each phase took, and what waiting looked like."""
    timing = f"queue;dur={(record.queued_s or 0.0) * 1000:.1f}"
    if record.first_byte_s is not None:
        timing += f", first;dur={(record.first_byte_s - record.arrived_s) * 1000:.1f}"
    headers = [("Server-Timing", timing)]
    if record.backend is not None:
        headers.append(("X-Slotgate-Backend", record.backend))
    if record.context:
        headers.append(("X-Slotgate-Context", record.context))
    if decision is not None:
        headers.append(("X-Slotgate-Decision", decision_text(decision)))
    return headers + waiting(record)


def waiting(record: RequestRecord) -> Headers:
    """Headers that say how the line looked when the request began to wait in it; none if it never did."""
    if record.position is None:
        return []
    headers = [("X-Slotgate-Queue-Position", str(record.position))]
    if record.expected_wait_s is not None:
        headers.append(("X-Slotgate-Expected-Wait", f"{record.expected_wait_s:.1f}"))
    return headers


def decision_text(decision: Decision) -> str:
    """A decision on one line: the cost of each candidate, best first, then why the others were out.

    In brackets what the first one would find: the slot that is named to it, tokens cached and tokens to compute. For
    example `gpu1=35.6ms(prefill=12.0,stall=3.6,active=20.0)[slot=3,reused=900,fresh=40],
    gpu0=200.0ms(prefill=100.0,stall=60.0,active=40.0); gpu2:no-room`, here broken in two.
    """
    ranking = ", ".join(
        f"{candidate.backend_id}={candidate.cost_ms:.1f}ms{_terms(candidate.terms_ms)}{_prompt(candidate, place)}"
        for place, candidate in enumerate(decision.ranking[:SHOWN])
    )
    if len(decision.ranking) > SHOWN:
        ranking += f", {len(decision.ranking) - SHOWN} more"
    if not decision.rejections:
        return ranking
    rejected = [f"{name}:{why.value}" for name, why in decision.rejections.items()]
    more = f", {len(rejected) - SHOWN} more" if len(rejected) > SHOWN else ""
    return f"{ranking}; {', '.join(rejected[:SHOWN])}{more}"


def _prompt(candidate: Candidate, place: int) -> str:
    if place or not (candidate.reused_tokens or candidate.fresh_tokens):
        return ""
    slot = "" if candidate.slot is None else f"slot={candidate.slot},"
    return f"[{slot}reused={candidate.reused_tokens},fresh={candidate.fresh_tokens}]"


def _terms(terms_ms: dict[str, float]) -> str:
    told = [f"{name}={value:.1f}" for name, value in terms_ms.items() if value]
    return f"({','.join(told)})" if told else ""
