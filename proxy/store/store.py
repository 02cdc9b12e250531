"""The store as the rest of slotgate sees it: leases, registry, draining, news. Knows no engine and decides no routing.

Theory of operation. Every answer is the store's while it is up. `Holdings` mirrors what this proxy holds, which serves
three ends: renewing every third of a lease time, telling the store the whole truth after trouble (what we hold is
registered again by nonce, what we gave up is dropped, in one script per backend), and deciding claims on this proxy's
fair share while the store is gone. All calls go over one connection in order, so what is told on return stands before
any later claim. A claim whose answer is lost or whose caller is cancelled leaves at most a lease that nobody holds: it
is released at once where possible, by name with the next renewal otherwise, and expires in any case. Claims and
releases may be said again after a broken connection; a renewal never is: by then it could name what is long released.

A store that lost its data while it ran refuses the next claim as from another life (`Presence`); it is told everything,
then the claim is made again. News is read on a second connection (`LogReader`): in the order in which the store did
things, whoever asked for them.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable

import structlog

from proxy.store import picture
from proxy.store.circle import Circle
from proxy.store.documents import Document
from proxy.store.fleet import Fleet
from proxy.store.holdings import Holdings
from proxy.store.keys import Keys, record_ttl_ms
from proxy.store.leases import Leases
from proxy.store.link import Link, State
from proxy.store.locks import Locks
from proxy.store.places import Places
from proxy.store.records import BackendListing, BackendRecord, ClaimReply, LostLease, Occupancy
from proxy.store.registry import Registry
from proxy.store.renewals import Renewals
from proxy.store.telling import Telling
from proxy.store.trouble import Trouble
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
            ValueError: the fleet's name cannot be part of a key, or the URL is of no known form.
        """
        self.owner = f"{proxy_id}.{secrets.token_hex(4)}"
        self.on_change: Callable[[bool], None] = lambda _up: None
        """Called when the store goes (False) or is back and told the truth (True)."""
        self.on_lost: Callable[[LostLease], None] = lambda _lost: None
        """Called once for each lease that is gone although its request still runs here."""
        self.on_news: Callable[[str, bytes], object] = lambda _owner, _payload: None
        """Called with owner and payload for each entry that another proxy wrote into the log, in order."""
        self.on_gap: Callable[[], None] = lambda: None
        """Called when entries of the log were missed: what is known of other proxies is out of date."""
        self.on_proxies: Callable[[frozenset[str]], None] = lambda _owners: None
        """Called with all owners that are there (this one included) when they changed."""
        self._call_timeout_s = call_timeout_s
        self._lease_ms = max(1, round(lease_ttl_s * 1000))
        self._record_ms = record_ttl_ms(self._lease_ms)
        self._prefix = f"{self.owner}/"
        self._keys = keys = Keys(fleet)
        self._holdings = Holdings()
        self._tasks = Tasks()
        self._places = Places(url, timeout_s=max(1.0, call_timeout_s))
        self._link = Link(self._places, call_timeout_s=call_timeout_s)
        self._link.on_change = self._changed
        times_ms = (self._lease_ms, self._record_ms)
        self._registry = Registry(self._link, keys, self._prefix, self._holdings, times_ms)
        self._telling = Telling(self._link, keys, self.owner)
        self._fleet = Fleet(
            self._link,
            keys,
            self.owner,
            lease_ms=self._lease_ms,
            call_timeout_s=call_timeout_s,
            elsewhere=self._elsewhere,
            tell_again=self._tell_again,
            listener=self,
        )
        self._renewals = Renewals(
            self._link,
            keys,
            self._prefix,
            self._holdings,
            times_ms,
            record_of=self._registry.record,
            presence=self._fleet.presence,
            on_life=self._fleet.look_soon,
            listener=self,
        )
        self.locks = Locks(self._link, keys, self.owner, ttl_ms=self._lease_ms)
        """What only one proxy of the fleet may do at a time; never granted without the store."""
        self._leases = Leases(
            self._link,
            keys,
            self._prefix,
            self._holdings,
            times_ms,
            fleet=self._fleet,
            renewals=self._renewals,
            telling=self._telling,
            call_timeout_s=call_timeout_s,
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
        return self._fleet.presence.proxies

    async def start(self) -> None:
        """Connect and begin to renew. Returns after the first attempt, whether it succeeded or not."""
        await self._link.start()
        self._tasks.start(self._keep_alive(), "store renewals")

    async def close(self) -> None:
        """Give back all leases, leave the fleet and close the connections; waits at most one call timeout."""
        await self._tasks.close()
        await self.locks.close()
        await self._fleet.close()
        left = self._holdings.backends()
        for backend_id in left:
            for nonce in self._holdings.of(backend_id):
                self._holdings.give_back(backend_id, nonce, 0.0)
        self._renewals.post_all(force=False)
        if not await self._fleet.leave() and left:
            log.warning("store not told that this proxy leaves; its leases end by themselves", backends=left)
        await self._link.close()

    # --- leases -----------------------------------------------------------------------------------------------------

    async def claim(
        self,
        backend_id: str,
        nonce: str,
        seats: int,
        running_limit: int,
        epoch: int,
        slot: int | None = None,
        news: bytes = b"",
    ) -> ClaimReply:
        """Take `seats` at a backend if at most `running_limit` are then taken. Repeating a nonce takes nothing more.

        With a `slot`, only if no other lease is at it, or at one that nobody knows; else the answer is `slot_refused`.
        A grant of at least one seat writes `news` into the log in the same step, once.

        Never raises for trouble of the store: without it the answer comes from this proxy's fair share (`local`).
        """
        return await self._leases.claim(backend_id, nonce, seats, running_limit, epoch, slot, news)

    async def release(self, backend_id: str, nonce: str, news: bytes = b"") -> bool:
        """Give a lease back. False: there was none (unknown nonce, or it had expired). Never raises for trouble.

        `news` is written into the log if that freed something, or if the lease ended while the store was away; at most
        once.
        """
        return await self._leases.release(backend_id, nonce, news)

    def give_back(self, backend_id: str, nonce: str, news: bytes = b"") -> None:
        """Release a lease without waiting for the answer; if that is lost, the next renewal tells it again.

        Also undoes a claim whose answer nobody waits for: on the one connection it comes after the claim itself. `news`
        as for `release`.
        """
        self._leases.give_back(backend_id, nonce, news)

    async def renew(self) -> list[LostLease]:
        """Renew all that this proxy holds, in one write; returns what is gone. Runs by itself every third of a lease
        time. Without the store it does nothing: what is held is told when the store is back.

        An expired lease is taken again if there is room; else it is lost, and tried again with each renewal.
        """
        return await self._renewals.renew()

    async def occupancy(self, backend_ids: Iterable[str]) -> dict[str, Occupancy]:
        """How full backends are, in one read. Without the store: our own seats and others' as last known."""
        return await self._leases.occupancy(backend_ids)

    # --- registry ---------------------------------------------------------------------------------------------------

    async def heartbeat(self, records: Iterable[BackendRecord]) -> None:
        """Announce all backends of this proxy; replaces what it announced before. Repeated by itself with the renewals,
        so call it when something changed. A backend left out is forgotten by the store after its record's time.

        Raises:
            ValueError: the facts of a backend are too large.
        """
        self._registry.announce(records)
        await self._announce()

    async def set_draining(self, backend_id: str, draining: bool) -> None:
        """Give a backend no new work (True) or work again (False), by all proxies. Without the store it holds here at
        once, and everywhere when the store is back.
        """
        await self._registry.set_draining(backend_id, draining)

    async def backends(self) -> list[BackendListing]:
        """All backends of the fleet, sorted by id, whoever announced them. Without the store: as last known."""
        return await self._registry.backends()

    async def policy(self) -> tuple[int, bytes] | None:
        """Version and document of the fleet's policy; None: there is none.

        Raises:
            StoreDown: it cannot be read now.
        """
        return await self._registry.policy.read()

    async def set_policy(self, document: bytes, expected_version: int | None) -> int | None:
        """Replace the policy document if its version is the expected one (None: if there is none). Returns the new
        version; None: somebody else was faster.

        Raises:
            StoreDown: whether it was replaced is not known.
            ValueError: it is larger than 1 MiB.
        """
        return await self._registry.policy.replace(document, expected_version)

    @property
    def pins(self) -> Document:
        """The fleet's list of pinned models."""
        return self._registry.pins

    # --- news -------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The last entry of the log that was delivered."""
        return self._fleet.reader.position

    async def follow(self, after: int | None = None) -> None:
        """Begin to deliver the log, after a position (None: from its end). Returns after the first attempt to connect;
        if that failed, `on_gap` is called once the log is read.
        """
        await self._fleet.follow(after)

    async def caught_up(self) -> None:
        """Return once everything that stood in the log when this was called has been delivered; at the latest after a
        call timeout, at once without the store or without other proxies.
        """
        await self._fleet.caught_up()

    def tell(self, news: bytes) -> None:
        """Write into the log without waiting, in order with claims and releases. Without the store: to the circle."""
        if self._link.state is State.DOWN:
            self._leases.circle.tell(news)
        else:
            self._telling.tell(news)

    def tell_directly(self, circle: Circle) -> None:
        """Whom to tell while the store is away: all that would go into the log. Without that they hear nothing."""
        self._leases.circle = circle

    def doubt(self) -> None:
        """Another proxy says that the store is away, or there again: find out now."""
        if self._link.state is State.DOWN:
            self._link.hurry()
        else:
            self._fleet.look_soon()

    async def save_picture(self, payload: bytes, at: int) -> None:
        """Keep a picture that includes the log up to `at`, for an hour. More than 8 MiB, or trouble: logged,
        not kept.
        """
        if self.up:
            await picture.save(self._places, self._keys.picture, payload, at)

    async def load_picture(self) -> tuple[bytes, int] | None:
        """The picture kept last by any proxy, with the position that it includes."""
        return await picture.load(self._places, self._keys.picture) if self.up else None

    # --- coming back ------------------------------------------------------------------------------------------------

    def _tell_again(self) -> None:
        """Everything that the store may have lost, in order."""
        self._registry.tell_again()
        self._renewals.post_all(force=True)
        self.locks.tell_again()
        self._telling.again()

    def _elsewhere(self) -> dict[str, int]:
        return {name: seen.elsewhere for name, seen in self._holdings.seen.items()}

    def _changed(self, up: bool) -> None:
        if not up:
            self._leases.down_since_s = self._now_s()
            self._fleet.was_down = True
            self._telling.drop()
        try:
            self.on_change(up)
        except Exception as error:
            log.error("callback failed", callback="on_change", error=repr(error), exc_info=error)

    async def _keep_alive(self) -> None:
        period_s = self._lease_ms / 1000 / RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(period_s * (0.8 + 0.2 * secrets.randbelow(1000) / 1000))
            try:
                if self._link.state is State.UP:
                    await self._announce()
                    await self.renew()
            except Exception as error:  # whatever it is, leases must go on being renewed
                log.error("renewal failed", error=repr(error), exc_info=error)
            now_s, lease_s, record_s = self._now_s(), self._lease_ms / 1000, self._record_ms / 1000
            keep = self._registry.records
            self._holdings.prune(keep, seen_before_s=now_s - record_s, gone_before_s=now_s - 2 * lease_s)

    async def _announce(self) -> None:
        self._registry.tell_backends()
        await self._fleet.look()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
