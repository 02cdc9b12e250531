"""Takes seats and gives them back: at the store, or on this proxy's share without it. Knows no connection.

A claim is answered within one call timeout, whatever happens meanwhile: a connection that breaks and is replaced,
others that have to be heard first, a store that loses its data. Then it is decided alone.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import msgspec

from proxy.store.circle import Circle, NoCircle
from proxy.store.fleet import Fleet
from proxy.store.holdings import Holding, Holdings, Seen, Stand
from proxy.store.keys import Keys
from proxy.store.link import Link, State
from proxy.store.lua import Arguments
from proxy.store.records import ClaimReply, Occupancy
from proxy.store.renewals import Renewals
from proxy.store.scripts import CLAIM, OCCUPANCY, RELEASE
from proxy.store.telling import Telling
from proxy.store.trouble import StoreDown

LIVES_MAX = 3
"""How often the store may lose its data during one claim, before that is decided alone."""


class Leases:
    """Claims, releases and occupancy, as `Store` offers them."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        prefix: str,
        holdings: Holdings,
        times_ms: tuple[int, int],
        *,
        fleet: Fleet,
        renewals: Renewals,
        telling: Telling,
        call_timeout_s: float,
    ) -> None:
        """`times_ms`: of a lease and of a record."""
        self.down_since_s = float("-inf")
        """When the store was last given up."""
        self.circle: Circle = NoCircle()
        """Who is told without the store."""
        self._link = link
        self._keys = keys
        self._prefix = prefix
        self._holdings = holdings
        self._times_ms = times_ms
        self._fleet = fleet
        self._renewals = renewals
        self._telling = telling
        self._call_timeout_s = call_timeout_s

    async def claim(
        self, backend_id: str, nonce: str, seats: int, running_limit: int, epoch: int, slot: int | None, news: bytes
    ) -> ClaimReply:
        """Take seats. Never raises for trouble of the store."""
        holding = self._holdings.ask(backend_id, nonce, seats, epoch, running_limit, slot)
        until_s = self._now_s() + self._call_timeout_s
        presence = self._fleet.presence
        life, most = "", -1

        def arguments() -> Arguments:  # anew for each attempt: on another connection others may have to be heard first
            nonlocal life, most
            life, most = presence.life, presence.most(backend_id, running_limit)
            named = "" if slot is None else slot
            return (self._prefix, nonce, seats, running_limit, epoch, *self._times_ms, life, most, named, news)

        try:
            reply = await self._reply(self._claim_keys(backend_id), arguments, lambda: life, until_s)
            if reply is None and slot is not None and self._is_away():
                await self.circle.formed(until_s)
                if not self._is_away():  # that is why it need not be formed any more
                    reply = await self._reply(self._claim_keys(backend_id), arguments, lambda: life, until_s)
        except BaseException:  # cancelled: the caller never learns of a grant
            if holding.stand is Stand.ASKED:
                self.give_back(backend_id, nonce)
            raise
        if reply is None:
            return self._claim_alone(backend_id, nonce, holding, news)
        granted, total, mine, known = bool(reply[0]), reply[1], reply[2], reply[4]
        if granted:
            if not self._holdings.take(backend_id, nonce, holding):  # given back while it was asked for
                granted = False
                self._release_again(backend_id, nonce, holding)
        else:
            self._holdings.forget(backend_id, nonce, holding)
            mine = min(
                mine, self._holdings.seats_possible(backend_id)
            )  # a lease of ours that nobody here knows is taken
        seen = self._hear(backend_id, reply[1:])
        if not granted and most >= 0:  # what is kept for others counts as taken
            total = max(total, mine + reply[5] - most)
        return ClaimReply(granted, total, mine, seen.draining, known, slot_refused=bool(reply[6]))

    async def _reply(
        self, keys: tuple[str, ...], arguments: Callable[[], Arguments], life: Callable[[], str], until_s: float
    ) -> list[int] | None:
        """The store's answer to a claim; None: there is none in time. `life`: the one that was claimed of last."""
        with suppress(StoreDown, TimeoutError):
            for _ in range(LIVES_MAX):
                if self._fleet.presence.settling is not None:
                    await self._fleet.presence.calm()
                answer: list[int] = await self._link.run(CLAIM, keys, arguments, until_s=until_s)
                if answer[0] >= 0:
                    return answer
                async with asyncio.timeout_at(until_s):
                    await self._fleet.heal(life())
        return None

    async def release(self, backend_id: str, nonce: str, news: bytes) -> bool:
        """Give a lease back. False: there was none."""
        holding, known, arguments = self._gone(backend_id, nonce, news)
        try:
            freed: int = await self._link.run(RELEASE, self._release_keys(backend_id), arguments)
        except StoreDown:
            return known  # told when the store is back
        self._forget(backend_id, nonce, holding, freed)
        return freed > 0

    def give_back(self, backend_id: str, nonce: str, news: bytes = b"") -> None:
        """Release a lease without waiting for the answer."""
        holding, _, arguments = self._gone(backend_id, nonce, news)
        heard = partial(self._forget, backend_id, nonce, holding)
        self._link.post(RELEASE, self._release_keys(backend_id), arguments, heard)

    async def occupancy(self, backend_ids: Iterable[str]) -> dict[str, Occupancy]:
        """How full backends are, in one read."""
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

    def _gone(self, backend_id: str, nonce: str, news: bytes) -> tuple[Holding | None, bool, Arguments]:
        """Mark a lease as given back. Returns it, whether it was there, and what the script is to be told."""
        away = self._link.state is State.DOWN
        holding = self._holdings.of(backend_id).get(nonce)
        slot = "" if holding is None or holding.slot is None else holding.slot
        known = self._holdings.give_back(backend_id, nonce, self._now_s(), news, away=away)
        if away and known:
            self.circle.tell(news)
        return holding, known, (self._prefix, nonce, slot, news)

    def _forget(self, backend_id: str, nonce: str, holding: Holding | None, _freed: int) -> None:
        if holding is not None:
            self._holdings.forget(backend_id, nonce, holding)

    def _release_again(self, backend_id: str, nonce: str, holding: Holding) -> None:
        """The release may have gone out before the claim, or not at all."""
        if self._holdings.of(backend_id).get(nonce, holding) is not holding:
            return  # claimed anew: it is that claim's now
        slot = "" if holding.slot is None else holding.slot
        heard = partial(self._forget, backend_id, nonce, holding)
        arguments = (self._prefix, nonce, slot, holding.news)
        self._link.post(RELEASE, self._release_keys(backend_id), arguments, heard)

    def _claim_alone(self, backend_id: str, nonce: str, holding: Holding, news: bytes) -> ClaimReply:
        share_of, rank = self._place_among_proxies()
        was_held = holding.stand is Stand.HELD
        granted, mine, slot_refused = self._holdings.decide_alone(
            backend_id,
            nonce,
            holding,
            share_of=share_of,
            rank=rank,
            others_known=self._others_known(),
            now_s=self._now_s(),
            names=self.circle.whole,
        )
        if self._link.state is not State.DOWN:  # it only took too long, so nothing will be told on return
            self._renewals.post(backend_id, [])
            if granted and not was_held:
                self._telling.tell(news)
        elif granted and not was_held:
            self.circle.tell(news)
        seen = self._holdings.seen[backend_id]
        total = mine + self._elsewhere_alone(backend_id, seen)
        reply = ClaimReply(granted, total, mine, seen.draining, seen.epoch, local=True, slot_refused=slot_refused)
        return msgspec.structs.replace(reply, kept=True) if self._are_heard else reply

    def _occupancy_alone(self, backend_id: str) -> Occupancy:
        seen, mine = self._holdings.seen.get(backend_id, Seen()), self._holdings.seats(backend_id)
        total = mine + self._elsewhere_alone(backend_id, seen)
        return Occupancy(total, mine, seen.draining, local=True, kept=self._are_heard)

    def _elsewhere_alone(self, backend_id: str, seen: Seen) -> int:
        """Seats that count as the others' while they cannot be asked: all but our share, so that routing knows it."""
        others_known = self._others_known()
        limit = seen.limit_asked if seen.limit is None else seen.limit
        if self._link.state is not State.DOWN or limit is None:
            return seen.elsewhere if others_known else 0
        share_of, rank = self._place_among_proxies()
        return self._holdings.others_part(backend_id, limit, share_of=share_of, rank=rank, others_known=others_known)

    def _is_away(self) -> bool:
        return self._link.state is State.DOWN

    @property
    def _are_heard(self) -> bool:
        """Whether others tell directly what they use of what is kept for them."""
        return self._is_away() and (self.circle.whole or self.circle.forming)

    def _place_among_proxies(self) -> tuple[int, int]:
        """How many proxies share the seats while they cannot talk, and which of them this one is."""
        proxies, owner = self._fleet.presence.proxies, self._fleet.presence.owner
        return max(1, len(proxies)), proxies.index(owner) if owner in proxies else 0

    def _others_known(self) -> bool:
        """Whether what we heard of others' leases still holds: without the store they cannot renew them either."""
        if self._link.state is not State.DOWN:
            return True
        return self._now_s() - self.down_since_s < self._times_ms[0] / 1000

    def _hear(self, backend_id: str, reply: list[int]) -> Seen:
        return self._holdings.hear(backend_id, self._now_s(), reply)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _claim_keys(self, backend_id: str) -> tuple[str, ...]:
        keys = self._keys
        return (*keys.of_backend(backend_id), keys.slots(backend_id), keys.life, keys.log, keys.log_count, keys.proxies)

    def _release_keys(self, backend_id: str) -> tuple[str, ...]:
        keys = self._keys
        return (keys.leases(backend_id), keys.slots(backend_id), keys.log, keys.log_count)
