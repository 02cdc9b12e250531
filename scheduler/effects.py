"""Everything the scheduler may ask for. It never does any of it itself."""

import msgspec

from scheduler.domain import Decision, Health, Rejection
from scheduler.news import LeaseOver, LeaseTaken, News
from scheduler.runner import Runner


class Claim(msgspec.Struct, frozen=True):
    """Ask the store for seats. Answered by `events.ClaimGranted` or `ClaimRefused`, exactly once."""

    request_id: str
    backend_id: str
    nonce: str
    """Unique per attempt: the claim is idempotent by it."""
    seats: int
    running_limit: int
    epoch: int
    slot: int | None = None
    """The slot that it names: nobody else may have it; None: the engine chooses."""
    news: LeaseTaken | None = None
    """What the other proxies hear if it is granted; None: there are none."""


class Dispatch(msgspec.Struct, frozen=True):
    """Send the request to the backend: its lease is held."""

    request_id: str
    backend_id: str
    nonce: str
    decision: Decision
    attempt: int
    """1 for the first."""
    seats: int
    """Seats that it holds; of a divisible request maybe fewer than it wants."""
    slot: int | None = None
    """The idle slot that it shall run on; None: the engine chooses."""
    runner: Runner | None = None
    """Options of the residency that it shall run on, to be said to an Ollama; None: nothing is to be said of them."""


class Reject(msgspec.Struct, frozen=True):
    """Answer the client with an error; the request is over."""

    request_id: str
    rejection: Rejection
    detail: str
    """For the person who reads the error: what is missing and what would help."""
    retry_after_s: float | None = None
    decision: Decision | None = None


class Cancel(msgspec.Struct, frozen=True):
    """End the exchange with the backend at once.

    Either the client is gone, or the backend went down while the request had not got a byte; then it is answered by
    `events.AttemptFailed`, and may run elsewhere.
    """

    request_id: str
    backend_id: str


class Release(msgspec.Struct, frozen=True):
    """Give the seats of a lease back to the store; emitted exactly once for every granted claim."""

    backend_id: str
    nonce: str
    news: LeaseOver | None = None
    """What the other proxies hear of it; None: there are none."""


class Tell(msgspec.Struct, frozen=True):
    """Tell the other proxies what no claim or release tells them."""

    news: News


class Look(msgspec.Struct, frozen=True):
    """Look at a backend at the given time: a slot should have become idle and nobody else will tell."""

    backend_id: str
    at_s: float


class Load(msgspec.Struct, frozen=True):
    """Have an Ollama load a model, apart from any client's request. Answered by `events.LoadEnded`, exactly once."""

    backend_id: str
    model: str
    """Canonical name."""
    nonce: str
    """Unique per load."""
    runner: Runner
    keep_alive_s: float | None = None
    """Negative: for ever; None: the engine's default."""
    embeds: bool = False
    """The model only embeds."""
    unload: tuple[str, ...] = ()
    """Models (canonical names) to unload there first: the engine itself would choose others."""


class Unload(msgspec.Struct, frozen=True):
    """Have an Ollama unload a model as soon as nothing runs on it."""

    backend_id: str
    model: str


class WakeAt(msgspec.Struct, frozen=True):
    """Send `events.TimePassed` at this time. Only the earliest asked for counts."""

    at_s: float


class HealthChanged(msgspec.Struct, frozen=True):
    """For the record: a backend moved through its life."""

    backend_id: str
    before: Health
    after: Health
    because: str


class SlotChoice(msgspec.Struct, frozen=True):
    """For the record: from now on we name the slots of a backend, or leave it to the engine."""

    backend_id: str
    ours: bool
    because: str


Effect = (
    Claim | Dispatch | Reject | Cancel | Release | Tell | Look | Load | Unload | WakeAt | HealthChanged | SlotChoice
)
