"""One proxy among the others at one store: what it must tell again when, and what it hears of them. Knows no lease."""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

import structlog

from proxy.store.fleet_scripts import LEAVE, PRESENCE
from proxy.store.keys import LOG_TTL_MS, POLICY_TTL_MS, Keys
from proxy.store.link import BACKOFF_MAX_S, Link, State
from proxy.store.log import Fields, LogReader
from proxy.store.presence import Presence
from proxy.store.records import Listener
from proxy.store.trouble import StoreDown
from proxy.store.wire import Wire
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

SETTLE_TTL_SHARE = 1 / 3
"""Others that do not read the log notice with their next renewal that the store lost its data."""


CALM_SHARE = 1 / 2
"""Of the call timeout: how long a claim waits for others to be heard. The rest is for the claim itself."""


class Fleet:
    """Presence and log of the fleet, tied to the link's coming and going."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        owner: str,
        *,
        lease_ms: int,
        call_timeout_s: float,
        elsewhere: Callable[[], dict[str, int]],
        tell_again: Callable[[], None],
        listener: Listener,
    ) -> None:
        """`elsewhere`: seats that others hold by backend; `tell_again` posts all that the store may have lost."""
        self.was_down = False
        """The store was given up since it was last told everything."""
        self._link = link
        self._keys = keys
        self._owner = owner
        self._lease_ms = lease_ms
        self._call_timeout_s = call_timeout_s
        self._elsewhere = elsewhere
        self._all_again = tell_again
        self._listener = listener
        link.join = self.join
        link.rejoined = self.rejoined
        self._told_run: str | None = None
        self._told_lives = 0
        self._following = False
        self._healing: asyncio.Task[None] | None = None
        self._closed = False
        self._tasks = Tasks()
        self.presence = Presence(
            owner,
            settle_s=lease_ms / 1000 * SETTLE_TTL_SHARE + 1.2 * BACKOFF_MAX_S,
            calm_s=call_timeout_s * CALM_SHARE,
            say=self._show,
            on_life=self._data_lost,
            on_proxies=self._proxies_changed,
        )
        self.reader = LogReader(
            link.places,
            (keys.log, keys.log_count),
            call_timeout_s=call_timeout_s,
            on_entry=self._read,
            on_gap=self._missed,
        )

    async def close(self) -> None:
        """Read no more and look no more."""
        self._closed = True
        self._following = False
        self.presence.close()
        await self._tasks.close()
        await self.reader.close()

    async def leave(self) -> bool:
        """Tell the others that this proxy goes. False: the store cannot be told."""
        keys = self._keys
        try:
            await self._link.run(LEAVE, (keys.proxies, keys.life, keys.log, keys.log_count), (self._owner,))
        except StoreDown:
            return False
        finally:
            self.presence.close()
        return True

    async def follow(self, after: int | None) -> None:
        """Begin to deliver the log."""
        self._following = True
        await self.reader.start(after)
        await self.look()  # who came before the log was read

    async def caught_up(self) -> None:
        """Return once what stands in the log now was delivered."""
        if not self._following or not self.reader.connected or self.presence.alone or self._link.state is State.DOWN:
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._call_timeout_s
        try:
            count: bytes | None = await self._link.call(("GET", self._keys.log_count))
        except StoreDown:
            return
        await self.reader.reached(int(count or 0), until_s - loop.time())

    async def join(self, wire: Wire) -> None:
        """First words on a new connection: show presence, which is also the proof that the store takes writes."""
        keys, arguments = self._presence_call("")
        asked_s = asyncio.get_running_loop().time()
        self.presence.hear(await wire.call(PRESENCE.command(keys, arguments)), asked_s=asked_s, joining=True)

    def rejoined(self) -> None:
        """The link is up in this turn: tell the truth before any other call."""
        run_id, lives = self._link.run_id, self.presence.lives
        first = self._told_run is None
        lost, other = lives != self._told_lives, run_id != self._told_run
        if not first and lost:
            log.warning("store came back empty, telling it again")
        elif not first and other:
            log.warning("store is another process (restarted or failed over), telling it again what may be missing")
        doubtful = not first and (self.was_down or lost or other)
        self._told_run, self.was_down = run_id, False
        self._tell_again(doubtful=doubtful)
        if doubtful and self._following:
            self.reader.doubt()

    def _data_lost(self) -> None:
        log.warning("store lost its data, telling it again")
        self._tell_again(doubtful=True)

    def _tell_again(self, *, doubtful: bool) -> None:
        """Everything, in order. `doubtful`: others may have to do the same."""
        self._told_lives = self.presence.lives
        if doubtful and self._following:
            self.presence.settle(self._elsewhere())
        else:
            self.presence.undisturbed()
        self._all_again()
        self.presence.join()

    async def heal(self, life: str) -> None:
        """A claim was refused because the store has another life than `life`: find out and tell it everything."""
        if self.presence.life != life:
            return  # told already
        if (healing := self.look_soon()) is not None:
            await asyncio.wait([healing])  # if that is cancelled because we close, the claim is not

    def look_soon(self) -> asyncio.Task[None] | None:
        """Look in the background, once at a time. None: closed."""
        if not self._closed and (self._healing is None or self._healing.done()):
            self._healing = self._tasks.start(self.look(), "store told again")
        return self._healing

    async def look(self) -> None:
        try:
            asked_s = asyncio.get_running_loop().time()
            self.presence.hear(await self._link.run(PRESENCE, *self._presence_call("")), asked_s=asked_s)
        except StoreDown:
            return

    def _show(self, words: str) -> None:
        asked_s = asyncio.get_running_loop().time()
        self._link.post(PRESENCE, *self._presence_call(words), partial(self.presence.hear, asked_s=asked_s))

    def _read(self, _number: int, fields: Fields) -> None:
        owner = fields[b"o"].decode()
        if (words := fields.get(b"x")) is not None:
            self.presence.heard(owner, words.decode())
        elif owner != self._owner:
            self._listener.on_news(owner, fields[b"d"])

    def _missed(self) -> None:
        if self._link.state is State.DOWN:
            return  # nobody can be asked now; on return everything counts as missed
        self.presence.again()
        self._listener.on_gap()

    def _proxies_changed(self, owners: frozenset[str]) -> None:
        self._listener.on_proxies(owners)

    def _presence_call(self, words: str) -> tuple[tuple[str, ...], tuple[str | int, ...]]:
        keys = self._keys
        named = (keys.proxies, keys.life, keys.log, keys.log_count, keys.policy)
        return named, (self._owner, self._lease_ms, secrets.token_hex(8), LOG_TTL_MS, POLICY_TTL_MS, words)
