"""Everything that can happen to the scheduler. Facts only; what to do about them is `core`'s business."""

import msgspec

from scheduler.domain import Backend, Failure, Measured, Outcome, Report, Request
from scheduler.health import Signal
from scheduler.memory import GpuMemory
from scheduler.news import News
from scheduler.picture import Picture
from scheduler.policy import Policy
from scheduler.runner import Runner


class BackendChanged(msgspec.Struct, frozen=True):
    """A backend joined, or its facts changed (slots, models, a new epoch after a restart)."""

    backend: Backend


class BackendLeft(msgspec.Struct, frozen=True):
    """A backend is gone for good; requests running there fail by themselves."""

    backend_id: str


class BackendSignalled(msgspec.Struct, frozen=True):
    """Something that moves a backend through its life: see `health.TRANSITIONS`."""

    backend_id: str
    signal: Signal


class BackendReported(msgspec.Struct, frozen=True):
    """A look at a backend came back. Older than what is known already: dropped."""

    report: Report


class GpuReported(msgspec.Struct, frozen=True):
    """A sample of the memory of a backend's card came back. None: the driver tells nothing of it (any more)."""

    backend_id: str
    memory: GpuMemory | None
    asked_at_s: float


class OccupancyReported(msgspec.Struct, frozen=True):
    """The store told how many seats other proxies hold at a backend."""

    backend_id: str
    seats_elsewhere: int
    asked_at_s: float
    draining: bool | None = None
    kept: bool = False
    """The store is away: so many seats are kept for other proxies, which tell us directly what they use of them."""


class RequestArrived(msgspec.Struct, frozen=True):
    """A client wants something."""

    request: Request


class ClaimGranted(msgspec.Struct, frozen=True):
    """The store granted a claim."""

    request_id: str
    nonce: str


class ClaimRefused(msgspec.Struct, frozen=True):
    """The store refused a claim, and told why: the truth to decide on again."""

    request_id: str
    nonce: str
    seats_elsewhere: int
    draining: bool = False
    epoch: int | None = None
    """The backend's epoch in the store, where it differs from ours."""
    slot_refused: bool = False
    """There is room, but the slot is another lease's, or somebody left the choice of a slot to the engine."""
    unsure: bool = False
    """The answer was lost: it may have been granted, and is given back in any case."""
    kept: bool = False
    """As in `OccupancyReported`."""


class AnswerStarted(msgspec.Struct, frozen=True):
    """The first byte of an engine's answer went to the client: from here on no retry."""

    request_id: str


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt ended before its first byte. The scheduler decides whether and where to retry."""

    request_id: str
    failure: Failure
    detail: str = ""


class RequestEnded(msgspec.Struct, frozen=True):
    """The exchange with the engine is over and its connection idle or closed; the engine is done with it."""

    request_id: str
    outcome: Outcome
    measured: Measured | None = None


class ClientLeft(msgspec.Struct, frozen=True):
    """The client closed its connection, waiting or running."""

    request_id: str


class DrainRequested(msgspec.Struct, frozen=True):
    """Finish what runs at a backend, give it nothing new."""

    backend_id: str


class UndrainRequested(msgspec.Struct, frozen=True):
    """Give a drained backend work again."""

    backend_id: str


class LoadEnded(msgspec.Struct, frozen=True):
    """A load that was asked for is over."""

    backend_id: str
    model: str
    nonce: str
    loaded: bool
    detail: str = ""
    """Why not."""
    took_ms: float | None = None
    """What it took the engine, where that was seen."""
    refused: bool = False
    """Another proxy loads there: nothing was done, and nothing failed."""


class LoadWanted(msgspec.Struct, frozen=True):
    """An operator wants a model loaded."""

    model: str
    backend_id: str | None = None
    """None: where it suits best."""
    runner: Runner = Runner()
    keep_alive_s: float | None = None


class UnloadWanted(msgspec.Struct, frozen=True):
    """An operator wants a model unloaded, once nothing runs on it."""

    model: str
    backend_id: str | None = None
    """None: everywhere."""


class Pin(msgspec.Struct, frozen=True):
    """A model that shall stay loaded."""

    model: str
    """Canonical name."""
    backend_id: str = ""
    """Empty: on one backend at least, whichever."""
    runner: Runner = Runner()


class PinsChanged(msgspec.Struct, frozen=True):
    """Other pins are in force from now on."""

    pins: tuple[Pin, ...]


class PolicyChanged(msgspec.Struct, frozen=True):
    """Another policy is in force from now on."""

    policy: Policy


class NewsHeard(msgspec.Struct, frozen=True):
    """Another proxy of the fleet told something. Backends in it are named, and their epochs counted, as here."""

    owner: str
    """The proxy that told it."""
    news: News


class ProxiesChanged(msgspec.Struct, frozen=True):
    """Who else is in the fleet. What is known of those that are not is dropped: their leases have expired."""

    owners: frozenset[str]
    """All other proxies that are present."""


class PictureHeard(msgspec.Struct, frozen=True):
    """What another proxy has learned, for one that starts. Before any traffic; backends may join before or after."""

    picture: Picture


class StoppingAnnounced(msgspec.Struct, frozen=True):
    """The proxy shuts down: nothing new is taken; what waits is still served until its deadline."""


class TimePassed(msgspec.Struct, frozen=True):
    """A time asked for by `effects.WakeAt` has come."""


Event = (
    BackendChanged
    | BackendLeft
    | BackendSignalled
    | BackendReported
    | GpuReported
    | OccupancyReported
    | RequestArrived
    | ClaimGranted
    | ClaimRefused
    | AnswerStarted
    | AttemptFailed
    | RequestEnded
    | ClientLeft
    | DrainRequested
    | UndrainRequested
    | LoadEnded
    | LoadWanted
    | UnloadWanted
    | PinsChanged
    | PolicyChanged
    | NewsHeard
    | ProxiesChanged
    | PictureHeard
    | StoppingAnnounced
    | TimePassed
)
