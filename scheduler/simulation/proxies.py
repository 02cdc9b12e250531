"""Several proxies as one router: a scheduler each, a store that arbitrates, and news that take their time.

What goes through the store goes in order: a claim or a release is there after half a round trip, its news reach the
others after the delay of the log, its answer is back after the other half.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count, cycle
from math import inf

from scheduler import effects, events
from scheduler.domain import Measured, Report
from scheduler.news import News
from scheduler.policy import Policy
from scheduler.simulation.conversations import Turn
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.routers import Answer, SchedulerRouter

ROUND_TRIP_MS = 0.4
"""Of a claim; measured on a busy machine with a local Valkey."""
LOG_DELAY_MS = 1.0
"""From the store's write to the other proxies' hearing of it."""
OCCUPANCY_EVERY_MS = 1000.0


class Share(StrEnum):
    """What proxies share."""

    NEWS = "news"
    """The store arbitrates, and all hear of all."""
    DIRECT = "direct"
    """The store is away: all hear of all directly, and each keeps to its equal share of every backend."""
    LEASES = "leases"
    """The store arbitrates; of others only the number of seats is known, as of a second ago."""
    NOTHING = "nothing"
    """Each knows of its own requests, and nobody arbitrates."""


TELLS = frozenset({Share.NEWS, Share.DIRECT})


class _Proxy(SchedulerRouter):
    """One scheduler whose effects go to the store instead of being granted."""

    def __init__(self, number: int, fleet: "ProxiesRouter", policy: Policy, engines: Sequence[EngineSettings]) -> None:
        self.number = number
        self.name = f"proxy-{number}"
        self._fleet = fleet
        super().__init__(policy, engines)

    def feed(self, event: events.Event, now_ms: float) -> list[Answer]:
        """Tell the scheduler; what it wants of the store is on its way then."""
        return self._feed(event, now_ms)

    def _asked(self, effect: effects.Effect, now_ms: float) -> "list[events.Event]":
        fleet = self._fleet
        match effect:
            case effects.Claim() if fleet.share is Share.NOTHING:
                return [events.ClaimGranted(effect.request_id, effect.nonce)]
            case effects.Claim():
                fleet.later(now_ms + ROUND_TRIP_MS / 2, lambda at_ms: fleet.claimed(self, effect, at_ms))
            case effects.Release():
                fleet.later(now_ms + ROUND_TRIP_MS / 2, lambda at_ms: fleet.released(self, effect, at_ms))
            case effects.Tell():
                fleet.later(now_ms + ROUND_TRIP_MS / 2, lambda at_ms: fleet.told(self, effect.news, at_ms))
        return []


class ProxiesRouter:
    """See `Router`. Each request comes to the next proxy, whatever session it is of.

    Args:
        policy: of all proxies.
        engines: settings of each card's engine.
        proxies: how many there are.
        share: what they share.
    """

    def __init__(
        self, policy: Policy, engines: Sequence[EngineSettings], proxies: int, share: Share = Share.NEWS
    ) -> None:
        self.share = share
        self.refused = 0
        """Claims that the store refused."""
        self.most_seats = 0
        """The most seats that were ever taken at one engine, abandoned ones included."""
        self._orders = count()
        self._due: list[tuple[float, int, Callable[[float], list[Answer]]]] = []
        self._limits = {f"card-{number}": settings.slots for number, settings in enumerate(engines)}
        self._seats: dict[str, dict[str, tuple[int, int | None, str]]] = {name: {} for name in self._limits}
        """By backend and nonce: seats, slot, proxy."""
        self._of: dict[str, _Proxy] = {}
        self._proxies = [_Proxy(number, self, policy, engines) for number in range(proxies)]
        names = frozenset(proxy.name for proxy in self._proxies)
        if share in TELLS:
            for proxy in self._proxies:
                proxy.feed(events.ProxiesChanged(names - {proxy.name}), 0.0)
        if share in {Share.LEASES, Share.DIRECT}:
            self.later(0.0 if share is Share.DIRECT else OCCUPANCY_EVERY_MS, self._tell_occupancy)
        self._turns = cycle(self._proxies)

    # What the store does

    def later(self, at_ms: float, action: Callable[[float], list[Answer]]) -> None:
        """Do something at a time."""
        heappush(self._due, (at_ms, next(self._orders), action))

    def claimed(self, proxy: _Proxy, claim: effects.Claim, now_ms: float) -> list[Answer]:
        """A claim reaches the store."""
        if self.share is Share.DIRECT:
            return self._decided_alone(proxy, claim, now_ms)
        held = self._seats[claim.backend_id]
        total = sum(seats for seats, _, _ in held.values())
        fits = total + claim.seats <= min(claim.running_limit, self._limits[claim.backend_id])
        slots = [slot for seats, slot, _ in held.values() if seats]
        named = claim.slot is not None and self.share is Share.NEWS
        clash = named and (claim.slot in slots or None in slots)
        reply: events.Event
        if fits and not clash:
            held[claim.nonce] = claim.seats, claim.slot, proxy.name
            self.most_seats = max(self.most_seats, total + claim.seats)
            if claim.news is not None:
                self.told(proxy, claim.news, now_ms)
            reply = events.ClaimGranted(claim.request_id, claim.nonce)
        else:
            self.refused += 1
            elsewhere = sum(seats for seats, _, name in held.values() if name != proxy.name)
            reply = events.ClaimRefused(claim.request_id, claim.nonce, elsewhere, slot_refused=fits)
        self.later(now_ms + ROUND_TRIP_MS / 2, lambda at_ms: proxy.feed(reply, at_ms))
        return []

    def released(self, proxy: _Proxy, release: effects.Release, now_ms: float) -> list[Answer]:
        """A release reaches the store."""
        self._seats[release.backend_id].pop(release.nonce, None)
        if release.news is not None:
            self.told(proxy, release.news, now_ms)
        return []

    def told(self, proxy: _Proxy, news: News, now_ms: float) -> list[Answer]:
        """News stand in the log; the others hear of them."""
        if self.share in TELLS:
            heard = events.NewsHeard(proxy.name, news)
            for other in self._proxies:
                if other is not proxy:
                    self.later(now_ms + LOG_DELAY_MS, lambda at_ms, other=other: other.feed(heard, at_ms))  # type: ignore[misc]
        return []

    def _kept(self, backend_id: str, proxy: _Proxy) -> int:
        """Seats that are not this proxy's while the store is away."""
        limit, count = self._limits[backend_id], len(self._proxies)
        return limit - limit // count - (1 if proxy.number < limit % count else 0)

    def _decided_alone(self, proxy: _Proxy, claim: effects.Claim, now_ms: float) -> list[Answer]:
        """A proxy answers its own claim: nobody else is asked, so what others took a moment ago does not count."""
        held = self._seats[claim.backend_id]
        kept = self._kept(claim.backend_id, proxy)
        mine = sum(seats for seats, _, name in held.values() if name == proxy.name)
        reply: events.Event
        if mine + claim.seats <= min(claim.running_limit, self._limits[claim.backend_id]) - kept:
            held[claim.nonce] = claim.seats, claim.slot, proxy.name
            self.most_seats = max(self.most_seats, sum(seats for seats, _, _ in held.values()))
            if claim.news is not None:
                self.told(proxy, claim.news, now_ms)
            reply = events.ClaimGranted(claim.request_id, claim.nonce)
        else:
            self.refused += 1
            reply = events.ClaimRefused(claim.request_id, claim.nonce, kept, unsure=True, kept=True)
        self.later(now_ms, lambda at_ms: proxy.feed(reply, at_ms))
        return []

    def _tell_occupancy(self, now_ms: float) -> list[Answer]:
        answers: list[Answer] = []
        for proxy in self._proxies:
            for name, held in self._seats.items():
                elsewhere = sum(seats for seats, _, owner in held.values() if owner != proxy.name)
                kept = self.share is Share.DIRECT
                seats = self._kept(name, proxy) if kept else elsewhere
                answers += proxy.feed(events.OccupancyReported(name, seats, now_ms / 1000, kept=kept), now_ms)
        self.later(now_ms + OCCUPANCY_EVERY_MS, self._tell_occupancy)
        return answers

    # What a fleet asks of a router

    def arrived(self, request_id: str, turn: Turn, tenant: str, priority: str, now_ms: float) -> list[Answer]:
        """See `Router`."""
        proxy = self._of[request_id] = next(self._turns)
        return proxy.arrived(request_id, turn, tenant, priority, now_ms)

    def answer_started(self, request_id: str, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return self._of[request_id].answer_started(request_id, now_ms)

    def ended(self, request_id: str, measured: Measured, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return self._of.pop(request_id).ended(request_id, measured, now_ms)

    def wake_ms(self) -> float:
        """See `Router`."""
        own = min(proxy.wake_ms() for proxy in self._proxies)
        return min(own, self._due[0][0] if self._due else inf)

    def woken(self, now_ms: float) -> list[Answer]:
        """See `Router`."""
        answers: list[Answer] = []
        while self._due and self._due[0][0] <= now_ms:
            _, _, action = heappop(self._due)
            answers += action(now_ms)
        for proxy in self._proxies:
            if proxy.wake_ms() <= now_ms:
                answers += proxy.woken(now_ms)
        return answers

    def reported(self, report: Report, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return [answer for proxy in self._proxies for answer in proxy.reported(report, now_ms)]
