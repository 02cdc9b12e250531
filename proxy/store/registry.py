"""What the fleet shares beside leases: backends as announced, draining flags, documents. Decides nothing."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import structlog

from proxy.store.documents import Document
from proxy.store.holdings import Holdings, Seen
from proxy.store.keys import (
    DRAINING_TTL_MS,
    PINS_MAX_BYTES,
    PINS_TTL_MS,
    POLICY_MAX_BYTES,
    POLICY_TTL_MS,
    Keys,
)
from proxy.store.link import Link
from proxy.store.records import FACTS_MAX_BYTES, BackendListing, BackendRecord, read_listing
from proxy.store.scripts import DRAIN, HEARTBEAT, LISTING
from proxy.store.trouble import StoreDown

log = structlog.get_logger("slotgate.store")


class Registry:
    """The part of this proxy in what is shared, to be told again when the store lost it."""

    def __init__(self, link: Link, keys: Keys, prefix: str, holdings: Holdings, times_ms: tuple[int, int]) -> None:
        """`times_ms`: of a lease and of a record."""
        self.records: dict[str, BackendRecord] = {}
        self._link = link
        self._keys = keys
        self._prefix = prefix
        self._holdings = holdings
        self._times_ms = times_ms
        self._listing: list[BackendListing] = []
        self._unreadable: set[str] = set()
        """Backends whose records cannot be read: said once."""
        self._drains: dict[str, bool] = {}
        self.policy = Document(link, keys.policy, "policy document", ttl_ms=POLICY_TTL_MS, max_bytes=POLICY_MAX_BYTES)
        self.pins = Document(link, keys.pins, "list of pins", ttl_ms=PINS_TTL_MS, max_bytes=PINS_MAX_BYTES)

    def record(self, backend_id: str) -> BackendRecord | None:
        """What this proxy announces of a backend."""
        return self.records.get(backend_id)

    def announce(self, records: Iterable[BackendRecord]) -> None:
        """Keep what is to be announced.

        Raises:
            ValueError: the facts of a backend are too large.
        """
        announced = {record.backend_id: record for record in records}
        for backend_id, record in announced.items():
            if (size := len(msgspec.json.encode(record.facts))) > FACTS_MAX_BYTES:
                raise ValueError(f"backend {backend_id}: facts of {size} bytes, at most {FACTS_MAX_BYTES}")
        self.records = announced

    def tell_again(self) -> None:
        """Flags that were set without the store, backends, and the fleet's documents as last seen."""
        for backend_id, draining in self._drains.items():
            keys, arguments = (self._keys.draining(backend_id),), (int(draining), DRAINING_TTL_MS, "set")
            self._link.post(DRAIN, keys, arguments, partial(self._drained, backend_id, draining))
        self.policy.tell_again()
        self.pins.tell_again()
        self.tell_backends()

    def tell_backends(self) -> None:
        """Announce all backends, and set draining flags again that the store lost."""
        for record in self.records.values():
            backend_id = record.backend_id
            facts = msgspec.json.encode(record.facts)
            arguments = (
                *(self._prefix, backend_id, record.epoch, record.running_limit, facts),
                *(*self._times_ms, DRAINING_TTL_MS),
            )
            keys = (*self._keys.of_backend(backend_id), self._keys.backends)
            self._link.post(HEARTBEAT, keys, arguments, partial(self._hear, backend_id))
        for backend_id, seen in self._holdings.seen.items():
            if seen.draining and seen.flag_missing:  # the store lost its data
                self._link.post(DRAIN, (self._keys.draining(backend_id),), (1, DRAINING_TTL_MS, "restore"))

    async def set_draining(self, backend_id: str, draining: bool) -> None:
        """Give a backend no new work (True) or work again (False)."""
        self._holdings.seen.setdefault(backend_id, Seen()).draining = draining
        self._drains[backend_id] = draining
        arguments = (int(draining), DRAINING_TTL_MS, "set")
        try:
            await self._link.run(DRAIN, (self._keys.draining(backend_id),), arguments)
        except StoreDown:
            return
        self._drained(backend_id, draining, 1)

    async def backends(self) -> list[BackendListing]:
        """All backends of the fleet, sorted by id. Without the store: as last known."""
        try:
            names: list[bytes] = await self._link.call(("ZRANGE", self._keys.backends, 0, -1))
            ids = [name.decode() for name in names]
            rows = await asyncio.gather(*(self._link.run(LISTING, self._keys.of_backend(name), ()) for name in ids))
        except StoreDown:
            return list(self._listing)
        self._listing = []
        for name, row in sorted(zip(ids, rows, strict=True)):
            try:
                self._listing += [read_listing(name, row)] if row else []
            except (msgspec.MsgspecError, ValueError, TypeError) as error:
                if name not in self._unreadable:
                    log.warning("record of a backend left out: it cannot be read", backend=name, error=str(error))
                self._unreadable.add(name)
        self._unreadable &= set(ids)
        return list(self._listing)

    def _drained(self, backend_id: str, draining: bool, _done: int) -> None:
        if self._drains.get(backend_id) is draining:
            del self._drains[backend_id]

    def _hear(self, backend_id: str, reply: list[Any]) -> None:
        self._holdings.hear(backend_id, asyncio.get_running_loop().time(), reply)
