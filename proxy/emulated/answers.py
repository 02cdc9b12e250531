"""Sinks that turn what happens to a job into bytes of an answer, faults in the middle of one included.

Owns when something is sent; must not know what the bytes mean.
"""

from collections.abc import Callable
from typing import Protocol

from proxy.emulated.engine import SlotEngine
from proxy.emulated.faults import Fault, Kind
from proxy.emulated.jobs import Job, Problem, Silent
from proxy.emulated.wire import Exchange, Headers


class StreamForm(Protocol):
    """The frames of one form of stream; empty bytes: nothing is sent."""

    def progressed(self, job: Job) -> bytes:
        """A batch of the prompt is done."""

    def said(self, job: Job, piece: str) -> bytes:
        """One more token."""

    def finished(self, job: Job) -> bytes:
        """The answer is complete."""

    def closing(self) -> bytes:
        """The last bytes of the stream."""


class Answer(Silent):
    """What all answers share: the jobs of a request, leaving clients, faults after some tokens."""

    def __init__(self, exchange: Exchange, engine: SlotEngine, fault: Fault | None) -> None:
        self.exchange = exchange
        self.engine = engine
        self.jobs: list[Job] = []
        self.child_dies: Callable[[], None] | None = None
        """Ends the process that computes (Ollama), which fails its every job."""
        self.let_go: Callable[[], None] | None = None
        """Told at once that the client has left (Ollama), while the engine may compute on."""
        self._fault = fault
        self._tokens = 0
        exchange.on_gone = self._left

    def run(self, jobs: list[Job]) -> None:
        """Hand the jobs to the engine."""
        self.jobs = jobs
        self.exchange.jobs.extend(jobs)
        for job in jobs:
            self.engine.submit(job)
        if self.exchange.gone:
            self._left()

    def _left(self) -> None:
        for job in self.jobs:
            self.engine.leave(job)
        if self.let_go is not None:
            self.let_go()

    def befallen(self) -> bool:
        """Count a token; whether the fault strikes now. Afterwards the answer is over."""
        self._tokens += 1
        fault = self._fault
        if fault is None or self._tokens <= fault.after_tokens or self.exchange.ended:
            return self.exchange.ended
        if fault.kind is Kind.DIE:
            self.exchange.abort()
        elif fault.kind is Kind.UNTERMINATED and self.exchange.status:
            self.exchange.end()
        elif fault.kind is Kind.CHILD_DIES and self.child_dies is not None:
            self.child_dies()
            return True
        else:
            return False
        self._left()
        return True


class StreamAnswer(Answer):
    """A streamed answer. The head goes out with the first result, as at the real engines: 200 means a slot was got.

    Args:
        headers: of the stream.
        form: its frames.
        refuse: answers a problem that came before the head.
        broken: the last bytes of a stream that a problem ends.
    """

    def __init__(
        self,
        exchange: Exchange,
        engine: SlotEngine,
        fault: Fault | None,
        *,
        headers: Headers,
        form: StreamForm,
        refuse: Callable[[Problem], None],
        broken: Callable[[Problem], bytes],
    ) -> None:
        super().__init__(exchange, engine, fault)
        self._headers, self._form = headers, form
        self._refuse, self._broken = refuse, broken
        self._open = 0

    def run(self, jobs: list[Job]) -> None:
        """Hand the jobs to the engine."""
        self._open = len(jobs)
        super().run(jobs)

    def started(self, job: Job) -> None:
        """A slot was got: the 0 % frame, if progress is wanted."""
        if job.reports_progress:
            self._send(self._form.progressed(job))

    def progressed(self, job: Job) -> None:
        """A batch of the prompt is done."""
        if job.reports_progress:
            self._send(self._form.progressed(job))

    def said(self, job: Job, piece: str) -> None:
        """One more token."""
        if not self.befallen():
            self._send(self._form.said(job, piece))

    def finished(self, job: Job) -> None:
        """The end of one of the jobs; of the last one, the end of the stream."""
        self._send(self._form.finished(job))
        self._open -= 1
        if self._open == 0:
            self._send(self._form.closing())
            self.exchange.end()

    def failed(self, job: Job, problem: Problem) -> None:  # noqa: ARG002 - one ends all
        """A problem: with its status if nothing was sent yet, else as the stream's last words."""
        if self.exchange.gone or self.exchange.ended:
            self.exchange.abort()
        elif not self.exchange.status:
            self._refuse(problem)
        else:
            self._send(self._broken(problem))
            self.exchange.end()

    def _send(self, frame: bytes) -> None:
        if not frame or self.exchange.ended:
            return
        if not self.exchange.status:
            self.exchange.begin(200, self._headers)
        self.exchange.chunk(frame)


class WholeAnswer(Answer):
    """An answer in one piece, when all its jobs are done.

    Args:
        reply: answers with the finished jobs, in the order they were given.
        refuse: answers a problem.
    """

    def __init__(
        self,
        exchange: Exchange,
        engine: SlotEngine,
        fault: Fault | None,
        *,
        reply: Callable[[list[Job]], None],
        refuse: Callable[[Problem], None],
    ) -> None:
        super().__init__(exchange, engine, fault)
        self._reply, self._refuse = reply, refuse
        self._finished = 0

    def said(self, job: Job, piece: str) -> None:  # noqa: ARG002 - nothing is shown yet
        """One more token."""
        self.befallen()

    def finished(self, job: Job) -> None:  # noqa: ARG002 - all are replied together
        """One of the jobs is done."""
        self._finished += 1
        if self._finished == len(self.jobs) and not self.exchange.ended:
            self._reply(self.jobs)

    def failed(self, job: Job, problem: Problem) -> None:
        """One problem ends the whole request."""
        if self.exchange.gone or self.exchange.ended:
            self.exchange.abort()
            return
        self._refuse(problem)
        for other in self.jobs:
            if other is not job:
                self.engine.leave(other)
