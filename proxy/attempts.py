"""What every attempt at a backend has in common: its plan, its exchange with an end from outside, and its explanation.

Knows nothing of what follows from an attempt's end.
"""

import asyncio
from collections.abc import Callable

import structlog

from proxy import dialects
from proxy.backends.fleet import Fleet
from proxy.config import LimitsConfig
from proxy.dialects import Call, Plan
from proxy.dialects.contract import Headers
from proxy.dispatcher import Assignment, Dispatcher, Ticketed
from proxy.pools import Pools
from proxy.relay import AttemptError, Exchanged, Receiver, exchange
from proxy.requests import RequestRecord
from scheduler.domain import Backend, Decision, Failure

log = structlog.get_logger("slotgate.inference")

SHOWN = 3
"""Candidates and rejections that the header names: it costs on every request."""


class Attempts:
    """Makes attempts at backends."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet, pools: Pools, limits: LimitsConfig) -> None:
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
        return dialects.plan(call, backend, facts)

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
                return await exchange(
                    pool,
                    plan.outgoing,
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
