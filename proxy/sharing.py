"""What this proxy tells the others of its fleet, and hears of them: news in the store's log; pictures to start from.

Theory of operation. Every write to the log that belongs to a lease is part of the claim or the release itself; all else
is told in batches, one per turn of the event loop, over the same connection and so in order. News name backends by
the store's names, which are the same for all; here they become this proxy's own. A proxy that starts, or that missed
something, says Hello, and each other one answers with all it has. Mirrors and learned rates are more than that can
carry: the first of the proxies (by name) saves them as a picture every few seconds, which a starting proxy takes in
and brings up to date from the log.

While the store is away, what would go into the log goes to the other proxies of this box directly (`direct.circle`).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from proxy.backends.remote import BackendNews
from proxy.direct.circle import Circle
from proxy.store import Store
from proxy.tasks import Tasks
from scheduler import events
from scheduler.core import Scheduler
from scheduler.learning import keep
from scheduler.news import (
    BackendGone,
    BackendMoved,
    BackendSeen,
    BackendTold,
    Hello,
    LeaseTaken,
    ListWanted,
    LoadBegun,
    LoadOver,
    LookWanted,
    MemorySeen,
    News,
    PinsSet,
    PolicySet,
    ReachedAt,
    Standing,
    TicketWaits,
)
from scheduler.picture import Picture

log = structlog.get_logger("slotgate.sharing")

PICTURE_EVERY_S = 5.0
LOADS_KEPT = 1000
"""The latest, many more than a fleet has backends: those of proxies that died are never over."""
WARM_WITHIN_S = 2.0
"""A starting proxy waits so long for the others to say what they have."""
CAUGHT_UP_S = 0.25
"""Longest wait for what others told directly: as for the store, by default."""

OF_BACKENDS = (BackendTold, BackendMoved, BackendSeen, BackendGone, MemorySeen, LookWanted, ListWanted)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[News])
_pictures = msgspec.msgpack.Decoder(Picture)


class Names(Protocol):
    """Both names of every backend, and both counts of its restarts."""

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend of ours."""
        ...

    def local_id(self, store_id: str) -> str | None:
        """Our name of a backend; None: it is not known here."""
        ...

    def store_epoch(self, backend_id: str) -> int:
        """The epoch by which the store fences; 0: it does not, each proxy counts for itself."""
        ...

    def local_epoch(self, backend_id: str) -> int:
        """The epoch as counted here."""
        ...


class Backends(Protocol):
    """Who wants the news that are about backends themselves."""

    def hear(self, owner: str, news: BackendNews | LookWanted | ListWanted | Hello) -> None:
        """Of a backend that the owner looks after, or wants to be told of ours."""
        ...


class Sharing:
    """One proxy's side of the log."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        names: Names,
        feed: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        circle: Circle | None = None,
        box_id: str = "",
    ) -> None:
        """`circle`: tells others of this box directly, if it was started; `box_id`: what tells that it is this box."""
        self.on_circle: Callable[[], None] = lambda: None
        """Called when it is another than before of whom we hear while the store is away."""
        self.backends: Backends | None = None
        """Told of backends that others look after."""
        self.on_policy: Callable[[int], None] = lambda _version: None
        """Called with the version of a policy that another proxy set."""
        self.on_pins: Callable[[int], None] = lambda _version: None
        """Called with the version of a list of pins that another proxy set."""
        self.on_loaded: Callable[[str, str], None] = lambda _backend_id, _model: None
        """Called with backend and model when another proxy had a model loaded without saying a context."""
        self._by_default: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Backend and model of such loads that are under way elsewhere, by nonce."""
        self._store = store
        self._scheduler = scheduler
        self._names = names
        self._feed = feed
        self._clock = clock
        self._circle = circle or Circle("", store.owner)
        self._box_id = box_id
        self._outbox: list[News] = []
        self._present: frozenset[str] = frozenset()
        self._standing_heard: set[str] = set()
        self._strange: set[str] = set()
        """Proxies whose news are not understood: said once of each."""
        self._heard_one = asyncio.Event()
        self._is_started = False
        self._tasks = Tasks()
        store.on_news = self.hear
        store.on_gap = self._missed
        store.on_proxies = self._proxies_changed
        self._circle.hearer = self
        store.tell_directly(self._circle)

    async def start(self) -> None:
        """Take in what the others know; returns when that is done, or took too long."""
        self._proxies_changed(frozenset(self._store.proxies))
        await self._restore()
        self._circle.set_away(not self._store.up)
        self.tell(Hello())
        self._tell_address()
        others = self._others()
        try:
            async with asyncio.timeout(WARM_WITHIN_S):
                while not self._others() <= self._standing_heard:
                    self._heard_one.clear()
                    await self._heard_one.wait()
        except TimeoutError:
            silent = sorted(self._others() - self._standing_heard)
            log.warning("started without word from other proxies", proxies=silent)
        else:
            log.info("picture of the fleet is warm", proxies=len(others))
        self._is_started = True
        self._tasks.start(self._keep_picture(), "pictures of the fleet")

    async def close(self) -> None:
        """Save a last picture; say nothing more."""
        await self._tasks.close()
        self._flush()
        if self._is_started:  # else it would be a picture of nothing
            await self._save()

    def store_changed(self, up: bool) -> None:
        """Without the store those are heard of no more who do not tell us directly: what they had is over sooner than
        it could be told. Their seats count as taken by the store's own reckoning meanwhile.
        """
        self._circle.set_away(not up)
        self._feed_present()

    def tell(self, news: News) -> None:
        """Tell the others, in a moment."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(outward(news, self._names))

    def enclosed(self, news: News | None) -> bytes:
        """News that a claim or a release carries; empty: nobody wants to hear it."""
        return b"" if news is None else _encoder.encode([outward(news, self._names)])

    async def caught_up(self) -> None:
        """Wait until all that others told before now was heard."""
        if self._store.up:
            await self._store.caught_up()
        else:
            await self._circle.caught_up(CAUGHT_UP_S)

    def _flush(self) -> None:
        if self._outbox:
            payload = _encoder.encode(self._outbox)
            self._outbox = []
            self._store.tell(payload)

    # Without the store

    def standing(self) -> bytes:
        """All that we have, for one that hears us directly from now on."""
        return self.enclosed(self._scheduler.standing(self._clock()))

    def circle_changed(self) -> None:
        """Others are heard directly, or no more."""
        if not self._store.up:
            self._feed_present()
        self.on_circle()

    def store_doubted(self, *, away: bool) -> None:
        """Another proxy lost the store, or has it again."""
        if away is self._store.up:
            self._store.doubt()

    def _tell_address(self) -> None:
        """By itself: a proxy of an older version understands nothing of what comes with it."""
        if self._circle.path is not None:
            self._store.tell(_encoder.encode([ReachedAt(self._box_id, self._circle.path)]))

    # What is heard

    def hear(self, owner: str, payload: bytes) -> bool:
        """News of another proxy. False: not understood."""
        try:
            told = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            if owner not in self._strange:
                self._strange.add(owner)
                text = "news not understood; what this proxy tells is not known here"
                log.warning(text, proxy=owner, error=str(error), fix="run the same version of slotgate everywhere")
            return False
        for news in told:
            try:
                self._take(owner, news)
            except Exception:
                log.exception("news not taken in", proxy=owner, news=type(news).__name__)
        return True

    def _take(self, owner: str, news: News) -> None:
        if isinstance(news, PolicySet):
            self.on_policy(news.version)
            return
        if isinstance(news, PinsSet):
            self.on_pins(news.version)
            return
        if isinstance(news, ReachedAt):
            if news.box == self._box_id and self._circle.path is not None:
                self._circle.reach(owner, news.path)
            return
        if isinstance(news, Hello):
            self._tell_address()
        if isinstance(news, (*OF_BACKENDS, Hello)) and self.backends is not None:
            self.backends.hear(owner, news)
        if not isinstance(news, OF_BACKENDS) and (known := inward(news, self._names)) is not None:
            self._feed(events.NewsHeard(owner, known))
            self._note_load(known)
        if isinstance(news, Standing):
            self._standing_heard.add(owner)
            self._heard_one.set()

    def _note_load(self, news: News) -> None:
        """What the engine gives where nothing is said is learned by whoever looks after the backend."""
        if isinstance(news, LoadBegun) and news.runner.num_ctx is None:
            keep(self._by_default, news.nonce, (news.backend_id, news.model), LOADS_KEPT)
        elif isinstance(news, LoadOver) and (load := self._by_default.pop(news.nonce, None)) and news.loaded:
            self.on_loaded(*load)

    def _missed(self) -> None:
        self._standing_heard.clear()
        self._by_default.clear()
        self.tell(Hello())
        self.tell(self._scheduler.standing(self._clock()))
        self._tell_address()

    def _proxies_changed(self, owners: frozenset[str]) -> None:
        if self._present <= owners:
            self._tell_present(owners)
        else:
            self._tasks.start(self._lose(), "proxies that left")

    async def _lose(self) -> None:
        """Words of those that left, which stand in the log already, come first."""
        await self._store.caught_up()
        self._tell_present(frozenset(self._store.proxies))

    def _tell_present(self, owners: frozenset[str]) -> None:
        self._present = owners
        self._circle.know(owners)
        self._feed_present()
        self._standing_heard &= owners
        self._strange &= owners
        self._heard_one.set()

    def _feed_present(self) -> None:
        present = self._present - {self._store.owner} if self._store.up else self._circle.kept
        self._feed(events.ProxiesChanged(present))

    def _others(self) -> set[str]:
        return set(self._store.proxies) - {self._store.owner}

    # Pictures

    async def _restore(self) -> None:
        found = await self._store.load_picture()
        if found is None:
            await self._store.follow(None)
            return
        payload, position = found
        try:
            picture = _pictures.decode(payload)
        except msgspec.DecodeError as error:
            log.warning("saved picture of the fleet not understood, starting without", error=str(error))
        else:
            self._feed(events.PictureHeard(picture_inward(picture, self._names)))
        await self._store.follow(position)

    async def _keep_picture(self) -> None:
        while True:
            await asyncio.sleep(PICTURE_EVERY_S)
            if min(self._store.proxies, default="") == self._store.owner:
                try:
                    await self._save()
                except Exception:
                    log.exception("picture of the fleet not saved")

    async def _save(self) -> None:
        position = self._store.position
        picture = picture_outward(self._scheduler.picture(self._clock()), self._names)
        await self._store.save_picture(_encoder.encode(picture), position)


def outward(news: News, names: Names) -> News:
    """News with the store's names of backends instead of ours."""
    match news:
        case LeaseTaken() | LoadBegun():
            name = news.backend_id
            return msgspec.structs.replace(news, backend_id=names.store_id(name), epoch=names.store_epoch(name))
        case LoadOver():
            return msgspec.structs.replace(news, backend_id=names.store_id(news.backend_id))
        case TicketWaits() if news.tried:
            return msgspec.structs.replace(news, tried=tuple(map(names.store_id, news.tried)))
        case Standing():
            return msgspec.structs.replace(
                news,
                leases=tuple([outward(each, names) for each in news.leases]),
                tickets=tuple([outward(each, names) for each in news.tickets]),
                loads=tuple([outward(each, names) for each in news.loads]),
            )
        case _:
            return news


def inward(news: News, names: Names) -> News | None:
    """News with our names of backends; None: it is about one that is not known here."""
    match news:
        case LeaseTaken() | LoadBegun():
            name = names.local_id(news.backend_id)
            if name is None:
                return None
            return msgspec.structs.replace(news, backend_id=name, epoch=news.epoch or names.local_epoch(name))
        case LoadOver():
            name = names.local_id(news.backend_id)
            return None if name is None else msgspec.structs.replace(news, backend_id=name)
        case TicketWaits() if news.tried:
            tried = [name for each in news.tried if (name := names.local_id(each)) is not None]
            return msgspec.structs.replace(news, tried=tuple(tried))
        case Standing():
            leases = [known for each in news.leases if (known := inward(each, names)) is not None]
            tickets = [inward(each, names) for each in news.tickets]
            loads = [known for each in news.loads if (known := inward(each, names)) is not None]
            return msgspec.structs.replace(news, leases=tuple(leases), tickets=tuple(tickets), loads=tuple(loads))
        case _:
            return news


def picture_outward(picture: Picture, names: Names) -> Picture:
    """A picture with the store's names of backends."""
    backends = [
        msgspec.structs.replace(
            each, backend_id=names.store_id(each.backend_id), epoch=names.store_epoch(each.backend_id)
        )
        for each in picture.backends
    ]
    return msgspec.structs.replace(picture, backends=tuple(backends))


def picture_inward(picture: Picture, names: Names) -> Picture:
    """A picture with our names of backends, without those that are not known here."""
    backends = [
        msgspec.structs.replace(each, backend_id=name, epoch=each.epoch or names.local_epoch(name))
        for each in picture.backends
        if (name := names.local_id(each.backend_id)) is not None
    ]
    return msgspec.structs.replace(picture, backends=tuple(backends))
