"""Several schedulers around one store (`store_model`), with every message on its way for as long as the test likes.

Clocks of the proxies differ.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Failure, Measured, Outcome, Report, Request, SlotState
from scheduler.effects import Effect
from scheduler.health import Signal
from scheduler.leases import LeaseState
from scheduler.news import Hello, News
from scheduler.policy import Policy
from tests.scheduler.store_model import StoreModel

TICK_S = 0.0005


class Work(msgspec.Struct):
    """A request at an engine."""

    owner: str
    backend_id: str
    epoch: int
    seats: int
    slot: int | None
    request_id: str
    read: bool = True
    """Somebody waits for the answer."""


class Proxy:
    """One scheduler, what it sent that the store has not seen, and what it has not heard yet."""

    def __init__(self, fleet: "Fleet", owner: str, policy: Policy) -> None:
        self.fleet = fleet
        self.owner = owner
        self.scheduler = Scheduler(policy)
        self.offset_s = 1000.0 * len(fleet.proxies)
        self.outbox: deque[Effect] = deque()
        self.replies: deque[events.ClaimGranted | events.ClaimRefused] = deque()
        self.facts: deque[events.Event] = deque()
        """What is to be told of backends and proxies."""
        self.position = len(fleet.store.log)
        self.wake_at_s = float("inf")
        self.open: dict[str, Request] = {}
        self.running: dict[str, effects.Dispatch] = {}
        self.committed: set[str] = set()
        self.done: dict[str, str] = {}
        self.released: set[str] = set()

    @property
    def now_s(self) -> float:
        return self.fleet.now_s + self.offset_s

    def feed(self, event: events.Event) -> tuple[Effect, ...]:
        self.fleet.now_s += TICK_S
        done = self.scheduler.handle(event, self.now_s)
        if self.wake_at_s <= self.now_s or isinstance(event, events.TimePassed):
            self.wake_at_s = float("inf")
        for effect in done:
            self._take(effect)
        self.fleet.check()
        if any(isinstance(effect, effects.WakeAt) and effect.at_s <= self.now_s for effect in done):
            done += self.feed(events.TimePassed())
        return done

    def arrive(self, request_id: str, **more: Any) -> tuple[Effect, ...]:
        from tests.scheduler.world import request

        wanted = more.pop("wanted", None) or request(request_id, arrived_s=self.now_s, **more)
        self.open[wanted.id] = wanted
        return self.feed(events.RequestArrived(wanted))

    def post(self) -> None:
        """The store sees the oldest thing sent."""
        effect = self.outbox.popleft()
        store = self.fleet.store
        match effect:
            case effects.Claim():
                self.replies.append(store.claim(self.owner, effect))
            case effects.Release():
                store.release(self.owner, effect.nonce, effect.news)
            case effects.Tell():
                store.log.append((self.owner, effect.news))

    def hear(self) -> None:
        """The next entry of the log."""
        owner, news = self.fleet.store.log[self.position]
        self.position += 1
        if owner != self.owner:
            self.feed(events.NewsHeard(owner, news))

    def answer(self) -> None:
        """The answer to a claim."""
        self.feed(self.replies.popleft())

    def hear_fact(self) -> None:
        """The next thing about backends and proxies."""
        self.feed(self.facts.popleft())

    def ways(self) -> list[Callable[[], None]]:
        """Messages that may arrive now."""
        waits = self.position < len(self.fleet.store.log)
        ways = ((self.outbox, self.post), (self.replies, self.answer), (waits, self.hear), (self.facts, self.hear_fact))
        return [way for there, way in ways if there]

    def catch_up(self) -> None:
        until = len(self.fleet.store.log)
        while self.position < until:
            self.hear()

    def lose_reply(self) -> None:
        """The answer to a claim is lost: it is given back, whatever it was."""
        reply = self.replies.popleft()
        self.outbox.append(effects.Release("", reply.nonce))
        self.feed(events.ClaimRefused(reply.request_id, reply.nonce, 0, unsure=True))

    def miss(self) -> None:
        """Entries of the log are lost to it, maybe somebody's Hello too."""
        self.position = len(self.fleet.store.log)
        self.outbox += [effects.Tell(Hello()), effects.Tell(self.scheduler.standing(self.now_s))]

    def ask_store(self, backend_id: str) -> None:
        asked_at_s, seats = self.now_s, self.fleet.store.elsewhere(self.owner, backend_id)
        self.catch_up()
        self.feed(events.OccupancyReported(backend_id, seats, asked_at_s))

    def look(self, backend_id: str) -> None:
        self.see(self.fleet.report(backend_id, self.now_s))

    def see(self, report: Report) -> None:
        """A look comes back; what the engine showed was in the log before."""
        self.catch_up()
        self.feed(events.BackendReported(report))

    def end(self, request_id: str, outcome: Outcome = Outcome.DONE, measured: Measured | None = None) -> None:
        dispatch = self.running.pop(request_id)
        self.fleet.working.pop(dispatch.nonce, None)
        self._close(request_id, outcome.value)
        self.feed(events.RequestEnded(request_id, outcome, measured))

    def fail(self, request_id: str, failure: Failure) -> None:
        dispatch = self.running.pop(request_id)
        if failure is Failure.CONNECT:
            self.fleet.working.pop(dispatch.nonce, None)
        elif dispatch.nonce in self.fleet.working:
            self.fleet.working[dispatch.nonce].read = False
        if request_id in self.committed:
            self._close(request_id, "truncated")
        self.feed(events.AttemptFailed(request_id, failure))

    def client_leaves(self, request_id: str) -> None:
        dispatch = self.running.pop(request_id, None)
        if dispatch is not None and dispatch.nonce in self.fleet.working:
            self.fleet.working[dispatch.nonce].read = False
        self._close(request_id, "left")
        self.feed(events.ClientLeft(request_id))

    def start_answer(self, request_id: str) -> None:
        self.committed.add(request_id)
        self.feed(events.AnswerStarted(request_id))

    def _close(self, request_id: str, how: str) -> None:
        del self.open[request_id]
        self.done[request_id] = how

    def _take(self, effect: Effect) -> None:
        match effect:
            case effects.Claim() | effects.Tell():
                self.outbox.append(effect)
            case effects.Release():
                assert effect.nonce not in self.released, "each lease is given back once"
                self.released.add(effect.nonce)
                self.outbox.append(effect)
            case effects.Dispatch():
                assert effect.request_id in self.open
                assert effect.request_id not in self.running
                self.running[effect.request_id] = effect
                if effect.seats:
                    self.fleet.start(self.owner, effect)
            case effects.Reject():
                assert effect.request_id not in self.running
                self._close(effect.request_id, effect.rejection.value)
            case effects.WakeAt():
                self.wake_at_s = effect.at_s


class Fleet:
    """The store, the engines, and the proxies."""

    def __init__(self, owners: Iterable[str], backends: Iterable[Backend], policy: Policy | None = None) -> None:
        self.now_s = 100.0
        self.store = StoreModel()
        self.backends = {backend.id: backend for backend in backends}
        self.working: dict[str, Work] = {}
        self.proxies: dict[str, Proxy] = {}
        self.crashed: list[Proxy] = []
        self.policy = policy or Policy()
        for owner in owners:
            self.join(owner)
        self.settle()

    def join(self, owner: str) -> Proxy:
        proxy = Proxy(self, owner, self.policy)
        self.proxies[owner] = proxy
        for backend in self.backends.values():
            for event in (
                events.BackendChanged(backend),
                events.BackendSignalled(backend.id, Signal.STARTED),
                events.BackendSignalled(backend.id, Signal.ANSWERED),
            ):
                proxy.feed(event)
        self._tell_presence()
        proxy.outbox.append(effects.Tell(Hello()))
        return proxy

    def crash(self, owner: str) -> None:
        """A proxy dies: its connections break, and nothing that it sent and the store did not see will be seen."""
        proxy = self.proxies.pop(owner)
        self.crashed.append(proxy)
        for nonce in [nonce for nonce, work in self.working.items() if work.owner == owner]:
            del self.working[nonce]

    def expire(self) -> None:
        """The leases of dead proxies expire, and with them their presence: seconds after their last words."""
        for proxy in self.proxies.values():
            proxy.catch_up()
        for proxy in self.crashed:
            self.store.expire(proxy.owner)
        self.crashed.clear()
        self._tell_presence()

    def restart(self, backend_id: str) -> None:
        """An engine restarts; the proxies hear of it when they do."""
        old = self.backends[backend_id]
        self.backends[backend_id] = new = msgspec.structs.replace(old, epoch=old.epoch + 1)
        self.store.fence(backend_id, new.epoch)
        for nonce in [nonce for nonce, work in self.working.items() if work.backend_id == backend_id]:
            del self.working[nonce]
        for proxy in self.proxies.values():
            proxy.facts += [
                events.BackendChanged(new),
                events.BackendSignalled(backend_id, Signal.STARTED),
                events.BackendSignalled(backend_id, Signal.ANSWERED),
            ]

    def start(self, owner: str, dispatch: effects.Dispatch) -> None:
        backend = self.backends[dispatch.backend_id]
        kept = self.store.leases.get(dispatch.nonce)
        epoch = kept.epoch if kept is not None else -1
        if epoch != backend.epoch:
            return  # that engine is gone: the attempt will fail
        if dispatch.slot is not None:
            named = [work.slot for work in self.working.values() if work.backend_id == backend.id]
            assert dispatch.slot not in named, f"slot {dispatch.slot} is named twice"
        self.working[dispatch.nonce] = Work(
            owner, backend.id, epoch, dispatch.seats, dispatch.slot, dispatch.request_id
        )

    def report(self, backend_id: str, asked_at_s: float) -> Report:
        backend = self.backends[backend_id]
        there = [work for work in self.working.values() if work.backend_id == backend_id]
        busy = sum(work.seats for work in there)
        slots: tuple[SlotState, ...] = ()
        if all(work.slot is not None and work.seats == 1 for work in there):
            named = {work.slot for work in there}
            slots = tuple([SlotState(slot, slot in named) for slot in range(backend.slots)])
        return Report(backend_id, backend.epoch, asked_at_s, busy_slots=busy, slots=slots)

    def check(self) -> None:
        """What must be true after each step."""
        for backend_id, backend in self.backends.items():
            there = [kept for kept in self.store.leases.values() if kept.backend_id == backend_id]
            assert sum(kept.seats for kept in there) <= backend.running_limit
            named = [kept.slot for kept in there if kept.slot is not None]
            assert len(named) == len(set(named)), "no slot is named twice"
            busy = sum(work.seats for work in self.working.values() if work.backend_id == backend_id)
            assert busy <= backend.running_limit, f"{backend_id} works on {busy} of {backend.running_limit}"

    def pass_time(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while True:
            due = [(proxy.wake_at_s - proxy.offset_s, proxy.owner) for proxy in self.proxies.values()]
            at_s, owner = min(due)
            if at_s > until_s:
                break
            self.now_s = max(self.now_s, at_s)
            self.proxies[owner].feed(events.TimePassed())
        self.now_s = max(self.now_s, until_s)
        for proxy in self.proxies.values():
            proxy.feed(events.TimePassed())

    def settle(self) -> None:
        """Every message arrives."""
        busy = True
        while busy:
            busy = False
            for proxy in self.proxies.values():
                while proxy.facts:
                    proxy.feed(proxy.facts.popleft())
                    busy = True
                while proxy.outbox:
                    proxy.post()
                    busy = True
                while proxy.replies:
                    proxy.feed(proxy.replies.popleft())
                    busy = True
                while proxy.position < len(self.store.log):
                    proxy.hear()
                    busy = True

    def agree(self) -> None:
        """Once every message has arrived: all know the same leases, the same line and the same that run."""
        waiting = {ticket.request.id for proxy in self.proxies.values() for ticket in proxy.scheduler.waiting()}
        for proxy in self.proxies.values():
            scheduler = proxy.scheduler
            tickets, leases = scheduler.elsewhere()
            known = {lease.nonce for lease in (*scheduler.running(), *leases)}
            assert known == self.store.leases.keys(), (
                f"{proxy.owner} knows other leases than the store: {known ^ self.store.leases.keys()}"
            )
            line = {ticket.request.id for ticket in (*scheduler.waiting(), *tickets)}
            assert line == waiting, f"{proxy.owner} sees another line: {self.said_of(line ^ waiting)}"
            for lease in leases:
                kept = self.store.leases[lease.nonce]
                assert (lease.owner, lease.backend_id, lease.seats) == (kept.owner, kept.backend_id, kept.seats)
        counts = [self._running(proxy) for proxy in self.proxies.values()]
        assert all(count == counts[0] for count in counts), "all know how many of each tenant run"

    def said_of(self, request_ids: set[str]) -> list[tuple[str, News]]:
        """What the log says of some requests."""
        return [
            (owner, news)
            for owner, news in self.store.log
            if isinstance(news, Hello) or any(f"'{request_id}" in repr(news) for request_id in request_ids)
        ]

    def _running(self, proxy: Proxy) -> dict[str, int]:
        ledger = proxy.scheduler._ledger
        counts = dict(proxy.scheduler._matching.shares._running)
        for lease in ledger.elsewhere():
            if lease.state is LeaseState.CLAIMING and lease.request is not None:  # its turn: not told by anybody
                counts[lease.request.tenant] -= 1
        return {tenant: count for tenant, count in counts.items() if count}

    def _tell_presence(self) -> None:
        present = {*self.proxies, *(proxy.owner for proxy in self.crashed)}
        for owner, proxy in self.proxies.items():
            proxy.facts.append(events.ProxiesChanged(frozenset(present - {owner})))


def fail_lost(proxy: Proxy) -> None:
    """Attempts at engines that are gone fail."""
    for request_id, dispatch in list(proxy.running.items()):
        if dispatch.seats and dispatch.nonce not in proxy.fleet.working:
            proxy.fail(request_id, Failure.CONNECT)
