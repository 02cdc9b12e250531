"""One model that an emulated Ollama holds loaded: a runner, its process, and what is counted of runners.

Must not know when one is loaded or unloaded.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from proxy.emulated.engine import SlotEngine
from proxy.emulated.ollama_runner import Shape
from proxy.emulated.ollama_store import StoredModel

FOR_EVER_S = 292 * 365.25 * 86400
"""What Go's longest duration comes to."""
_KV_BYTES_PER_TOKEN = 131_072
"""An 8B model in f16."""


class LoadCounts(msgspec.Struct):
    """What happened to runners so far."""

    loads: int = 0
    """Loads that ended well, reloads among them."""
    reloads: int = 0
    """Of these: the weights were there already, loaded in another way."""
    evictions: int = 0
    """Runners that gave way to another model."""
    expirations: int = 0
    """Runners that were unloaded because their time was up, or because a client said so."""
    aborted: int = 0
    """Loads that ended because the client that they were for had left."""
    failed: int = 0
    child_deaths: int = 0
    by_model: dict[str, dict[str, int]] = {}
    """The same by the name that made the runner be loaded."""

    def add(self, what: str, name: str) -> None:
        """Count one."""
        setattr(self, what, getattr(self, what) + 1)
        counts = self.by_model.setdefault(name, {})
        counts[what] = counts.get(what, 0) + 1


class Turn(msgspec.Struct, frozen=True):
    """A runner came or went."""

    at_s: float
    """On the machine's monotonic clock, which all its processes share."""
    event: Literal["loaded", "unloaded"]
    """From when on it could be used; from when on it could not."""
    model: str
    """The name that made it be loaded."""
    context: int


class Child(Protocol):
    """The process that serves one runner."""

    pid: int
    port: int

    def ready(self, engine: SlotEngine) -> None:
        """The model is loaded: it tells of these slots from now on."""

    def end(self) -> None:
        """Kill it."""


class Spawn(Protocol):
    """Starts the process of a runner; it calls `died` when that ends without being told to.

    Raises:
        OSError: it cannot be started.
    """

    def __call__(self, model: StoredModel, shape: Shape, died: Callable[[], None]) -> Child:
        """Start it."""


class Loaded:
    """One runner: a model in memory in one shape, with its own slots, and those who use it."""

    def __init__(self, model: StoredModel, shape: Shape, engine: SlotEngine, child: Child | None = None) -> None:
        self.model = model
        """By whose name it was loaded; /api/ps goes on telling that one."""
        self.shape = shape
        self.engine = engine
        self.child = child
        self.users = 0
        self.keep_alive_s = 0.0
        self.expires_ns = 0
        """0: no request has ended yet."""
        self.expelled = False
        """It has to go for another load."""
        self.dead = False
        """Its process has gone, which Ollama notices with the next request."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """The name that made it be loaded."""
        return self.model.tagged

    @property
    def blob(self) -> str:
        """What it is known by."""
        return self.model.blob

    @property
    def context(self) -> int:
        """Tokens per slot."""
        return self.shape.context

    @property
    def size_bytes(self) -> int:
        """Weights and KV."""
        return needed_bytes(self.model, self.shape)

    def view(self) -> dict[str, Any]:
        """What /emulated/state tells of it."""
        return {
            "name": self.name,
            "blob": self.blob,
            "context": self.context,
            "slots": self.shape.slots,
            "users": self.users,
            "busy": len(self.engine.running),
            "waiting": self.engine.waiting_jobs,
            "pid": self.child.pid if self.child is not None else None,
            "port": self.child.port if self.child is not None else None,
        }

    @property
    def told_expiry_ns(self) -> int:
        """When /api/ps says that it expires: as of the last request that ended."""
        return self.expires_ns or time.time_ns() + int(lifetime_s(self.keep_alive_s) * 1e9)


def needed_bytes(model: StoredModel, shape: Shape) -> int:
    """What a runner takes: weights and KV."""
    return model.facts.size_bytes + shape.context * shape.slots * _KV_BYTES_PER_TOKEN


def lifetime_s(keep_alive_s: float) -> float:
    """How long an idle runner stays, in seconds; a negative keep-alive is for ever."""
    return FOR_EVER_S if keep_alive_s < 0 else min(keep_alive_s, FOR_EVER_S)
