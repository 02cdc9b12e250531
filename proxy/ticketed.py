"""One request's side of the dispatcher: where it may go, and what it tells back. Decides nothing."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from proxy.dialects.errors import refusal_text
from scheduler import effects, events
from scheduler.domain import Decision, Failure, Measured, Outcome, Rejection, Request
from scheduler.runner import Runner

if TYPE_CHECKING:
    from proxy.dispatcher import Dispatcher

SHOWN = 3
"""Backends whose numbers a refusal tells."""


class Assignment(msgspec.Struct, frozen=True):
    """A backend that the request may be sent to now."""

    backend_id: str
    decision: Decision
    attempt: int
    seats: int
    """Inputs of a batch that it may take; otherwise what the request asked for."""
    slot: int | None = None
    """The slot that the engine shall use; None: its own choice."""
    predicted: int | None = None
    """Tokens of the prompt that should be cached there; None: nobody can tell."""
    runner: Runner | None = None
    """How an Ollama has the model loaded that it runs on; None: nothing is to be said of that."""


class Refused(Exception):
    """The scheduler refused the request."""

    def __init__(self, effect: effects.Reject, engine_said: str = "") -> None:
        super().__init__(effect.detail)
        self.engine_said = engine_said if effect.rejection is Rejection.RETRIES_SPENT else ""
        """Where no try is left: the error that the last engine answered with, which it would have told the client."""
        self.rejection: Rejection = effect.rejection
        numbers = [] if effect.decision is None else [f"{name}: {why}" for name, why in effect.decision.details.items()]
        self.detail = "; ".join(filter(None, [effect.detail, *numbers[:SHOWN]]))
        self.retry_after_s = effect.retry_after_s
        self.decision = effect.decision


class Withdrawn(Exception):
    """The request was taken out of the line because nobody needs it any more."""


class Ticketed:
    """One request's side of the dispatcher: its assignments, and what it tells back."""

    def __init__(self, dispatcher: "Dispatcher", request: Request) -> None:
        self.request = request
        self.cut = False
        """The proxy stops and ends the request: its task is cancelled although the client is still there."""
        self._dispatcher = dispatcher
        self._task = asyncio.current_task()
        self._next: asyncio.Future[Assignment] = dispatcher.loop.create_future()
        self._sent = False
        self._scope: asyncio.Timeout | None = None
        self._engine_said = ""
        self._over = False

    async def assignment(self) -> Assignment:
        """Wait for a backend.

        Raises:
            Refused: there is none for it.
            Withdrawn: `withdraw` was called.
        """
        return await self._next

    def sending(self, scope: asyncio.Timeout) -> None:
        """The request is about to be sent, within a timeout: from here on the engine may work on it."""
        self._sent = True
        self._scope = scope

    def call_back(self) -> None:
        """End the attempt: its timeout expires now."""
        if self._scope is not None:
            self._scope.reschedule(self._dispatcher.loop.time())

    def started(self) -> None:
        """The first byte of the engine's answer is about to go out."""
        self._dispatcher.feed(events.AnswerStarted(self.request.id))

    def failed(self, failure: Failure, detail: str, error_body: bytes = b"") -> None:
        """The attempt failed before its first byte, the engine answering `error_body`; await `assignment` again."""
        self._next = self._dispatcher.loop.create_future()
        self._sent = False
        self._scope = None
        self._engine_said = refusal_text(error_body) if error_body.lstrip().startswith(b"{") else ""
        self._dispatcher.feed(events.AttemptFailed(self.request.id, failure, detail))

    def outlook(self) -> tuple[int, float | None] | None:
        """While it waits: its place in line, 1 for the next, and how many seconds it will probably wait, if known."""
        return self._dispatcher.scheduler.outlook_of(self.request.id, self._dispatcher.clock())

    def ended(self, outcome: Outcome, measured: Measured | None = None) -> None:
        """The exchange is over; `measured` is what an answer cost."""
        self._over = True
        self._dispatcher.feed(events.RequestEnded(self.request.id, outcome, measured))

    def withdraw(self) -> None:
        """Nobody needs a backend for it any more: whoever awaits `assignment` gets `Withdrawn`, unless one is there."""
        if self._over or self._next.done():
            return
        self.ended(Outcome.REJECTED)
        self._next.set_exception(Withdrawn())

    def close(self) -> None:
        """Whatever happened: if nobody said how it ended, the client left. Its seat is free if nothing was sent."""
        self._dispatcher.forget(self.request.id)
        if self._over:
            return
        self._over = True
        if self._sent:
            self._dispatcher.feed(events.ClientLeft(self.request.id))
        else:
            self._dispatcher.feed(events.RequestEnded(self.request.id, Outcome.REJECTED))

    def settle(self, effect: effects.Dispatch | effects.Reject) -> None:
        """Wake the waiting task (for the dispatcher)."""
        if isinstance(effect, effects.Reject):
            self._over = True
        if self._next.done():
            return
        if isinstance(effect, effects.Dispatch):
            predicted = predicted_tokens(self.request, effect.decision)
            self._next.set_result(
                Assignment(
                    effect.backend_id,
                    effect.decision,
                    effect.attempt,
                    effect.seats,
                    effect.slot,
                    predicted,
                    effect.runner,
                )
            )
        else:
            self._next.set_exception(Refused(effect, self._engine_said))

    def end(self) -> None:
        """The proxy stops now: cancel the request's task, which then tells its client."""
        self.cut = True
        if self._task is not None:
            self._task.cancel()


def predicted_tokens(request: Request, decision: Decision) -> int | None:
    """Tokens of a prompt that should be cached at the best backend; None: nobody can tell."""
    best = decision.best
    return None if best is None or request.prompt is None else best.reused_tokens
