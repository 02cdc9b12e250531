"""Everything that is known of one request, put together for `slotgate explain`. Owns no fact and no decision."""

import time

from proxy.admin_api import LiveRequest, RecentRequest
from proxy.dispatcher import Dispatcher
from proxy.explained import ExplainAnswer, ExplainedDecision, ExplainedWait
from proxy.journal import Journal, explained_wait
from proxy.requests import RequestBook, RequestRecord
from scheduler.domain import Request
from scheduler.names import short
from scheduler.waiting import Ticket


def explain(request_id: str, journal: Journal, book: RequestBook, dispatcher: Dispatcher) -> ExplainAnswer | None:
    """What was decided about a request, how it waited and how it ended; None if nothing is known of it.

    Args:
        request_id: as its client sees it.
        journal: what was decided.
        book: how requests ended.
        dispatcher: what waits and runs.
    """
    now_s = dispatcher.clock()
    answer = journal.explain(request_id)
    ended, open_record = book.ended(request_id), book.being_answered(request_id)
    pieces = [request for request in dispatcher.live() if _base(request.id) == request_id]
    if answer is None:
        if ended is None and not pieces:
            return None
        answer = ExplainAnswer(id=request_id, decisions=[])
    answer.request = ended
    if ended is not None:
        answer.wait = _wait_that_was(ended)
        return answer
    tickets = [ticket for ticket in dispatcher.scheduler.waiting() if _base(ticket.request.id) == request_id]
    if pieces:
        answer.live = _live(pieces, tickets, request_id, dispatcher, now_s)
    if tickets:
        answer.wait = _wait(tickets[0], open_record, dispatcher, now_s)
        if (decision := _decision_now(tickets[0], dispatcher, now_s)) is not None:
            decision.tenant_full = answer.wait.tenant_running is not None
            if (last := answer.decisions[-1:]) and _is_same(last[0], decision):
                decision.at_unix_s = answer.decisions.pop().at_unix_s
            answer.decisions.append(decision)
    elif open_record is not None and open_record.position is not None:
        answer.wait = ExplainedWait(
            waits=False,
            waited_s=open_record.queued_s or 0.0,
            position=open_record.position,
            expected_wait_s=open_record.expected_wait_s,
        )
    return answer


def _base(request_id: str) -> str:
    """Pieces of a batch have ids of their own; their client knows one."""
    return request_id.partition("/")[0]


def _wait_that_was(ended: RecentRequest) -> ExplainedWait | None:
    if ended.position is None:
        return None
    return ExplainedWait(
        waits=False,
        waited_s=(ended.queue_ms or 0.0) / 1000,
        position=ended.position,
        expected_wait_s=ended.expected_wait_s,
    )


def _live(
    pieces: list[Request], tickets: list[Ticket], request_id: str, dispatcher: Dispatcher, now_s: float
) -> LiveRequest:
    first = pieces[0]
    backends = dict.fromkeys(
        lease.backend_id for lease in dispatcher.scheduler.running() if _base(lease.request_id) == request_id
    )
    outlook = dispatcher.scheduler.outlook_of(tickets[0].request.id, now_s) if tickets else None
    return LiveRequest(
        id=request_id,
        state="waiting" if len(tickets) == len(pieces) else "running",
        dialect=first.dialect.value,
        operation=first.operation.value,
        model=short(first.model) if first.model else None,
        age_s=now_s - first.arrived_s,
        backend=",".join(backends) or None,
        tenant=first.tenant,
        priority=first.priority,
        position=None if outlook is None else outlook[0],
        expected_wait_s=None if outlook is None else outlook[1],
    )


def _wait(ticket: Ticket, record: RequestRecord | None, dispatcher: Dispatcher, now_s: float) -> ExplainedWait:
    scheduler, request = dispatcher.scheduler, ticket.request
    since_s, before_s = request.arrived_s, 0.0
    if record is not None and record.waiting_since_s is not None:
        since_s, before_s = record.waiting_since_s, record.queued_s or 0.0
    now_unix_s = time.time()
    outlook = scheduler.outlook_of(request.id, now_s)
    wait = ExplainedWait(
        waits=True,
        waited_s=before_s + now_s - since_s,
        since_unix_s=now_unix_s - (now_s - since_s),
        until_unix_s=now_unix_s + request.wait_until_s - now_s,
        position=None if outlook is None else outlook[0],
        expected_wait_s=None if outlook is None else outlook[1],
    )
    if ticket.decision is None or not ticket.decision.ranking:
        return wait
    if _holds(ticket, now_s):
        assert ticket.hold_until_s is not None  # noqa: S101 - it holds
        wait.held_until_unix_s = now_unix_s + ticket.hold_until_s - now_s
        wait.held_for, wait.held_for_tokens = _held_for(request, dispatcher, now_s)
    most = scheduler.policy.tenant_max_running
    running = scheduler.tenant_running(request.tenant)
    if most and running >= most:
        wait.tenant_running = running
    return wait


def _holds(ticket: Ticket, now_s: float) -> bool:
    return ticket.hold_until_s is not None and ticket.hold_until_s > now_s


def _held_for(request: Request, dispatcher: Dispatcher, now_s: float) -> tuple[str | None, int | None]:
    """The backend that holds most of the request's prompt, on slots that are busy or idle; and how many tokens."""
    scheduler = dispatcher.scheduler
    common = {
        view.backend.id: scheduler.outlook.most_common_tokens(view.backend, request)
        for view in scheduler.snapshot(now_s).backends
    }
    best = max(common, key=lambda backend_id: common[backend_id], default=None)
    return (best, round(common[best])) if best is not None and common[best] >= 1 else (None, None)


def _is_same(noted: ExplainedDecision, now: ExplainedDecision) -> bool:
    """Whether it waits by a decision that was noted already."""
    return noted.waits and (noted.ranking, noted.rejections) == (now.ranking, now.rejections)


def _decision_now(ticket: Ticket, dispatcher: Dispatcher, now_s: float) -> ExplainedDecision | None:
    """The decision by which it waits, in the numbers of now."""
    if ticket.decision is None:
        return None
    holds_s = ticket.hold_until_s - now_s if ticket.hold_until_s is not None and _holds(ticket, now_s) else None
    snapshot = dispatcher.scheduler.snapshot(now_s)
    return explained_wait(time.time(), ticket.decision, holds_s, ticket.request, snapshot)
