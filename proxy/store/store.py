"""The store as the rest of slotgate sees it: leases, registry, draining. Knows no engine and decides no routing.

Theory of operation. Every answer is the store's while it is up. `Holdings` mirrors what this proxy holds, which serves
three ends: renewing every third of a lease time, telling the store the whole truth after trouble (what we hold is
registered again by nonce, what we gave up is dropped, in one script per backend), and deciding claims on this proxy's
fair share while the store is gone. All calls go over one connection in order, so what is told on return stands before
any later claim. A claim whose answer is lost or whose caller is cancelled leaves at most a lease that nobody holds: it
is released at once where possible, by name with the next renewal otherwise, and expires in any case. Claims and
releases may be said again after a broken connection; a renewal never is: by then it could name what is long released.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from proxy.store.holdings import Holdings, Seen, Stand
from proxy.store.keys import DRAINING_TTL_MS, Keys, record_ttl_ms
from proxy.store.link import Link, State
from proxy.store.records import (
    FACTS_MAX_BYTES,
    BackendListing,
    BackendRecord,
    ClaimReply,
    LostLease,
    Occupancy,
    read_listing,
)
from proxy.store.scripts import CLAIM, DRAIN, HEARTBEAT, LISTING, OCCUPANCY, PRESENCE, RELEASE, RENEW, Script
from proxy.store.trouble import StoreDown, Trouble
from proxy.store.wire import Wire
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

RENEWALS_PER_TTL = 3
"""A lease survives two lost renewals."""


class Store:
    """Leases and registry of one fleet, shared with all proxies that name the same store and fleet."""

    def __init__(
        self,
        url: str,
        *,
        fleet: str,
        proxy_id: str,
        call_timeout_s: float = 0.25,
        lease_ttl_s: float = 15.0,
    ) -> None:
        """Keep the settings; `start` connects.

        `proxy_id` names this proxy to operators; it may be the same after a restart, since a random part is added.

        Raises:
            ValueError: the fleet's name cannot be part of a key.
        """
        self.owner = f"{proxy_id}.{secrets.token_hex(4)}"
        self.on_change: Callable[[bool], None] = lambda _up: None
        """Called when the store goes (False) or is back and told the truth (True)."""
        self.on_lost: Callable[[LostLease], None] = lambda _lost: None
        """Called once for each lease that is gone although its request still runs here."""
        self._keys = Keys(fleet)
        self._prefix = f"{self.owner}/"
        self._lease_ms = max(1, round(lease_ttl_s * 1000))
        self._record_ms = record_ttl_ms(self._lease_ms)
        self._holdings = Holdings()
        self._records: dict[str, BackendRecord] = {}
        self._listing: list[BackendListing] = []
        self._drains: dict[str, bool] = {}
        self._proxies: tuple[str, ...] = ()
        self._down_since_s = float("-inf")
        self._tasks = Tasks()
        self._link = Link(
            url,
            call_timeout_s=call_timeout_s,
            join=self._join,
            rejoined=self._rejoined,
            on_change=self._changed,
        )

    @property
    def up(self) -> bool:
        """Whether calls reach the store; True also while a broken connection is being replaced."""
        return self._link.state is not State.DOWN

    @property
    def trouble(self) -> Trouble | None:
        """Why the store is not up."""
        return self._link.trouble

    @property
    def proxies(self) -> tuple[str, ...]:
        """Proxies of the fleet as last known, sorted."""
        return self._proxies

    async def start(self) -> None:
        """Connect and begin to renew. Returns after the first attempt, whether it succeeded or not.

        Raises:
            ValueError: the URL is not redis://, rediss:// or unix://.
        """
        await self._link.start()
        self._tasks.start(self._keep_alive(), "store renewals")

    async def close(self) -> None:
        """Give back all leases, leave the fleet and close the connection; waits at most one call timeout."""
        await self._tasks.close()
        left = self._holdings.backends()
        for backend_id in left:
            for nonce in self._holdings.of(backend_id):
                self._holdings.give_back(backend_id, nonce, 0.0)
            self._post_renewal(backend_id, [])
        try:
            await self._link.call(("ZREM", self._keys.proxies, self.owner))
        except StoreDown:
            if left:
                log.warning("store not told that this proxy leaves; its leases end by themselves", backends=left)
        await self._link.close()

    # --- leases -----------------------------------------------------------------------------------------------------

    async def claim(self, backend_id: str, nonce: str, seats: int, running_limit: int, epoch: int) -> ClaimReply:
        """Take `seats` at a backend if at most `running_limit` are then taken. Repeating a nonce takes nothing more.

        Never raises for trouble of the store: without it the answer comes from this proxy's fair share (`local`).
        """
        holding = self._holdings.ask(backend_id, nonce, seats, epoch, running_limit)
        try:
            reply: list[int] = await self._link.run(
                CLAIM,
                self._lease_keys(backend_id),
                (self._prefix, nonce, seats, running_limit, epoch, self._lease_ms, self._record_ms),
            )
        except StoreDown:
            return self._claim_alone(backend_id, nonce)
        except BaseException:  # cancelled: the caller never learns of a grant
            if holding.stand is Stand.ASKED:
                self.give_back(backend_id, nonce)
            raise
        granted, total, mine, known = bool(reply[0]), reply[1], reply[2], reply[4]
        if granted:
            holding.stand = Stand.HELD
        else:
            self._holdings.forget(backend_id, nonce)
            mine = min(
                mine, self._holdings.seats_possible(backend_id)
            )  # a lease of ours that nobody here knows is taken
        seen = self._hear(backend_id, reply[1:])
        return ClaimReply(granted, total, mine, seen.draining, known)

    async def release(self, backend_id: str, nonce: str) -> bool:
        """Give a lease back. False: there was none (unknown nonce, or it had expired). Never raises for trouble."""
        known = self._holdings.give_back(backend_id, nonce, self._now_s())
        try:
            freed: int = await self._link.run(RELEASE, (self._keys.leases(backend_id),), (self._prefix, nonce))
        except StoreDown:
            return known  # told when the store is back
        self._holdings.forget(backend_id, nonce)
        return freed > 0

    def give_back(self, backend_id: str, nonce: str) -> None:
        """Release a lease without waiting for the answer; if that is lost, the next renewal tells it again.

        Also undoes a claim whose answer nobody waits for: on the one connection it comes after the claim itself.
        """
        self._holdings.give_back(backend_id, nonce, self._now_s())
        keys, arguments = (self._keys.leases(backend_id),), (self._prefix, nonce)
        self._post(RELEASE, keys, arguments, lambda _freed: self._holdings.forget(backend_id, nonce))

    async def renew(self) -> list[LostLease]:
        """Renew all that this proxy holds, in one write; returns what is gone. Runs by itself every third of a lease
        time. Without the store it does nothing: what is held is told when the store is back.

        An expired lease is taken again if there is room; else it is lost, and tried again with each renewal.
        """
        losses: list[LostLease] = []
        answers = [self._post_renewal(backend_id, losses) for backend_id in self._holdings.backends()]
        await asyncio.gather(*(answer for answer in answers if answer is not None), return_exceptions=True)
        return losses

    async def occupancy(self, backend_ids: Iterable[str]) -> dict[str, Occupancy]:
        """How full backends are, in one read. Without the store: our own seats and others' as last known."""
        names = list(backend_ids)
        if not names:
            return {}
        keys = tuple(key for name in names for key in (self._keys.leases(name), self._keys.draining(name)))
        try:
            replies: list[list[int]] = await self._link.run(OCCUPANCY, keys, (self._prefix,))
        except StoreDown:
            return {name: self._occupancy_alone(name) for name in names}
        return {
            name: Occupancy(reply[0], reply[1], self._hear(name, reply).draining)
            for name, reply in zip(names, replies, strict=True)
        }

    # --- registry ---------------------------------------------------------------------------------------------------

    async def heartbeat(self, records: Iterable[BackendRecord]) -> None:
        """Announce all backends of this proxy; replaces what it announced before. Repeated by itself with the renewals,
        so call it when something changed. A backend left out is forgotten by the store after its record's time.

        Raises:
            ValueError: the facts of a backend are too large.
        """
        announced = {record.backend_id: record for record in records}
        for backend_id, record in announced.items():
            if (size := len(msgspec.json.encode(record.facts))) > FACTS_MAX_BYTES:
                raise ValueError(f"backend {backend_id}: facts of {size} bytes, at most {FACTS_MAX_BYTES}")
        self._records = announced
        await self._announce()

    async def set_draining(self, backend_id: str, draining: bool) -> None:
        """Give a backend no new work (True) or work again (False), by all proxies. Without the store it holds here at
        once, and everywhere when the store is back.
        """
        self._holdings.seen.setdefault(backend_id, Seen()).draining = draining
        self._drains[backend_id] = draining
        arguments = (int(draining), DRAINING_TTL_MS, "set")
        try:
            await self._link.run(DRAIN, (self._keys.draining(backend_id),), arguments)
        except StoreDown:
            return
        self._drained(backend_id, draining, 1)

    async def backends(self) -> list[BackendListing]:
        """All backends of the fleet, sorted by id, whoever announced them. Without the store: as last known."""
        try:
            names: list[bytes] = await self._link.call(("ZRANGE", self._keys.backends, 0, -1))
            ids = [name.decode() for name in names]
            rows = await asyncio.gather(*(self._link.run(LISTING, self._lease_keys(name), ()) for name in ids))
        except StoreDown:
            return list(self._listing)
        self._listing = [read_listing(name, row) for name, row in sorted(zip(ids, rows, strict=True)) if row]
        return list(self._listing)

    # --- coming back ------------------------------------------------------------------------------------------------

    async def _join(self, wire: Wire) -> None:
        """First words on a new connection: show presence, which is also the proof that the store takes writes."""
        self._heard_presence(await wire.call(PRESENCE.command((self._keys.proxies,), (self.owner, self._lease_ms))))

    def _rejoined(self) -> None:
        """The link is up in this turn: tell the truth before any other call."""
        for backend_id, draining in self._drains.items():
            keys, arguments = (self._keys.draining(backend_id),), (int(draining), DRAINING_TTL_MS, "set")
            self._post(DRAIN, keys, arguments, partial(self._drained, backend_id, draining))
        for record in self._records.values():
            self._post_heartbeat(record)
        for backend_id in self._holdings.backends():
            self._post_renewal(backend_id, [], force=True)

    def _drained(self, backend_id: str, draining: bool, _done: int) -> None:
        if self._drains.get(backend_id) is draining:
            del self._drains[backend_id]

    def _changed(self, up: bool) -> None:
        if not up:
            self._down_since_s = self._now_s()
        try:
            self.on_change(up)
        except Exception as error:
            log.error("callback failed", callback="on_change", error=repr(error), exc_info=error)

    async def _keep_alive(self) -> None:
        period_s = self._lease_ms / 1000 / RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(period_s * (0.8 + 0.2 * secrets.randbelow(1000) / 1000))
            if self._link.state is State.UP:
                await self._announce()
                await self.renew()
            now_s, lease_s, record_s = self._now_s(), self._lease_ms / 1000, self._record_ms / 1000
            self._holdings.prune(self._records, seen_before_s=now_s - record_s, gone_before_s=now_s - 2 * lease_s)

    async def _announce(self) -> None:
        for record in self._records.values():
            self._post_heartbeat(record)
        for backend_id, seen in self._holdings.seen.items():
            if seen.draining and seen.flag_missing:  # the store lost its data
                keys, arguments = (self._keys.draining(backend_id),), (1, DRAINING_TTL_MS, "restore")
                self._post(DRAIN, keys, arguments, lambda _done: None)
        try:
            self._heard_presence(await self._link.run(PRESENCE, (self._keys.proxies,), (self.owner, self._lease_ms)))
        except StoreDown:
            return

    def _heard_presence(self, reply: list[bytes]) -> None:
        self._proxies = tuple(sorted(owner.decode() for owner in reply))

    # --- single calls -----------------------------------------------------------------------------------------------

    def _post_renewal(
        self, backend_id: str, losses: list[LostLease], *, force: bool = False
    ) -> "asyncio.Future[Any] | None":
        """Name all that we have or had at a backend; the answer adds to `losses`. `force`: what is held is registered
        even above the limit, save what was lost before: its seat is another's by right.
        """
        held = self._holdings.of(backend_id).items()
        record = self._records.get(backend_id)
        limit = record.running_limit if record else max((holding.limit for _, holding in held), default=0)
        named: list[str | int] = []
        for nonce, holding in held:
            must = force and holding.stand is Stand.HELD and not holding.lost_told
            named += (nonce, holding.seats, holding.epoch, "must" if must else holding.stand.value)
        gone = [nonce for nonce, holding in held if holding.stand is Stand.GONE]
        arguments = (self._prefix, limit, self._lease_ms, self._record_ms, *named)
        return self._post(
            RENEW, self._lease_keys(backend_id), arguments, partial(self._renewed, backend_id, gone, losses)
        )

    def _renewed(self, backend_id: str, gone: list[str], losses: list[LostLease], reply: list[Any]) -> None:
        """Hear the answer to a renewal and tell the owner of each new loss."""
        for nonce in gone:
            self._holdings.forget(backend_id, nonce)
        self._hear(backend_id, reply[:5])
        nonces = [nonce.decode() for nonce in reply[6:]]
        reasons = dict.fromkeys(nonces, "epoch") | dict.fromkeys(nonces[: reply[5]], "expired")
        for nonce, holding in list(self._holdings.of(backend_id).items()):
            if nonce not in reasons or holding.stand is not Stand.HELD:
                holding.lost_told = False
            elif not holding.lost_told:
                holding.lost_told = True
                losses.append(lost := LostLease(backend_id, nonce, reasons[nonce]))
                try:
                    self.on_lost(lost)
                except Exception as error:
                    log.error("callback failed", callback="on_lost", error=repr(error), exc_info=error)

    def _post_heartbeat(self, record: BackendRecord) -> None:
        backend_id = record.backend_id
        arguments = (
            self._prefix,
            backend_id,
            record.epoch,
            record.running_limit,
            msgspec.json.encode(record.facts).decode(),
            self._lease_ms,
            self._record_ms,
            DRAINING_TTL_MS,
        )
        keys = (*self._lease_keys(backend_id), self._keys.backends)
        self._post(HEARTBEAT, keys, arguments, partial(self._hear, backend_id))

    def _post(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[str | int, ...], then: Callable[[Any], object]
    ) -> "asyncio.Future[Any] | None":
        """Run a script once, without waiting; `then` sees the answer if one comes. None: the store is not up."""

        def heard(answer: "asyncio.Future[Any]") -> None:
            if not answer.cancelled() and answer.exception() is None:
                then(answer.result())

        if (answer := self._link.post(script, keys, arguments)) is not None:
            answer.add_done_callback(heard)
        return answer

    def _claim_alone(self, backend_id: str, nonce: str) -> ClaimReply:
        granted, mine = self._holdings.decide_alone(
            backend_id,
            nonce,
            share_of=max(1, len(self._proxies)),
            rank=self._proxies.index(self.owner) if self.owner in self._proxies else 0,
            others_known=self._others_known(),
            now_s=self._now_s(),
        )
        seen = self._holdings.seen[backend_id]
        return ClaimReply(granted, mine + seen.elsewhere, mine, seen.draining, seen.epoch, local=True)

    def _occupancy_alone(self, backend_id: str) -> Occupancy:
        seen, mine = self._holdings.seen.get(backend_id, Seen()), self._holdings.seats(backend_id)
        return Occupancy(mine + (seen.elsewhere if self._others_known() else 0), mine, seen.draining, local=True)

    def _others_known(self) -> bool:
        """Whether what we heard of others' leases still holds: they cannot renew them either."""
        return self._now_s() - self._down_since_s < self._lease_ms / 1000

    def _hear(self, backend_id: str, reply: Sequence[int]) -> Seen:
        return self._holdings.hear(backend_id, self._now_s(), reply)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _lease_keys(self, backend_id: str) -> tuple[str, str, str]:
        return self._keys.leases(backend_id), self._keys.backend(backend_id), self._keys.draining(backend_id)
