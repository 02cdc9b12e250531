"""The ledger of leases: who holds how many seats of which backend. Knows nothing of health, policies or requests' fate.

Beside our own it has those of the other proxies, as far as they told: they are only taken in (`hear`) and let go
(`unhear`), and owe the store nothing.

A lease lives like this; every arrow happens at most once, and whoever removes a granted lease owes the store one
Release:

    CLAIMING --granted--> HELD --ended--> gone (Release)
        |                   `--client left, attempt died--> ABANDONED --seen idle, grace over, restart--> gone (Release)
        |--refused--> gone (nothing to give back)
        `--nobody wants it any more--> UNWANTED --granted--> gone (Release), or --refused--> gone

An ABANDONED lease still counts: the engine works on until it notices. An UNWANTED one counts as long as the engine it
was meant for is the same, because the store may grant it any moment. `void` is the restart: nothing of the old engine
counts any more, and what the store has not answered yet waits as UNWANTED for its answer.
"""

from collections import deque
from collections.abc import Collection, Iterator
from enum import StrEnum
from math import inf

import msgspec

from scheduler.domain import Request

ENDED_KEPT = 512
"""Leases ended since the last report that are remembered per backend: at 200 requests/s more than one poll's worth."""


class LeaseState(StrEnum):
    """Where a lease stands in its life."""

    CLAIMING = "claiming"  # asked of the store; its seats are kept for it here
    HELD = "held"  # granted; its request is at the engine
    ABANDONED = "abandoned"  # its request is gone, the engine may still work on it
    UNWANTED = "unwanted"  # asked of the store, but nobody waits for the answer


class Work(msgspec.Struct):
    """What a lease was expected to cost when it was claimed. Times are seconds on the scheduler's scale."""

    tokens: int
    """Of the whole prompt."""
    reused_tokens: int
    prefill_ms: float
    """Computing the rest of it."""
    output_tokens: float
    slot: int | None
    """The slot that was named; None: the engine chose."""
    first_byte_s: float = inf

    def weighted_tokens(self, output_weight: float) -> float:
        """What it uses of its tenant's share."""
        return self.tokens - self.reused_tokens + output_weight * self.output_tokens


class Lease(msgspec.Struct, eq=False):
    """A request's claim on seats of one backend."""

    nonce: str
    request_id: str
    backend_id: str
    epoch: int
    """Of the backend, when claimed."""
    seats: int
    model: str | None
    claimed_s: float
    state: LeaseState = LeaseState.CLAIMING
    since_s: float = 0.0
    """When it entered its state."""
    granted_s: float = inf
    committed: bool = False
    """The first byte of the answer went to the client."""
    counted: bool = True
    """Its seats count as taken."""
    work: Work | None = None
    streams: bool = False
    """Its answer is streamed to its client: the first byte tells when its prompt was computed."""
    owner: str = ""
    """The proxy that holds it; empty: this one."""
    request: Request | None = None
    """What it was claimed for."""
    charged: float = 0.0
    """Weighted tokens that its tenant is charged for it, as the other proxies know."""
    stood: bool = False
    """It was told among all that we hold while its claim was on its way: a refusal must be told too."""


class Ended(msgspec.Struct, frozen=True):
    """A lease that was at the engine and is gone; needed to read reports that were asked for before."""

    granted_s: float
    """-inf: another proxy's, which we heard of some time after it was granted."""
    released_s: float
    seats: int


_NONE: dict[str, Lease] = {}


class Ledger:
    """All leases. Unknown nonces are answered with None, never with an error: events may come twice.

    Iterating and counting mean those of this proxy.
    """

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._elsewhere: dict[str, Lease] = {}
        self._by_backend: dict[str, dict[str, Lease]] = {}
        self._seats: dict[str, int] = {}
        self._seats_elsewhere: dict[str, int] = {}
        self._ended: dict[str, deque[Ended]] = {}
        self._forgotten_until_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def get(self, nonce: str) -> Lease | None:
        """A lease of this proxy, if it is still there."""
        return self._leases.get(nonce)

    def of(self, backend_id: str) -> list[Lease]:
        """Our own leases at a backend, oldest claim first."""
        return [lease for lease in self._by_backend.get(backend_id, _NONE).values() if not lease.owner]

    def at(self, backend_id: str) -> Collection[Lease]:
        """All leases at a backend, whoever holds them; not to be kept or changed."""
        return self._by_backend.get(backend_id, _NONE).values()

    def elsewhere(self) -> Collection[Lease]:
        """The leases of other proxies; not to be kept or changed."""
        return self._elsewhere.values()

    def seats(self, backend_id: str) -> int:
        """Seats taken at a backend by this proxy."""
        return self._seats.get(backend_id, 0)

    def seats_elsewhere(self, backend_id: str) -> int:
        """Seats at a backend that other proxies are known to hold, or that are kept for them."""
        return self._seats_elsewhere.get(backend_id, 0)

    def seats_by_model(self, backend_id: str) -> dict[str, int]:
        """Seats taken at a backend, whoever holds them, by the models that run on them."""
        seats: dict[str, int] = {}
        for lease in self.at(backend_id):
            if lease.counted and lease.model is not None:
                seats[lease.model] = seats.get(lease.model, 0) + lease.seats
        return seats

    def claim(self, lease: Lease) -> None:
        """Keep seats for a claim that is on its way to the store."""
        lease.since_s = lease.claimed_s
        self._leases[lease.nonce] = lease
        self._add(lease, self._seats)

    def hear(self, lease: Lease) -> None:
        """A lease of another proxy; CLAIMING: not claimed yet, but its turn."""
        self._elsewhere[lease.nonce] = lease
        self._add(lease, self._seats_elsewhere)

    def heard(self, nonce: str) -> Lease | None:
        """A lease of another proxy, if it is still there."""
        return self._elsewhere.get(nonce)

    def unhear(self, nonce: str, now_s: float, *, remember: bool = False) -> Lease | None:
        """A lease of another proxy is over; `remember` as for `release`. None: unknown."""
        lease = self._elsewhere.get(nonce)
        if lease is None:
            return None
        self._remove(lease)
        if remember and lease.granted_s != inf:
            self._remember(lease, now_s)
        return lease

    def grant(self, nonce: str, now_s: float) -> Lease | None:
        """The store said yes. None: unknown, or said before. An UNWANTED lease comes back as such, to be released."""
        lease = self._leases.get(nonce)
        if lease is None or lease.granted_s != inf:
            return None
        lease.granted_s = now_s
        if lease.state is LeaseState.CLAIMING:
            lease.state = LeaseState.HELD
            lease.since_s = now_s
        return lease

    def refuse(self, nonce: str) -> Lease | None:
        """The store said no: the lease is gone and nothing is owed. None: unknown, or granted before."""
        lease = self._leases.get(nonce)
        if lease is None or lease.granted_s != inf:
            return None
        self._remove(lease)
        return lease

    def disown(self, nonce: str, now_s: float) -> None:
        """Nobody waits for the store's answer any more."""
        lease = self._leases.get(nonce)
        if lease is not None and lease.state is LeaseState.CLAIMING:
            lease.state = LeaseState.UNWANTED
            lease.since_s = now_s

    def abandon(self, nonce: str, now_s: float) -> None:
        """Nobody waits for the engine's answer any more; the engine may not know yet."""
        lease = self._leases.get(nonce)
        if lease is not None and lease.state is LeaseState.HELD:
            lease.state = LeaseState.ABANDONED
            lease.since_s = now_s

    def release(self, nonce: str, now_s: float, *, remember: bool = False) -> Lease | None:
        """Remove a granted lease; the caller owes the store one Release. None: nothing to give back.

        `remember`: the backend reports its slots, and a report asked for before now may still show this lease.
        """
        lease = self._leases.get(nonce)
        if lease is None or lease.granted_s == inf:
            return None
        self._remove(lease)
        if remember and lease.state is not LeaseState.UNWANTED:
            self._remember(lease, now_s)
        return lease

    def void(self, backend_id: str, now_s: float) -> list[Lease]:
        """The engine is gone or another one: remove our granted leases there and return them, oldest first.

        Claims still on their way are disowned and no longer count. What others hold there they let go themselves.
        """
        granted = []
        for lease in self.of(backend_id):
            if lease.granted_s != inf:
                self._remove(lease)
                granted.append(lease)
                continue
            if lease.counted:
                lease.counted = False
                self._uncount(lease)
            if lease.state is LeaseState.CLAIMING:
                lease.state = LeaseState.UNWANTED
                lease.since_s = now_s
        self._ended.pop(backend_id, None)
        self._forgotten_until_s.pop(backend_id, None)
        return granted

    def ended_after(self, backend_id: str, asked_at_s: float) -> list[Ended] | None:
        """Leases that ended after a look began; None: too many have ended since to tell."""
        if asked_at_s < self._forgotten_until_s.get(backend_id, -inf):
            return None
        return [ended for ended in self._ended.get(backend_id, ()) if ended.released_s > asked_at_s]

    def forget_ended(self, backend_id: str, until_s: float) -> None:
        """Drop the memory of leases that ended by then: no report that is still accepted can show them."""
        ended = self._ended.get(backend_id)
        while ended and ended[0].released_s <= until_s:
            ended.popleft()
        if not ended:
            self._ended.pop(backend_id, None)

    def _remember(self, lease: Lease, now_s: float) -> None:
        ended = self._ended.setdefault(lease.backend_id, deque())
        ended.append(Ended(lease.granted_s if not lease.owner else -inf, now_s, lease.seats))
        if len(ended) > ENDED_KEPT:
            self._forgotten_until_s[lease.backend_id] = ended.popleft().released_s

    def _add(self, lease: Lease, seats: dict[str, int]) -> None:
        self._by_backend.setdefault(lease.backend_id, {})[lease.nonce] = lease
        seats[lease.backend_id] = seats.get(lease.backend_id, 0) + lease.seats

    def _remove(self, lease: Lease) -> None:
        del (self._elsewhere if lease.owner else self._leases)[lease.nonce]
        leases = self._by_backend[lease.backend_id]
        del leases[lease.nonce]
        if lease.counted:
            self._uncount(lease)
        if not leases:
            del self._by_backend[lease.backend_id]
            self._seats.pop(lease.backend_id, None)
            self._seats_elsewhere.pop(lease.backend_id, None)

    def _uncount(self, lease: Lease) -> None:
        (self._seats_elsewhere if lease.owner else self._seats)[lease.backend_id] -= lease.seats
