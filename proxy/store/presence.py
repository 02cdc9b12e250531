"""Who serves this fleet, and whether the store still knows what they told it. Knows no lease.

Theory of operation. Each proxy shows itself every third of a lease time and is gone when its sign ends. Changes are
also written into the log, so that others need not wait: `join` (I told the store everything I hold), `here` (the same,
as the answer to somebody's join), `left`. Each names the *life* of the store: whoever hears of another one than it
knows tells the store everything again.

After the store was away, or lost its data, or is another process, it may not know yet what others hold: they may have
decided alone meanwhile. So on return a proxy *settles*: it takes no more than its fair share of each backend until all
proxies that it knew have been heard after its own `join`, at the latest after `settle_s`. That is a matter of
milliseconds if all are well, so claims wait for it at first (`calm`). Until then those that it knew stay in the set of
proxies.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from proxy.store.holdings import fair_share

log = structlog.get_logger("slotgate.store")

LATER_S = 0.02
"""How long after the end of a sign to look for it."""


class Settling(msgspec.Struct):
    """The time after a return in which others may not have told the store yet what they hold."""

    owners: tuple[str, ...]
    """All proxies that split the seats, sorted; this one included."""
    awaited: set[str]
    elsewhere: dict[str, int]
    """Seats that others held at each backend before."""
    over: asyncio.Future[None]
    wait_until_s: float
    """Claims wait no longer than until then."""
    join_heard: bool = False
    """Our own join was read from the log: what follows was said after it."""


class Presence:
    """The proxies of the fleet as one of them sees them."""

    def __init__(
        self,
        owner: str,
        *,
        settle_s: float,
        calm_s: float,
        say: Callable[[str], None],
        on_life: Callable[[], None],
        on_proxies: Callable[[frozenset[str]], None],
    ) -> None:
        """`calm_s`: how long claims wait for others; `say` posts the script `presence` with a word for the log;
        `on_life`: the store lost its data.
        """
        self.owner = owner
        self.life = ""
        """The life of the store that we told the truth to."""
        self.lives = 0
        """How many were seen."""
        self.settling: Settling | None = None
        self._settle_s = settle_s
        self._calm_s = calm_s
        self._say = say
        self._on_life = on_life
        self._on_proxies = on_proxies
        self._present: frozenset[str] = frozenset()
        self._news: dict[str, tuple[bool, float]] = {}
        """Who came (True) or left as heard from the log, and when: an answer asked for before that knows less."""
        self._known: frozenset[str] = frozenset()
        """Known before the connection broke or the store lost its data, until `settle` or `undisturbed`."""
        self._told: frozenset[str] = frozenset()
        self._joins = 0
        self._settle_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._soon: str | None = None

    @property
    def proxies(self) -> tuple[str, ...]:
        """Owners that are there or expected back, sorted; ourselves included once the store was reached."""
        return tuple(sorted({*self._present, *self._known, *(self.settling.awaited if self.settling else ())}))

    @property
    def alone(self) -> bool:
        """Whether nobody else is known."""
        return not any(owner != self.owner for owner in self.proxies)

    def hear(self, reply: list[bytes | int], *, asked_s: float, joining: bool = False) -> None:
        """What the script `presence` said, when it was asked. `joining`: on a connection that is not in use yet."""
        life, ends_ms, *owners = reply
        name = life.decode() if isinstance(life, bytes) else ""
        before = self.proxies
        self._news = {owner: news for owner, news in self._news.items() if news[1] >= asked_s}
        present = {owner.decode() for owner in owners if isinstance(owner, bytes)}
        left = {owner for owner, (came, _) in self._news.items() if not came}
        self._present = frozenset((present | self._news.keys()) - left)
        if self._look_timer is not None:
            self._look_timer.cancel()
        loop = asyncio.get_running_loop()
        self._look_timer = loop.call_later(int(ends_ms) / 1000 + LATER_S, self._say, "")
        changed, known, self.life = name != self.life, self.life, name
        if changed or joining:
            self._known |= frozenset(before)
        if changed:
            self.lives += 1
        if joining:
            return  # `settle` or `undisturbed` follows
        if changed and known:
            self._on_life()
        self.undisturbed()

    def settle(self, elsewhere: dict[str, int]) -> None:
        """Begin to settle, with the seats that others were known to have at each backend."""
        others = {*self.proxies} - {self.owner}
        self.settled()
        if others:
            loop = asyncio.get_running_loop()
            self.settling = Settling(
                owners=tuple(sorted({*others, self.owner})),
                awaited=others,
                elsewhere=elsewhere,
                over=loop.create_future(),
                wait_until_s=loop.time() + self._calm_s,
            )
            self._settle_timer = loop.call_later(self._settle_s, self._settle_late)
        self.undisturbed()

    def undisturbed(self) -> None:
        """Those who are there are there: nobody from before is expected beyond those whom `settle` awaits."""
        self._known = frozenset()
        self._tell_change()

    def join(self) -> None:
        """Say that everything we hold was told; others answer."""
        self._joins += 1
        if self.settling is not None:
            self.settling.join_heard = False
        self._say(f"join {self._joins} {self.life}")

    def again(self) -> None:
        """Entries of the log were missed: ask again if somebody is awaited, and answer whoever may have asked."""
        if self.settling is not None:
            self.join()
        else:
            self._say(f"here 0 {self.life}")

    async def calm(self) -> None:
        """Return when the others were heard, or soon."""
        if (settling := self.settling) is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(settling.wait_until_s):
                await asyncio.shield(settling.over)

    def most(self, backend_id: str, limit: int) -> int:
        """Seats that we may have at a backend; -1: as many as there are."""
        if (settling := self.settling) is None:
            return -1
        rank = settling.owners.index(self.owner)
        share = fair_share(limit, len(settling.owners), rank, backend_id)
        return max(0, min(share, limit - settling.elsewhere.get(backend_id, 0)))

    def heard(self, owner: str, words: str) -> None:
        """An entry of the log about presence: `join N LIFE`, `here 0 LIFE` or `left 0 LIFE`."""
        word, number, life = words.split(" ", 2)
        settling = self.settling
        if owner == self.owner:
            if settling is not None and word == "join" and number == str(self._joins):
                settling.join_heard = True
            return
        came = word != "left"
        self._news[owner] = (came, asyncio.get_running_loop().time())
        self._present = self._present | {owner} if came else self._present - {owner}
        same = life == self.life  # else it has told another life, or we have
        if settling is not None and (word == "left" or (settling.join_heard and same)):
            settling.awaited.discard(owner)
            if not settling.awaited:
                self.settled()
        if not same:
            self._say_soon("")
        elif word == "join":
            self._say_soon("here")
        self._tell_change()

    def settled(self) -> None:
        """Everybody was heard, or the time is over."""
        if self._settle_timer is not None:
            self._settle_timer.cancel()
            self._settle_timer = None
        if self.settling is not None:
            self.settling.over.set_result(None)
            self.settling = None

    def close(self) -> None:
        """Look no more."""
        self.settled()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _settle_late(self) -> None:
        if self.settling is not None and self.settling.awaited:
            log.info("proxies not heard since the store is back", proxies=sorted(self.settling.awaited))
        self.settled()
        self._tell_change()

    def _say_soon(self, word: str) -> None:
        """Once for all that was heard in one turn."""
        if self._soon is None:
            asyncio.get_running_loop().call_soon(self._say_now)
        self._soon = word or self._soon or ""

    def _say_now(self) -> None:
        word, self._soon = self._soon, None
        self._say(f"here 0 {self.life}" if word else "")

    def _tell_change(self) -> None:
        owners = frozenset(self.proxies)
        if owners == self._told:
            return
        self._told = owners
        try:
            self._on_proxies(owners)
        except Exception as error:
            log.error("callback failed", callback="on_proxies", error=repr(error), exc_info=error)
