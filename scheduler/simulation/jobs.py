"""What an engine works on, and what it tells of it. Owns no time and no rule."""

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from scheduler.simulation.contents import Content

C = TypeVar("C", bound=Content)


class Job(Generic[C]):
    """A request as the engine sees it. All times are NaN until they have come.

    Args:
        job_id: for its owner.
        content: the prompt and its whole answer.
        prompt_tokens: how much of that is the prompt; 0: it is answered as soon as it has a slot.
        named_slot: the slot that it shall run on, waiting for it if need be; None: the engine chooses.
        generates: False: only its prompt is computed, for an embedding.
        reuses: False: its prompt is computed anew, whatever its slot holds.
    """

    __slots__ = (
        "cached_tokens",
        "computed",
        "content",
        "ended_ms",
        "first_batch_ms",
        "first_token_ms",
        "gone",
        "id",
        "last_step",
        "named_slot",
        "output_tokens",
        "prompt",
        "prompt_tokens",
        "reuses",
        "shifted",
        "slot",
        "started_ms",
        "submitted_ms",
    )

    def __init__(
        self,
        job_id: str,
        content: C,
        prompt_tokens: int,
        named_slot: int | None = None,
        *,
        generates: bool = True,
        reuses: bool = True,
    ) -> None:
        nan = float("nan")
        self.id = job_id
        self.content = content
        self.prompt = content.first(prompt_tokens)
        self.prompt_tokens = prompt_tokens
        self.output_tokens = max(1, content.tokens - prompt_tokens) if generates else 0
        """An engine that generates makes one token at least."""
        self.named_slot = named_slot
        self.reuses = reuses
        self.shifted = 0
        """Tokens that its slot discarded to make room for more (context shift)."""
        self.slot: int | None = None
        self.submitted_ms = self.started_ms = self.first_batch_ms = self.first_token_ms = self.ended_ms = nan
        self.cached_tokens = 0
        self.computed = 0
        """Prompt tokens in the slot, cached ones included."""
        self.last_step = 0
        """Number of the step that makes its last token."""
        self.gone = False

    @property
    def prompt_ms(self) -> float:
        """The engine's own time for the prompt: without waiting and without copies, as `timings.prompt_ms`."""
        return self.first_token_ms - self.first_batch_ms

    @property
    def output_ms(self) -> float:
        """The engine's own time from the first token to the last."""
        return self.ended_ms - self.first_token_ms


class Slot(Generic[C]):
    """One parallel sequence."""

    __slots__ = ("content", "id", "job", "last_used")

    def __init__(self, slot_id: int) -> None:
        self.id = slot_id
        self.content: C | None = None
        self.job: Job[C] | None = None
        self.last_used = -1
        """Order of use, not a time."""

    @property
    def held(self) -> int:
        """Tokens that it holds."""
        return 0 if self.content is None else self.content.tokens


class Kind(StrEnum):
    """What can happen to a job."""

    STARTED = "started"  # it has a slot; its cached tokens are known
    REFUSED = "refused"  # it had a slot, and its prompt does not fit
    BATCH = "batch"  # some of its prompt was computed; told with `tells_steps` only
    FIRST = "first"  # token of its answer
    TOKEN = "token"  # noqa: S105 - a further one; told with `tells_steps` only
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Happened(NamedTuple, Generic[C]):
    """Something that happened to a job; the job itself tells the rest."""

    kind: Kind
    job: Job[C]
    at_ms: float
