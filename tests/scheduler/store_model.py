"""A model of the store as schedulers see it: atomic claims, and one ordered log."""

import msgspec

from scheduler import effects, events
from scheduler.news import LeaseOver, News


class Kept(msgspec.Struct):
    """A lease as the store keeps it."""

    owner: str
    backend_id: str
    seats: int
    slot: int | None
    epoch: int


class StoreModel:
    """Atomic claims, and one ordered log."""

    def __init__(self) -> None:
        self.leases: dict[str, Kept] = {}
        self.log: list[tuple[str, News]] = []
        self.epochs: dict[str, int] = {}
        self.granted: set[str] = set()
        self.released: set[str] = set()

    def claim(self, owner: str, claim: effects.Claim) -> events.ClaimGranted | events.ClaimRefused:
        self.fence(claim.backend_id, claim.epoch)
        there = [kept for kept in self.leases.values() if kept.backend_id == claim.backend_id]
        taken = sum(kept.seats for kept in there)
        elsewhere = sum(kept.seats for kept in there if kept.owner != owner)
        fits = claim.epoch >= self.epochs[claim.backend_id] and taken + claim.seats <= claim.running_limit
        names = claim.slot is not None
        slot_refused = names and any(kept.slot in (None, claim.slot) for kept in there)
        if not fits or slot_refused:
            return events.ClaimRefused(
                claim.request_id, claim.nonce, elsewhere, epoch=self.epochs[claim.backend_id], slot_refused=fits
            )
        self.leases[claim.nonce] = Kept(owner, claim.backend_id, claim.seats, claim.slot, claim.epoch)
        self.granted.add(claim.nonce)
        if claim.news is not None:
            self.log.append((owner, claim.news))
        return events.ClaimGranted(claim.request_id, claim.nonce)

    def release(self, owner: str, nonce: str, news: LeaseOver | None) -> None:
        if self.leases.pop(nonce, None) is not None:
            assert nonce not in self.released, "each lease is released at most once"
            self.released.add(nonce)
            if news is not None:
                self.log.append((owner, news))

    def fence(self, backend_id: str, epoch: int) -> None:
        if epoch > self.epochs.get(backend_id, -1):
            self.epochs[backend_id] = epoch
            for nonce in [n for n, kept in self.leases.items() if kept.backend_id == backend_id]:
                del self.leases[nonce]

    def expire(self, owner: str) -> None:
        for nonce in [nonce for nonce, kept in self.leases.items() if kept.owner == owner]:
            del self.leases[nonce]

    def elsewhere(self, owner: str, backend_id: str) -> int:
        return sum(k.seats for k in self.leases.values() if k.owner != owner and k.backend_id == backend_id)
