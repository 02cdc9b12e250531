"""Named locks of a fleet: what only one proxy may do at a time. Owns their keeping; knows nothing of what is done.

Unlike a claim, a lock is never granted without the store: two holders would do harm that no share limits. It has an
end, and is renewed every third of its time. Whoever cannot renew it has lost it a little before it ends: another may
take it then, so what is done under it must have stopped by that time.
"""

import asyncio
import secrets
from collections.abc import Callable

import structlog

from proxy.store.keys import Keys
from proxy.store.link import Link
from proxy.store.lock_scripts import LOCK, UNLOCK
from proxy.store.trouble import StoreDown
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.store")

RENEWALS_PER_TTL = 3
LOST_BEFORE_END = 0.8
"""Of its time without a renewal, after which a lock counts as lost: the rest is for ending what is done under it."""


class Lock:
    """One lock that is held."""

    def __init__(self, name: str, nonce: str) -> None:
        self.name = name
        self.nonce = nonce
        self.is_lost = False
        """It is not held any more although nobody dropped it."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once when that happens."""
        self.kept_at_s = asyncio.get_running_loop().time()
        """When the last request was sent that was answered with yes: its time began no earlier."""
        self.keeping: asyncio.Task[None] | None = None


class Refused(Exception):
    """Another holds it; the message is what the holder wrote of itself."""


class Locks:
    """The locks that this proxy holds or wants."""

    def __init__(self, link: Link, keys: Keys, owner: str, *, ttl_ms: int) -> None:
        """`ttl_ms`: a holder that died is rid of its locks after so long."""
        self._link = link
        self._keys = keys
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._held: dict[str, tuple[Lock, str]] = {}
        """By nonce, with the note."""
        self._tasks = Tasks()

    async def take(self, name: str, note: str = "") -> Lock:
        """Take a lock; `note` is for others to read, in `Refused`.

        Raises:
            Refused: somebody else holds it.
            StoreDown: nobody can say.
        """
        lock = Lock(name, f"{self._owner}/{secrets.token_hex(8)}")
        try:
            granted, held_by = await self._ask(lock, note)
        except BaseException:
            self._forget(lock)  # it may have been granted, and nobody heard
            raise
        if not granted:
            raise Refused(held_by)
        self._held[lock.nonce] = (lock, note)
        lock.keeping = self._tasks.start(self._keep(lock, note), f"lock {name}")
        return lock

    async def drop(self, lock: Lock) -> None:
        """Give a lock back. Never raises for trouble of the store: it ends by itself."""
        if lock.keeping is not None:
            lock.keeping.cancel()
        self._forget(lock)

    def tell_again(self) -> None:
        """The store may have lost them: say all of them before anybody else takes one."""
        for lock, note in self._held.values():
            self._link.post(LOCK, (self._keys.lock(lock.name),), (lock.nonce, self._ttl_ms, note))

    async def close(self) -> None:
        """Drop all."""
        for lock, _ in list(self._held.values()):
            await self.drop(lock)
        await self._tasks.close()

    def _forget(self, lock: Lock) -> None:
        self._held.pop(lock.nonce, None)
        self._link.post(UNLOCK, (self._keys.lock(lock.name),), (lock.nonce,))

    async def _ask(self, lock: Lock, note: str) -> tuple[bool, str]:
        asked_at_s = asyncio.get_running_loop().time()
        granted, held_by = await self._link.run(LOCK, (self._keys.lock(lock.name),), (lock.nonce, self._ttl_ms, note))
        if granted:
            lock.kept_at_s = asked_at_s
        return granted == 1, held_by.decode(errors="replace")

    async def _keep(self, lock: Lock, note: str) -> None:
        """Renew until it is dropped or lost."""
        loop = asyncio.get_running_loop()
        ttl_s = self._ttl_ms / 1000
        while True:
            ends_at_s = lock.kept_at_s + ttl_s * LOST_BEFORE_END
            await asyncio.sleep(max(0.0, min(ttl_s / RENEWALS_PER_TTL, ends_at_s - loop.time())))
            reason = "not renewed in time: the store does not answer"
            try:
                granted, held_by = await self._ask(lock, note)
            except StoreDown:
                if loop.time() < ends_at_s:
                    continue
            else:
                if granted:
                    continue
                reason = f"taken by another: {held_by}"
            log.warning("lock lost", lock=lock.name, reason=reason)
            self._held.pop(lock.nonce, None)
            lock.is_lost = True
            lock.on_lost()
            return
