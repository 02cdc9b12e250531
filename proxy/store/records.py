"""What goes in and out of the store as structs. Knows no key, no script and no connection."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

FACTS_MAX_BYTES = 65_536
"""Bound on the facts of one backend as JSON: a few hundred model names fit, a mistake does not fill the store."""


class ClaimReply(msgspec.Struct, frozen=True):
    """The answer to a claim. Refused: it carries the truth to decide on again."""

    granted: bool
    seats_total: int
    """Seats leased at the backend by all proxies, this claim included if granted."""
    seats_mine: int
    """Those of them that this proxy holds."""
    draining: bool
    epoch: int | None
    """The backend's epoch in the store; a claim with an older one is refused. None: not known."""
    local: bool = False
    """Answered without the store, from this proxy's fair share."""
    slot_refused: bool = False
    """There was a seat, but not the slot that was named."""
    kept: bool = False
    """Others' seats are what is kept for them while the store is away; what they use of that they tell directly."""

    @property
    def seats_elsewhere(self) -> int:
        """Seats that other proxies hold."""
        return self.seats_total - self.seats_mine


class Occupancy(msgspec.Struct, frozen=True):
    """How full a backend is."""

    seats_total: int
    seats_mine: int
    draining: bool
    local: bool = False
    """Answered without the store: others' seats as last known."""
    kept: bool = False
    """As in `ClaimReply`."""

    @property
    def seats_elsewhere(self) -> int:
        """Seats that other proxies hold."""
        return self.seats_total - self.seats_mine


class BackendRecord(msgspec.Struct, frozen=True):
    """One backend as a proxy announces it to the others."""

    backend_id: str
    epoch: int
    """Comparable between proxies, grows with every restart of the engine."""
    running_limit: int
    facts: dict[str, Any] = {}
    """What another proxy needs to route to it (engine, slots, models, address), as JSON; at most FACTS_MAX_BYTES."""


class BackendListing(msgspec.Struct, frozen=True):
    """One backend of the fleet as the store knows it."""

    record: BackendRecord
    heartbeat_age_s: float
    """Since some proxy last announced it."""
    heartbeat_by: str
    draining: bool
    seats_total: int


class LostLease(msgspec.Struct, frozen=True):
    """A lease that is gone although its request still runs here."""

    backend_id: str
    nonce: str
    reason: str
    """`expired`: not renewed in time and the seat was taken by another; `epoch`: the engine was restarted."""


class Listener(Protocol):
    """Who is told what the store heard."""

    on_lost: Callable[[LostLease], None]
    on_news: Callable[[str, bytes], object]
    on_gap: Callable[[], None]
    on_proxies: Callable[[frozenset[str]], None]


def read_listing(backend_id: str, row: Sequence[Any]) -> BackendListing:
    """From what the script `listing` returns."""
    epoch, limit, facts, age_ms, by, draining, seats = row
    return BackendListing(
        record=BackendRecord(backend_id, epoch, limit, msgspec.json.decode(facts)),
        heartbeat_age_s=max(0, age_ms) / 1000,
        heartbeat_by=by.decode().removesuffix("/"),
        draining=draining == 1,
        seats_total=seats,
    )
