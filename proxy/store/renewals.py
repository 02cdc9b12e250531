"""Names to the store what this proxy holds, asked for and gave back at each backend; hears what is lost."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from proxy.store.holdings import Holding, Holdings, Stand
from proxy.store.keys import Keys
from proxy.store.link import Link
from proxy.store.presence import Presence
from proxy.store.records import BackendRecord, Listener, LostLease
from proxy.store.scripts import RENEW

log = structlog.get_logger("slotgate.store")


class Renewals:
    """One script per backend; posted, never said again: by then it could name what is long released."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        prefix: str,
        holdings: Holdings,
        times_ms: tuple[int, int],
        *,
        record_of: Callable[[str], BackendRecord | None],
        presence: Presence,
        on_life: Callable[[], object],
        listener: Listener,
    ) -> None:
        """`times_ms`: of a lease and of a record; `record_of`: what this proxy announces of a backend; `on_life`: the
        store has another life than the one that was told everything.
        """
        self._link = link
        self._keys = keys
        self._prefix = prefix
        self._holdings = holdings
        self._times_ms = times_ms
        self._record_of = record_of
        self._presence = presence
        self._on_life = on_life
        self._listener = listener

    async def renew(self) -> list[LostLease]:
        """Renew everything in one write; returns what is gone."""
        losses: list[LostLease] = []
        answers = [self.post(backend_id, losses) for backend_id in self._holdings.backends()]
        await asyncio.gather(*(answer for answer in answers if answer is not None), return_exceptions=True)
        return losses

    def post_all(self, *, force: bool) -> None:
        """Tell all of it without waiting."""
        for backend_id in self._holdings.backends():
            self.post(backend_id, [], force=force)

    def post(self, backend_id: str, losses: list[LostLease], *, force: bool = False) -> "asyncio.Future[Any] | None":
        """Name all that we have or had at a backend; the answer adds to `losses`. `force`: what is held is registered
        even above the limit. What was lost before is not named then: its seat is another's by right, who may not have
        told the store yet.
        """
        held = self._holdings.of(backend_id).items()
        record = self._record_of(backend_id)
        limit = record.running_limit if record else max((holding.limit for _, holding in held), default=0)
        named: list[str | int | bytes] = []
        lost = {nonce for nonce, holding in held if force and holding.lost_told and holding.stand is Stand.HELD}
        for nonce, holding in held:
            if nonce in lost:
                continue
            stand = holding.stand.value
            if force and holding.stand is Stand.HELD:
                stand = "must"
            elif holding.stand is Stand.GONE and holding.over:
                stand = "over"
            slot = "" if holding.slot is None else holding.slot
            named += (nonce, holding.seats, holding.epoch, stand, slot, holding.news)
        gone = {nonce: holding for nonce, holding in held if holding.stand is Stand.GONE}
        over = [holding for holding in gone.values() if holding.over]
        keys, presence = self._keys, self._presence
        answer = self._link.post(
            RENEW,
            (*keys.of_backend(backend_id), keys.slots(backend_id), keys.log, keys.log_count, keys.proxies, keys.life),
            (self._prefix, limit, *self._times_ms, presence.life, presence.most(backend_id, limit), *named),
            partial(self._renewed, backend_id, gone, over, losses, lost),
        )
        if answer is not None:
            for holding in over:
                holding.over = False  # its news is told at most once
        return answer

    def _renewed(
        self,
        backend_id: str,
        gone: dict[str, Holding],
        over: list[Holding],
        losses: list[LostLease],
        unnamed: set[str],
        reply: list[Any],
    ) -> None:
        """Hear the answer to a renewal and tell the owner of each new loss."""
        if reply[0] < 0:  # nothing was done
            for holding in over:
                holding.over = True
            self._on_life()
            return
        for nonce, holding in gone.items():
            self._holdings.forget(backend_id, nonce, holding)
        self._holdings.hear(backend_id, asyncio.get_running_loop().time(), reply[:5])
        nonces = [nonce.decode() for nonce in reply[6:]]
        reasons = dict.fromkeys(nonces, "epoch") | dict.fromkeys(nonces[: reply[5]], "expired")
        for nonce, holding in list(self._holdings.of(backend_id).items()):
            if nonce in unnamed:
                continue
            if nonce not in reasons or holding.stand is not Stand.HELD:
                holding.lost_told = False
            elif not holding.lost_told:
                holding.lost_told = True
                losses.append(lost := LostLease(backend_id, nonce, reasons[nonce]))
                try:
                    self._listener.on_lost(lost)
                except Exception as error:
                    log.error("callback failed", callback="on_lost", error=repr(error), exc_info=error)
