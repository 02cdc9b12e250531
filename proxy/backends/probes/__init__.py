"""One file per engine: what it is asked, and how its answers become facts and reports. Probes never decide."""

from typing import Protocol

import msgspec

from proxy.dialects.facts import EngineFacts
from scheduler.domain import Engine, Operation, Residency, SlotState


class Description(msgspec.Struct, frozen=True):
    """What an engine is: changes seldom."""

    facts: EngineFacts
    capabilities: frozenset[Operation]
    slot_source: str
    """ "slots", "children" or "leases", see `scheduler.domain.Backend`."""
    warnings: tuple[str, ...] = ()
    """For `status`: what the operator should change at the engine."""
    epoch_hint: int = 0
    """Grows with every restart and is the same for all who ask; 0: the engine tells nothing of the kind."""
    slots_assumed: bool = False
    """The slots in `facts` were told neither by the engine nor by the operator."""


class Look(msgspec.Struct, frozen=True):
    """What an engine does now. Fields that it does not tell are None."""

    started: str = ""
    """As `EngineFacts.started`: another value means another process."""
    identity: str = ""
    """Another value means that the description must be read again (other slots, other models)."""
    busy_slots: int | None = None
    deferred: int | None = None
    slots: tuple[SlotState, ...] = ()
    residencies: tuple[Residency, ...] = ()
    working: bool = False
    """It says that it processes something."""
    progress: str = ""
    """Another value means that the work went on; empty: not told."""
    sleeping: bool = False
    alive_only: bool = False
    """It lives but told nothing: what was known before still holds."""
    outdated: bool = False
    """What its description says does not hold any more: it is the same engine, and is to be described again."""


CHILD_SPACING_S = 2.5
"""Least time from one answer of an Ollama's llama-server to the next question: with less, clients' departures would go
unnoticed."""


class Probe(Protocol):
    """One engine's questions. All raise `control.ProbeError` with one line for `status`."""

    engine: Engine
    describe_every_s: float
    """Models come and go (Ollama): read the description again this often; infinite: only when `identity` changes."""

    @property
    def spacing_s(self) -> float:
        """Least pause between looks that this engine bears, in seconds; 0: no more than `watcher.Cadence` says."""

    async def ready(self) -> bool:
        """Whether it says that it can take requests; False while it cannot be reached or loads. Never raises."""

    async def describe(self) -> Description:
        """Read what it is."""

    async def look(self) -> Look:
        """Read what it does now. At most once every two seconds, or `spacing_s`: see `watcher`."""

    async def close(self) -> None:
        """Close its connections."""
