"""Clients, a router and engines in virtual time: a discrete-event simulation. Decides nothing by itself.

What happens at the same time happens in this order: engines by number, then clients and reports, then the router's
wake-ups. A router takes no time; what it places reaches the engine at once and starts at the end of its step.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from scheduler.domain import Measured, Report, SlotState
from scheduler.simulation.contents import Chain
from scheduler.simulation.conversations import Session
from scheduler.simulation.engine import EngineModel, EngineSettings
from scheduler.simulation.jobs import Happened, Job, Kind
from scheduler.simulation.records import Record
from scheduler.simulation.routers import Answer, Placement, Router


class _Open:
    """A request between arrival and end."""

    __slots__ = ("arrived_ms", "backend", "placed_ms", "predicted_tokens", "session", "turn")

    def __init__(self, session: Session, turn: int, arrived_ms: float) -> None:
        self.session = session
        self.turn = turn
        self.arrived_ms = arrived_ms
        self.placed_ms = 0.0
        self.backend = -1
        self.predicted_tokens = 0


class Fleet:
    """A run.

    Args:
        engines: settings of each card's engine.
        router: told everything, decides everything.
        report_every_ms: pause between two looks at each engine, told to the router; infinity: nobody looks.
    """

    def __init__(self, engines: Sequence[EngineSettings], router: Router, report_every_ms: float = inf) -> None:
        self.engines: list[EngineModel[Chain]] = [EngineModel(settings) for settings in engines]
        self.records: list[Record] = []
        """Of requests that are over, in that order."""
        self.now_ms = 0.0
        self._router = router
        self._report_every_ms = report_every_ms
        self._open: dict[str, _Open] = {}
        self._due: list[tuple[float, int, Session, int]] = []
        """Requests to come: time, order, session and which of its turns."""
        self._orders = 0

    def run(self, sessions: Sequence[Session]) -> list[Record]:
        """Serve all sessions to their end; returns `records`."""
        for session in sessions:
            self._come(session, 0, session.arrives_ms)
        report_ms = self._report_every_ms
        while self._due or self._open:
            engine_ms, number = min((engine.next_event_ms(), number) for number, engine in enumerate(self.engines))
            client_ms = self._due[0][0] if self._due else inf
            wake_ms = self._router.wake_ms()
            self.now_ms = now_ms = max(self.now_ms, min(engine_ms, client_ms, report_ms, wake_ms))
            if now_ms == inf:
                raise RuntimeError(f"{len(self._open)} requests wait, and nothing will ever happen")
            if engine_ms <= now_ms:
                for happened in self.engines[number].advance(now_ms):
                    self._take(number, happened)
            elif client_ms <= now_ms:
                _, _, session, turn = heappop(self._due)
                self._arrive(session, turn)
            elif report_ms <= now_ms:
                report_ms += self._report_every_ms
                self._report()
            else:
                self._perform(self._router.woken(now_ms))
        return self.records

    def _come(self, session: Session, turn: int, at_ms: float) -> None:
        self._orders += 1
        heappush(self._due, (at_ms, self._orders, session, turn))

    def _arrive(self, session: Session, number: int) -> None:
        request_id = f"{session.id}.{number}"
        self._open[request_id] = _Open(session, number, self.now_ms)
        turn = session.turns[number]
        self._perform(self._router.arrived(request_id, turn, session.tenant, session.priority, self.now_ms))

    def _perform(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            request = self._open[answer.request_id]
            turn = request.session.turns[request.turn]
            if not isinstance(answer, Placement):
                del self._open[answer.request_id]
                tenant, arrived_ms = request.session.tenant, request.arrived_ms
                lengths = turn.prompt_tokens, turn.output_tokens
                self.records.append(Record(answer.request_id, tenant, arrived_ms, *lengths, rejected=answer.reason))
                continue
            request.placed_ms = self.now_ms
            request.backend = answer.backend
            request.predicted_tokens = answer.predicted_tokens
            job = Job(answer.request_id, turn.content, turn.prompt_tokens, answer.slot)
            self.engines[answer.backend].submit(job, self.now_ms)

    def _take(self, number: int, happened: Happened[Chain]) -> None:
        job = happened.job
        if happened.kind is Kind.FIRST:
            self._perform(self._router.answer_started(job.id, self.now_ms))
        elif happened.kind is Kind.FINISHED:
            self._end(number, job)

    def _end(self, number: int, job: Job[Chain]) -> None:
        request = self._open.pop(job.id)
        session = request.session
        self.records.append(
            Record(
                job.id,
                session.tenant,
                request.arrived_ms,
                job.prompt_tokens,
                job.output_tokens,
                backend=number,
                slot=-1 if job.slot is None else job.slot,
                placed_ms=request.placed_ms,
                started_ms=job.started_ms,
                first_token_ms=job.first_token_ms,
                ended_ms=job.ended_ms,
                cached_tokens=job.cached_tokens,
                predicted_tokens=request.predicted_tokens,
            )
        )
        if request.turn + 1 < len(session.turns):
            think_ms = session.turns[request.turn + 1].think_ms
            self._come(session, request.turn + 1, self.now_ms + think_ms)
        measured = Measured(
            prompt_tokens=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            output_tokens=job.output_tokens,
            prompt_ms=job.prompt_ms,
            output_ms=job.output_ms,
            first_byte_ms=job.first_token_ms - request.placed_ms,
            slot=job.slot,
        )
        self._perform(self._router.ended(job.id, measured, self.now_ms))

    def _report(self) -> None:
        """What /slots of each engine would tell."""
        for number, engine in enumerate(self.engines):
            slots = tuple([SlotState(slot.id, slot.job is not None, None, slot.held) for slot in engine.slots])
            busy = sum(slot.busy for slot in slots)
            report = Report(f"card-{number}", 1, self.now_ms / 1000, busy, len(engine.deferred), slots)
            self._perform(self._router.reported(report, self.now_ms))
