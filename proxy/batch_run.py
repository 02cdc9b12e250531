"""One embedding or rerank batch from its call to its answer: each piece is placed by itself and takes seats of its own.

One ticket stands in the line as long as inputs are left, so a batch waits like one request however large it is; each
seat that the ticket gets is worth one input. Nothing goes to the client before all is there, so a piece that fails may
run elsewhere at any time, in other pieces if it must. Tickets that wait when no input is left any more are withdrawn.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from proxy import dialects
from proxy.attempts import Attempts, explain, log_failed
from proxy.dialects import Call, ClientError, Usage
from proxy.dialects.contract import EngineError, Headers, Rendered
from proxy.dispatcher import Dispatcher
from proxy.relay import AttemptError, Collector
from proxy.requests import RequestRecord
from proxy.telemetry.access_log import Phase
from proxy.ticketed import Assignment, Ticketed, Withdrawn
from scheduler.domain import Decision, Engine, Failure, Measured, Outcome, Request

MAX_HELD_BYTES: Final = 512 * 1024 * 1024
"""Of answers to pieces that all batches hold together: two batches of the largest size, or many of usual ones."""


class Held:
    """Counts the bytes of answers that all batches of a proxy hold, while the rest of each batch is still to come."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Hold more.

        Raises:
            ClientError: 503: that would be too much.
        """
        if self.size_bytes + size_bytes > MAX_HELD_BYTES:
            text = "answers to batches fill the memory that slotgate has for them"
            raise ClientError(503, f"{text}: try again later, or send fewer inputs")
        self.size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Hold no longer what was taken."""
        self.size_bytes -= size_bytes


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
        held: Held,
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
            held: counts what all batches hold.
            wait_s: longest wait of each piece for a seat.
            clock: seconds, monotonic.

        Raises:
            ClientError: the batch is too large beside its inputs.
        """
        self.cut = False
        """The proxy stops and has ended the batch, by cancelling the task that runs it."""
        self._request = request
        self._record = record
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._held = held
        self._holds_bytes = 0
        self._wait_s = wait_s
        self._clock = clock
        self._batch = dialects.Batch(call, time.time_ns)
        self._left = deque(range(len(self._batch)))
        """Inputs that no piece has taken."""
        self._missing = len(self._batch)
        """Inputs whose answer has not come."""
        self._changed = asyncio.Event()
        self._tickets = 0
        self._waiting: set[Ticketed] = set()
        """For seats: one for the inputs that no piece has tried, and those of pieces that failed."""
        self._used: set[str] = set()
        self._decision: Decision | None = None
        self._headers: Headers = []

    async def run(self) -> Rendered:
        """The answer to the whole batch.

        Raises:
            Refused: there is no backend for a piece.
            PieceRefused: an engine refused one.
            ClientError: the model cannot do what is asked for, or the answer is too large or no answer to the batch.
            asyncio.CancelledError: the client left, or `cut`.
        """
        try:
            async with asyncio.TaskGroup() as pieces:
                while self._missing:
                    if self._left:
                        await self._start_piece(pieces)
                    else:
                        self._changed.clear()
                        await self._changed.wait()
            return self._whole()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._held.give_back(self._holds_bytes)

    def to_unload(self) -> list[str]:
        """Backends that ran pieces and shall unload the model now, because its client said so."""
        if not self._batch.unloads:
            return []
        backends = [self._dispatcher.backends.get(backend_id) for backend_id in sorted(self._used)]
        return [backend.id for backend in backends if backend is not None and backend.engine is Engine.OLLAMA]

    def _whole(self) -> Rendered:
        record = self._record
        record.phase = Phase.DATA
        record.status = 200
        record.first_byte_s = self._clock()
        record.usage = Usage(prompt_tokens=self._batch.prompt_tokens or None)
        return 200, self._headers + explain(record, self._decision), self._batch.answer()

    async def _start_piece(self, pieces: asyncio.TaskGroup) -> None:
        """Wait for seats for what is left, and start a piece on them."""
        ticketed = self._dispatcher.submit(self._next_request())
        try:
            self._record.stands(ticketed.outlook())
            assignment = await self._assigned(ticketed)
        except BaseException:
            self._close(ticketed)
            raise
        if assignment is None:
            self._close(ticketed)
            return
        if self._decision is None:
            self._decision = assignment.decision
        piece = pieces.create_task(self._piece(ticketed, assignment, self._take(assignment)))
        # Not in a `finally` of the piece: a task that is cancelled before its first step runs none.
        piece.add_done_callback(lambda _: self._close(ticketed))

    async def _assigned(self, ticketed: Ticketed) -> Assignment | None:
        """What a ticket gets; None: nothing is left for it to do."""
        self._waiting.add(ticketed)
        try:
            return await ticketed.assignment()
        except Withdrawn:
            return None
        finally:
            self._waiting.discard(ticketed)

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
        taken = [self._left.popleft() for _ in range(min(assignment.seats, len(self._left)))]
        if taken:
            self._record.piece_placed(assignment.backend_id, self._clock())
        if not self._left:
            for ticketed in tuple(self._waiting):
                ticketed.withdraw()
        return taken

    async def _piece(self, ticketed: Ticketed, assignment: Assignment | None, indexes: list[int]) -> None:
        try:
            while indexes and assignment is not None:
                try:
                    measured = await self._attempt(ticketed, assignment, indexes)
                except AttemptError as error:
                    self._left.extendleft(reversed(indexes))
                    log_failed(self._record, assignment, error)
                    ticketed.failed(error.failure, error.detail, error.error_body)
                    assignment = await self._assigned(ticketed)
                    indexes = self._take(assignment) if assignment is not None else []
                    self._changed.set()  # it may have got fewer seats than before
                else:
                    ticketed.started()
                    ticketed.ended(Outcome.DONE, measured)
                    self._missing -= len(indexes)
                    self._changed.set()
                    return
            ticketed.ended(Outcome.REJECTED)
        except (PieceRefused, ClientError):
            ticketed.ended(Outcome.ENGINE_REFUSED)
            raise

    async def _attempt(self, ticketed: Ticketed, assignment: Assignment, indexes: list[int]) -> Measured:
        plan = self._attempts.plan(self._batch.piece(indexes), assignment)
        self._used.add(assignment.backend_id)
        collector = Collector()
        exchanged = await self._attempts.exchange(ticketed, assignment, plan, collector, [], lambda: None)
        if exchanged.status >= 300:
            raise PieceRefused((collector.status, collector.headers, collector.body))
        body = collector.body
        try:
            before = self._batch.prompt_tokens
            self._batch.take(indexes, body)
        except EngineError as error:
            raise AttemptError(Failure.ENGINE_ERROR, str(error)) from None
        self._held.take(len(body))
        self._holds_bytes += len(body)
        self._headers = self._headers or collector.headers
        return Measured(prompt_tokens=(self._batch.prompt_tokens - before) or None)

    def _close(self, ticketed: Ticketed) -> None:
        self.cut = self.cut or ticketed.cut
        ticketed.close()
