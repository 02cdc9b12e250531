"""One embedding or rerank batch from its call to its answer: each piece is placed by itself and takes seats of its own.

One ticket stands in the line as long as inputs are left, so a batch waits like one request however large it is; each
seat that the ticket gets is worth one input. Nothing goes to the client before all is there, so a piece that fails may
run elsewhere at any time, in other pieces if it must.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec

from proxy import dialects
from proxy.attempts import Attempts, explain, log_failed
from proxy.dialects import Call, Usage
from proxy.dialects.contract import EngineError, Headers, Rendered
from proxy.dispatcher import Assignment, Dispatcher, Ticketed
from proxy.relay import AttemptError, Collector
from proxy.requests import RequestRecord
from proxy.telemetry.access_log import Phase
from scheduler.domain import Decision, Failure, Outcome, Request


class PieceRefused(Exception):
    """An engine refused a piece, as it would have refused the batch."""

    def __init__(self, answer: Rendered) -> None:
        super().__init__(f"status {answer[0]}")
        self.answer = answer


class BatchRun:
    """Runs one batch."""

    def __init__(
        self,
        call: Call,
        request: Request,
        record: RequestRecord,
        dispatcher: Dispatcher,
        attempts: Attempts,
        wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Prepare.

        Args:
            call: the batch.
            request: for its first piece.
            record: filled in with what happens.
            dispatcher: places the pieces.
            attempts: makes their exchanges.
            wait_s: longest wait of each piece for a seat.
            clock: seconds, monotonic.
        """
        self.cut = False
        """The proxy stops and has ended the batch, by cancelling the task that runs it."""
        self._request = request
        self._record = record
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._wait_s = wait_s
        self._clock = clock
        self._batch = dialects.Batch(call, time.time_ns)
        self._left = deque(range(len(self._batch)))
        """Inputs that no piece has taken."""
        self._missing = len(self._batch)
        """Inputs whose answer has not come."""
        self._changed = asyncio.Event()
        self._tickets = 0
        self._decision: Decision | None = None
        self._headers: Headers = []

    async def run(self) -> Rendered:
        """The answer to the whole batch.

        Raises:
            Refused: there is no backend for a piece.
            PieceRefused: an engine refused one.
            ClientError: the model cannot do what is asked for, or the answer is too large.
            asyncio.CancelledError: the client left, or `cut`.
        """
        try:
            async with asyncio.TaskGroup() as pieces:
                while self._missing:
                    if self._left:
                        ticketed, assignment = await self._placed()
                        pieces.create_task(self._piece(ticketed, assignment, self._take(assignment)))
                    else:
                        self._changed.clear()
                        await self._changed.wait()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        record = self._record
        record.phase = Phase.DATA
        record.status = 200
        record.first_byte_s = self._clock()
        record.usage = Usage(prompt_tokens=self._batch.prompt_tokens or None)
        return 200, self._headers + explain(record, self._decision), self._batch.answer()

    async def _placed(self) -> tuple[Ticketed, Assignment]:
        """A ticket for what is left, and what it got."""
        ticketed = self._dispatcher.submit(self._next_request())
        try:
            assignment = await ticketed.assignment()
        except BaseException:
            self._close(ticketed)
            raise
        if self._decision is None:
            self._decision = assignment.decision
        return ticketed, assignment

    def _next_request(self) -> Request:
        self._tickets += 1
        if self._tickets == 1:
            return self._request
        now_s = self._clock()
        return msgspec.structs.replace(
            self._request,
            id=f"{self._request.id}/{self._tickets}",
            seats=len(self._left),
            arrived_s=now_s,
            wait_until_s=now_s + self._wait_s,
            further=True,
        )

    def _take(self, assignment: Assignment) -> list[int]:
        """Inputs for the seats of a piece; none where other pieces have taken all meanwhile."""
        self._record.piece_placed(assignment.backend_id, self._clock())
        return [self._left.popleft() for _ in range(min(assignment.seats, len(self._left)))]

    async def _piece(self, ticketed: Ticketed, assignment: Assignment, indexes: list[int]) -> None:
        try:
            while indexes:
                try:
                    await self._attempt(ticketed, assignment, indexes)
                except AttemptError as error:
                    self._left.extendleft(reversed(indexes))
                    log_failed(self._record, assignment, error)
                    ticketed.failed(error.failure, error.detail)
                    assignment = await ticketed.assignment()
                    indexes = self._take(assignment)
                    self._changed.set()  # it may have got fewer seats than before
                else:
                    ticketed.started()
                    ticketed.ended(Outcome.DONE)
                    self._missing -= len(indexes)
                    self._changed.set()
                    return
            ticketed.ended(Outcome.REJECTED)
        except PieceRefused:
            ticketed.ended(Outcome.ENGINE_REFUSED)
            raise
        finally:
            self._close(ticketed)

    async def _attempt(self, ticketed: Ticketed, assignment: Assignment, indexes: list[int]) -> None:
        plan = self._attempts.plan(self._batch.piece(indexes), assignment)
        collector = Collector()
        exchanged = await self._attempts.exchange(ticketed, assignment, plan, collector, [], lambda: None)
        if exchanged.status >= 300:
            raise PieceRefused((collector.status, collector.headers, collector.body))
        try:
            self._batch.take(indexes, collector.body)
        except EngineError as error:
            raise AttemptError(Failure.ENGINE_ERROR, str(error)) from None
        self._headers = self._headers or collector.headers

    def _close(self, ticketed: Ticketed) -> None:
        self.cut = self.cut or ticketed.cut
        ticketed.close()
