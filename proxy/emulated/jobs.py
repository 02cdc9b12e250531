"""One sequence that an engine computes, and who is told of its progress; slots as the APIs show them.

Must not know slots' rules or HTTP.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from proxy.emulated.replies import Reply, Stop
from scheduler.simulation import jobs as model
from scheduler.simulation.contents import Tokens


class Problem(msgspec.Struct, frozen=True):
    """An error as an engine words it; each API renders it in its own shape."""

    status: int
    kind: str
    message: str
    extra: dict[str, Any] = {}


class Sink(Protocol):
    """Is told what happens to a job; called inside the engine's step, so it must only write or note."""

    def started(self, job: "Job") -> None:
        """A slot was taken."""

    def progressed(self, job: "Job") -> None:
        """A batch of the prompt was computed."""

    def said(self, job: "Job", piece: str) -> None:
        """One more token; the piece is what it makes visible and may be empty."""

    def finished(self, job: "Job") -> None:
        """The answer is complete."""

    def failed(self, job: "Job", problem: Problem) -> None:
        """There will be no answer."""


class Silent:
    """A sink that wants nothing; base of the others."""

    def started(self, job: "Job") -> None:
        """Nothing to do."""

    def progressed(self, job: "Job") -> None:
        """Nothing to do."""

    def said(self, job: "Job", piece: str) -> None:
        """Nothing to do."""

    def finished(self, job: "Job") -> None:
        """Nothing to do."""

    def failed(self, job: "Job", problem: Problem) -> None:
        """Nothing to do."""


class Slot:
    """One parallel sequence: what the engine's model knows of it, and which task it served last."""

    def __init__(self, part: "model.Slot[Tokens]") -> None:
        self.part = part
        self.task_id: int | None = None
        self.params: dict[str, Any] = {}

    @property
    def id(self) -> int:
        """Its number, from 0."""
        return self.part.id

    @property
    def busy(self) -> bool:
        """Whether somebody runs on it."""
        return self.part.job is not None

    @property
    def tokens(self) -> Sequence[int]:
        """What it holds; while it is busy, what it held before."""
        return self.part.content.ids if self.part.content is not None else []

    def hold(self, tokens: Sequence[int]) -> None:
        """Put something into an idle slot; empty: erase it."""
        self.part.content = Tokens(tokens) if tokens else None


class Job:
    """One sequence: a prompt, the answer planned for it, and how far it got. Times are of the loop's clock, in s."""

    def __init__(
        self,
        prompt: list[int],
        reply: Reply | None,
        sink: Sink,
        *,
        most: int = -1,
        named_slot: int | None = None,
        reuse: bool = True,
        streams: bool = False,
        reports_progress: bool = False,
        leaves_queue_at_once: bool = False,
        choice: int = 0,
        params: dict[str, Any] | None = None,
    ) -> None:
        self.prompt = prompt
        self.reply = reply
        """None: nothing is generated (an embedding)."""
        self.sink = sink
        self.most = most
        """Tokens to generate at most; -1: until the context is full."""
        self.named_slot = named_slot
        self.reuse = reuse
        self.streams = streams
        self.reports_progress = reports_progress
        self.leaves_queue_at_once = leaves_queue_at_once
        """Ollama's own queue notices a client that left; llama-server's does not."""
        self.choice = choice
        self.params = params or {}
        self.work: model.Job[Tokens] | None = None
        """What the engine's model knows of it, once it was submitted."""
        self.slot: Slot | None = None
        self.task_id = 0
        self.cached = 0
        self.processed = 0
        """Prompt tokens computed, not counting cached ones."""
        self.decoded = 0
        self.shifted = 0
        """Tokens discarded to make room (context shift)."""
        self.ended = Stop.NONE
        self.truncated = False
        self.over = False
        self.gone_at: float | None = None
        self.submitted_s = 0.0
        self.started_s = 0.0
        self.first_batch_s = 0.0
        self.first_token_s = 0.0
        self.last_token_s = 0.0
        self.now_s = 0.0
        """Time of the newest event of this job."""

    @property
    def evaluated(self) -> int:
        """Prompt tokens that the slot holds by now."""
        return self.cached + self.processed

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.evaluated >= len(self.prompt)

    @property
    def held(self) -> int:
        """Tokens that the slot holds: the prompt so far and all generated tokens but the last."""
        return self.evaluated + max(0, self.decoded - 1) - self.shifted

    @property
    def text(self) -> str:
        """What became visible so far."""
        return "".join(self.reply.pieces[: self.decoded]) if self.reply is not None else ""

    @property
    def prompt_ms(self) -> float:
        """Milliseconds to the end of the prompt (so far, if it is not done), without what was copied before it."""
        end = self.first_token_s or self.now_s
        return round((end - self.first_batch_s) * 1000, 3) if self.processed else 0.0

    @property
    def output_ms(self) -> float:
        """Milliseconds from the first token to the last one."""
        if not self.decoded:
            return 0.0
        return max(0.001, round((self.last_token_s - self.first_token_s) * 1000, 3))
