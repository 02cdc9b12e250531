"""Owns the backends that other proxies of the fleet look after, all together, as seen from here.

What they are stands in the registry; what happens to them comes as news. The proxy that looks after a backend is its
owner here: as long as it is heard of, others that announce the same engine are not listened to, unless they started
it anew. A backend whose owner
falls silent is down until somebody speaks for it again, and leaves when its record would have ended.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

import structlog

from proxy.backends.announced import Announced, from_facts
from proxy.backends.boxes import Box
from proxy.backends.member import MemberStatus
from proxy.backends.remote_member import Headers, Outside, RemoteMember
from proxy.config import BackendConfig
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, identity, parse_endpoint
from proxy.store.records import BackendListing
from scheduler.domain import Backend
from scheduler.health import Signal
from scheduler.news import BackendGone, BackendMoved, BackendSeen, BackendTold, MemorySeen

log = structlog.get_logger("slotgate.remote")

BackendNews = BackendTold | BackendMoved | BackendSeen | BackendGone | MemorySeen

RETURN_S = 1.0
"""A record that may be older than the news that its backend is gone does not bring it back."""
MISSED_EVERY_S = 1.0
"""A silent backend counts as missed once more after this."""
GONE_KEPT = 1000


class RemoteFleet:
    """Backends that others look after. Everything is driven by calls: `refresh` with the registry, `hear` with news."""

    def __init__(
        self,
        outside: Outside,
        *,
        is_own: Callable[[str], bool] = lambda _store_id: False,
        own_names: Callable[[], Collection[str]] = tuple,
        lease_ttl_s: float = 15.0,
        record_ttl_s: float = 60.0,
    ) -> None:
        """Nothing is known yet.

        Args:
            outside: what its backends share.
            is_own: whether this proxy looks after the backend of that store's name itself.
            own_names: names of this proxy's own backends.
            lease_ttl_s: an owner that was not heard of for so long is silent.
            record_ttl_s: after so long its backends are gone.
        """
        self._outside = outside
        self._is_own = is_own
        self._own_names = own_names
        self._lease_ttl_s = lease_ttl_s
        self._record_ttl_s = record_ttl_s
        self._members: dict[str, RemoteMember] = {}
        self._names: dict[str, str] = {}
        self._gone: dict[str, tuple[str, float]] = {}
        """Of backends that left: which owner said so, and when."""
        self._was_away = False

    # what the fleet calls

    def __contains__(self, backend_id: str) -> bool:
        """Whether there is one of that name."""
        return backend_id in self._names

    def store_id(self, backend_id: str) -> str | None:
        """The store's name of a backend; None: there is none of that name."""
        return self._names.get(backend_id)

    def local_id(self, store_id: str) -> str | None:
        """The name of a backend here; None: the scheduler does not know it."""
        member = self._members.get(store_id)
        return member.name if member is not None and member.is_known else None

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where a backend is reached from here.

        Raises:
            LookupError: no such backend, or there is no way to it.
        """
        member = self._members[self._names[backend_id]]
        if member.endpoint is None:
            raise LookupError(f"{backend_id}: {member.problem}")
        return member.endpoint

    def facts(self, backend_id: str) -> EngineFacts | None:
        """What the engine said of itself; None before that is known here, or for an unknown backend."""
        member = self._members.get(self._names.get(backend_id, ""))
        return member.facts if member else None

    def look(self, backend_id: str, at_s: float) -> None:
        """Ask the owner to look at the given time of the clock."""
        if member := self._members.get(self._names.get(backend_id, "")):
            member.look(at_s)

    def list_models(self, backend_id: str) -> None:
        """Ask the owner to read the list of models."""
        if member := self._members.get(self._names.get(backend_id, "")):
            member.list_models()

    def owner(self, backend_id: str) -> str:
        """The proxy that looks after a backend.

        Raises:
            LookupError: no such backend.
        """
        return self._members[self._names[backend_id]].owner

    def status(self) -> list[MemberStatus]:
        """All of them, by name."""
        return [member.status() for member in sorted(self._members.values(), key=lambda each: each.name)]

    # what comes in

    def refresh(self, listing: Iterable[BackendListing], proxies: Collection[str], *, up: bool = True) -> None:
        """Take in the registry.

        Args:
            listing: what stands there now.
            proxies: the present proxies of the fleet.
            up: the store answered; otherwise the listing is an old one, and silence means nothing.
        """
        now_s = self._outside.clock()
        if not up:
            self._was_away = True
            return
        if self._was_away:
            self._was_away = False
            for member in self._members.values():
                member.heard_at_s, member.absent_at_s = now_s, None
        rows = [row for row in listing if not self._is_own(row.record.backend_id)]
        names = Counter(row.record.facts.get("name") for row in rows)
        for row in rows:
            self._read(row, now_s, is_shared=names[row.record.facts.get("name")] > 1)
        for store_id, member in list(self._members.items()):
            if self._is_own(store_id):
                self._leave(store_id)
            else:
                self._judge(store_id, member, proxies, now_s)

    def hear(self, owner: str, news: BackendNews) -> None:
        """Take in what a proxy tells of a backend that it looks after."""
        store_id = _subject(news)
        if self._is_own(store_id):
            return
        if isinstance(news, BackendTold) and self._gone.get(store_id, ("",))[0] == owner:
            del self._gone[store_id]
        member = self._members.get(store_id)
        if member is None:
            if isinstance(news, BackendTold):
                self._outside.want_refresh()
        elif isinstance(news, BackendGone):
            member.others.pop(owner, None)
            if owner == member.owner:
                self._lose_owner(store_id, member)
        elif owner == member.owner:
            member.hear(news)
        else:
            member.others[owner] = self._outside.clock()
            if isinstance(news, BackendTold) and _is_next(news.backend, member):
                self._outside.want_refresh()

    # inside

    def _read(self, row: BackendListing, now_s: float, *, is_shared: bool) -> None:
        store_id, owner, raw = row.record.backend_id, row.heartbeat_by, row.record.facts
        heard_at_s = now_s - row.heartbeat_age_s
        gone = self._gone.get(store_id)
        if gone is not None and gone[0] == owner and heard_at_s <= gone[1] + RETURN_S:
            return
        member = self._members.get(store_id)
        if member is not None and member.owner != owner:
            member.others[owner] = max(heard_at_s, member.others.get(owner, heard_at_s))
            theirs = from_facts(raw)
            if not (member.silent or (theirs is not None and _is_next(theirs.backend, member))):
                return
            log.info("another proxy speaks for a backend", backend=member.name, before=member.owner, now=owner)
            member.owner = owner
        if member is not None:
            member.heard_at_s = max(member.heard_at_s, heard_at_s)
            if raw == member.raw:
                return
        elif row.heartbeat_age_s > self._lease_ttl_s:
            return
        if (announced := from_facts(raw)) is None or announced.backend.id != store_id:
            return
        if member is None:
            name = self._name(announced, is_shared=is_shared)
            member = self._members[store_id] = RemoteMember(name, owner, heard_at_s, announced, self._outside)
            self._names[name] = store_id
        member.raw = raw
        member.apply(announced)

    def _name(self, announced: Announced, *, is_shared: bool) -> str:
        """A name that nobody has here. It stays while the backend lives, whoever comes later."""
        taken = {*self._own_names(), *self._names}
        name, store_id = announced.name, announced.backend.id
        names = [f"{announced.box.name}/{name}", f"{announced.box.id}/{name}"]
        return next((each for each in (names if is_shared else [name, *names]) if each not in taken), store_id)

    def _judge(self, store_id: str, member: RemoteMember, proxies: Collection[str], now_s: float) -> None:
        """Whether its owner still speaks for it."""
        if not proxies or member.owner in proxies:
            member.absent_at_s = None
        elif member.absent_at_s is None:
            member.absent_at_s = now_s
        # Not at once: after a restart of the store proxies come back one by one.
        absent = member.absent_at_s is not None and now_s - member.absent_at_s >= self._lease_ttl_s / 3
        silent_s = now_s - member.heard_at_s
        if silent_s > self._record_ttl_s:
            log.warning("backend has left the fleet", backend=member.name, owner=member.owner, silent_s=round(silent_s))
            self._leave(store_id)
        elif absent or silent_s > self._lease_ttl_s:
            if not member.silent:
                log.warning("nobody speaks for a backend", backend=member.name, owner=member.owner)
            member.silent = True
            if now_s - member.missed_at_s >= MISSED_EVERY_S:
                member.missed_at_s = now_s
                # Not that it exited: it may work on, and requests of ours with it.
                member.signal(Signal.MISSED)
        else:
            member.silent = False
        if member.others:
            member.others = {each: at_s for each, at_s in member.others.items() if now_s - at_s <= self._record_ttl_s}

    def _lose_owner(self, store_id: str, member: RemoteMember) -> None:
        now_s = self._outside.clock()
        self._gone[store_id] = (member.owner, now_s)
        while len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        heirs = {owner: heard_s for owner, heard_s in member.others.items() if now_s - heard_s <= self._lease_ttl_s}
        if not heirs:
            log.info("backend has left the fleet", backend=member.name, owner=member.owner)
            self._leave(store_id)
            return
        member.owner, member.heard_at_s = max(heirs.items(), key=lambda item: item[1])
        self._outside.want_refresh()

    def _leave(self, store_id: str) -> None:
        member = self._members.pop(store_id)
        self._names.pop(member.name, None)
        member.leave()


def known_keys(configs: Iterable[BackendConfig], box: Box) -> dict[str, Headers]:
    """What configured engines want with each request, by the store's names."""
    endpoints = [parse_endpoint(config.url, config.api_key) for config in configs if config.url and config.api_key]
    return {identity(endpoint, box.id): endpoint.headers for endpoint in endpoints}


def _is_next(backend: Backend, member: RemoteMember) -> bool:
    """Whether another proxy started the engine anew: then the one that ran it before is gone, though not yet missed.

    Of an engine that nobody manages each proxy counts the restarts for itself.
    """
    known = member.announced.backend
    return backend.managed and backend.id == known.id and backend.epoch > known.epoch


def _subject(news: BackendNews) -> str:
    match news:
        case BackendTold():
            return news.backend.id
        case BackendSeen():
            return news.report.backend_id
        case _:
            return news.backend_id
