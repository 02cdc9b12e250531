"""What proxies of a fleet tell each other, so that each sees the whole fleet. Frozen structs; owns no behaviour.

Times in news are durations, since clocks of boxes differ. Backends are named as the store names them.
"""

import msgspec

from scheduler.domain import Backend, Dialect, Engine, Measured, Operation, Prompt, Report
from scheduler.health import Signal
from scheduler.memory import GpuMemory
from scheduler.runner import Runner


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A request as others need to know it: `domain.Request` with durations for times."""

    id: str
    operation: Operation
    dialect: Dialect
    model: str | None
    waited_s: float
    """Since it arrived."""
    may_wait_s: float
    """From now on."""
    stream: bool
    seats: int
    divisible: bool
    further: bool
    engines: tuple[Engine, ...]
    tenant: str
    priority: str
    prompt_bytes: int
    prompt: Prompt | None
    max_output_tokens: int | None
    can_name_slot: bool
    runner: Runner | None = None
    cloud: bool = False
    keep_alive_s: float | None = None


class TicketWaits(msgspec.Struct, frozen=True, tag="waits"):
    """A request waits at the proxy that tells it. Said again: the place in line stays."""

    request: Asked
    tried: tuple[str, ...] = ()
    """Backends that failed it."""
    stood_s: float = 0.0
    """Since it took its place in line."""


class TicketGone(msgspec.Struct, frozen=True, tag="gone"):
    """It waits no more: its client left, it was refused, or it is over for another reason than a lease."""

    request_id: str


class LeaseTaken(msgspec.Struct, frozen=True, tag="taken"):
    """The store granted a claim; its request does not wait any more. Written by the claim itself.

    Said again of a known lease: nothing but its slot may have changed, and only to None.
    """

    nonce: str
    backend_id: str
    epoch: int
    seats: int
    request: Asked
    slot: int | None
    """The slot that it named; None: the engine chooses."""
    tokens: int
    """Of the whole prompt, as estimated."""
    reused_tokens: int
    prefill_ms: float
    output_tokens: float
    """As estimated."""
    charged: float
    """Weighted tokens that its tenant is charged."""


class LeaseStarted(msgspec.Struct, frozen=True, tag="started"):
    """The first byte of an answer came."""

    nonce: str


class LeaseAbandoned(msgspec.Struct, frozen=True, tag="abandoned"):
    """Nobody waits for the answer any more; the engine may work on, so the seat stays taken."""

    nonce: str
    charge: float = 0.0
    """See `LeaseOver`."""


class LeaseOver(msgspec.Struct, frozen=True, tag="over"):
    """A lease was given back. Written by the release itself."""

    nonce: str
    measured: Measured | None = None
    """What a complete answer cost; None: there was none, and what its slot holds is not known."""
    charge: float = 0.0
    """Weighted tokens that its tenant is charged on top of those that were told; negative: they are given back."""


class LoadBegun(msgspec.Struct, frozen=True, tag="load"):
    """A proxy has a backend load a model, at once or as soon as nothing runs any more on what it takes the place of.

    Told when that is decided, so that nobody sends anything there that would be in its way.
    """

    backend_id: str
    epoch: int
    model: str
    """Canonical name."""
    runner: Runner
    nonce: str
    unload: tuple[str, ...] = ()
    """Models (canonical names) that it takes the place of."""
    began_s_ago: float = 0.0


class LoadOver(msgspec.Struct, frozen=True, tag="load-over"):
    """A load is over, or was given up before it began."""

    backend_id: str
    nonce: str
    loaded: bool
    detail: str = ""
    """Why not, in the engine's words; empty: it was given up, nothing failed."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A proxy knows nothing (any more) of the others: each answers with its `Standing`.

    Who missed news may have missed a Hello, and so tells its own `Standing` too.
    """


class Standing(msgspec.Struct, frozen=True, tag="standing"):
    """All leases and tickets of the proxy that tells it, instead of what was known of them."""

    leases: tuple[LeaseTaken, ...] = ()
    """Claims on their way to the store are among them; `LeaseOver` follows for one that is refused."""
    started: tuple[str, ...] = ()
    """Nonces of those whose first byte came."""
    abandoned: tuple[str, ...] = ()
    tickets: tuple[TicketWaits, ...] = ()
    loads: tuple[LoadBegun, ...] = ()


class BackendTold(msgspec.Struct, frozen=True, tag="backend"):
    """Facts of a backend from the proxy that looks after it. `backend.id` is the store's name."""

    backend: Backend


class BackendMoved(msgspec.Struct, frozen=True, tag="moved"):
    """A signal moved a backend through its life, as seen by the proxy that looks after it."""

    backend_id: str
    epoch: int
    signal: Signal


class BackendSeen(msgspec.Struct, frozen=True, tag="seen"):
    """A look at a backend by the proxy that looks after it."""

    report: Report
    """Its `asked_at_s` is by the teller's clock: it says how long one news took compared with another, nothing else."""
    began_s_ago: float


class BackendGone(msgspec.Struct, frozen=True, tag="backend-gone"):
    """The proxy that tells it looks after this backend no more."""

    backend_id: str


class MemorySeen(msgspec.Struct, frozen=True, tag="memory"):
    """A sample of the memory of a backend's card; None: the driver tells nothing of it (any more)."""

    backend_id: str
    memory: GpuMemory | None
    """Its `sampled_s` is 0; the time is beside it."""
    began_s_ago: float


class LookWanted(msgspec.Struct, frozen=True, tag="look"):
    """Whoever looks after this backend shall look at it."""

    backend_id: str
    in_s: float


class ListWanted(msgspec.Struct, frozen=True, tag="list"):
    """Whoever looks after this backend shall read its list of models at once: somebody changed what is on its disk."""

    backend_id: str


class ReachedAt(msgspec.Struct, frozen=True, tag="reached"):
    """Where other proxies of its box reach the one that tells it while the store is away."""

    box: str
    """The box's id: elsewhere the path is of no use."""
    path: str
    """Of its socket."""


class PolicySet(msgspec.Struct, frozen=True, tag="policy"):
    """The store has another policy document."""

    version: int


class PinsSet(msgspec.Struct, frozen=True, tag="pins"):
    """The store has another list of pinned models."""

    version: int


News = (
    TicketWaits
    | TicketGone
    | LeaseTaken
    | LeaseStarted
    | LeaseAbandoned
    | LeaseOver
    | LoadBegun
    | LoadOver
    | Hello
    | Standing
    | BackendTold
    | BackendMoved
    | BackendSeen
    | BackendGone
    | MemorySeen
    | LookWanted
    | ListWanted
    | ReachedAt
    | PolicySet
    | PinsSet
)
