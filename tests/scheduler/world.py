"""A small deterministic world around a scheduler: plays store and engines; `promises` are checked at each step.

The clock moves a millisecond with every event, so that no two events share a time, as on a real machine.
"""

from collections.abc import Iterable
from typing import TypeVar

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import (
    Backend,
    BackendView,
    Engine,
    Failure,
    Measured,
    Outcome,
    Rejection,
    Report,
    Request,
)
from scheduler.effects import Effect
from scheduler.events import Event
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler import promises
from tests.scheduler.nouns import MODEL as MODEL
from tests.scheduler.nouns import OTHER_MODEL as OTHER_MODEL
from tests.scheduler.nouns import backend as backend
from tests.scheduler.nouns import request as request
from tests.scheduler.nouns import talk as talk
from tests.scheduler.played_engine import Engines
from tests.scheduler.played_loads import PlayedLoads
from tests.scheduler.prompts import Message, Tokens, tokens_of

E = TypeVar("E", bound=Effect)

TICK_S = 0.001


def of_type(effects_: Iterable[Effect], kind: type[E]) -> list[E]:
    """The effects of one kind, in order."""
    return [effect for effect in effects_ if isinstance(effect, kind)]


class World:
    """Feeds a scheduler and keeps the truth beside it: what the store granted, what the engines work on."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.scheduler = Scheduler(self.policy)
        self.now_s = 100.0
        self.wake_at_s = float("inf")
        self.history: list[tuple[Event, float, tuple[Effect, ...]]] = []
        self.backends: dict[str, Backend] = {}
        self.open: dict[str, Request] = {}
        self.over: dict[str, str] = {}
        self.claims: dict[str, effects.Claim] = {}
        """Claims that the store has not answered yet, by nonce."""
        self.claimed: set[str] = set()
        self.granted: dict[str, effects.Claim] = {}
        self.released: set[str] = set()
        self.others: dict[str, int] = {}
        """Seats that other proxies really hold."""
        self.running: dict[str, effects.Dispatch] = {}
        self.committed: set[str] = set()
        self.engines = Engines(self.backends)
        self.engine = self.engines.working
        """What the engines work on, by nonce."""
        self.loads = PlayedLoads(self)
        """What Ollamas have loaded."""
        self.max_busy: dict[str, int] = {}
        self.texts: dict[str, Tokens] = {}
        """Prompts of open requests, token by token."""
        self.messages: dict[str, list[Message]] = {}
        """The same as messages, where it was told."""
        self.holds: dict[str, float] = {}
        """Until when a request may hold, as first seen."""

    # What happens

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Hand an event to the scheduler, take in its effects, check the promises."""
        self.now_s += TICK_S
        was_due = self.wake_at_s <= self.now_s and not isinstance(event, events.TimePassed)
        done = self.scheduler.handle(event, self.now_s)
        self.history.append((event, self.now_s, done))
        if self.wake_at_s <= self.now_s or isinstance(event, events.TimePassed):
            self.wake_at_s = float("inf")
        for effect in done:
            self._take(effect)
        if isinstance(event, events.BackendReported):
            self.engines.reported(event.report, self.scheduler)
        promises.check(self, done, mixed=was_due)
        if any(isinstance(effect, effects.WakeAt) and effect.at_s <= self.now_s for effect in done):
            done += self.feed(events.TimePassed())
        return done

    def pass_time(self, seconds: float) -> tuple[Effect, ...]:
        """Let time pass, waking the scheduler on the way when it asked for it."""
        until_s = self.now_s + seconds
        done: list[Effect] = []
        while self.wake_at_s <= until_s:
            self.now_s = max(self.now_s, self.wake_at_s)
            self.engines.notice_in_time(self.now_s, self.policy, self.committed)
            done += self.feed(events.TimePassed())
        self.now_s = max(self.now_s, until_s)
        self.engines.notice_in_time(self.now_s, self.policy, self.committed)
        return (*done, *self.feed(events.TimePassed()))

    def join(self, new: Backend, *signals: Signal) -> None:
        """A backend joins or changes; by default it is ready at once."""
        old = self.backends.get(new.id)
        self.backends[new.id] = new
        if old is not None and new.epoch > old.epoch:
            self.engines.gone(new.id)
            self.loads.gone(new.id)
        self.feed(events.BackendChanged(new))
        for signal in signals or (Signal.STARTED, Signal.ANSWERED):
            self.feed(events.BackendSignalled(new.id, signal))
        if new.engine is Engine.OLLAMA and not signals:
            self.look(new.id)

    def leave(self, backend_id: str) -> tuple[Effect, ...]:
        """A backend leaves, and its engine with it."""
        del self.backends[backend_id]
        self.engines.gone(backend_id)
        self.loads.gone(backend_id)
        return self.feed(events.BackendLeft(backend_id))

    def exit(self, backend_id: str) -> tuple[Effect, ...]:
        """An engine's process ends."""
        self.engines.gone(backend_id)
        self.loads.gone(backend_id)
        return self.feed(events.BackendSignalled(backend_id, Signal.EXITED))

    def arrive(self, new: Request, messages: list[Message] | None = None) -> tuple[Effect, ...]:
        """A client asks for something; `messages`: what the prompt says."""
        self.open[new.id] = new
        self.messages[new.id] = messages or []
        name = int.from_bytes(new.id.encode(), "big")
        self.texts[new.id] = tokens_of(messages or [(name, 10)])
        return self.feed(events.RequestArrived(new))

    def answer_claim(self, nonce: str) -> tuple[Effect, ...]:
        """The store answers a claim by its own truth."""
        claim = self.claims.pop(nonce)
        held = sum(
            c.seats for n, c in self.granted.items() if c.backend_id == claim.backend_id and n not in self.released
        )
        others = self.others.get(claim.backend_id, 0)
        known = self.backends.get(claim.backend_id)
        if known is not None and known.epoch == claim.epoch and held + others + claim.seats <= claim.running_limit:
            self.granted[nonce] = claim
            return self.feed(events.ClaimGranted(claim.request_id, nonce))
        return self.feed(events.ClaimRefused(claim.request_id, nonce, others, epoch=known.epoch if known else None))

    def refuse(self, nonce: str, *, seats_elsewhere: int = 0, draining: bool = False) -> tuple[Effect, ...]:
        """The store refuses a claim, with any truth."""
        claim = self.claims.pop(nonce)
        return self.feed(events.ClaimRefused(claim.request_id, nonce, seats_elsewhere, draining))

    def answer_claims(self) -> None:
        """The store answers all claims, and those that follow from the answers; loads end well."""
        while self.claims or self.loads.under_way:
            if self.claims:
                self.answer_claim(next(iter(self.claims)))
            else:
                self.loads.end(next(iter(self.loads.under_way)))

    def run(self, new: Request) -> effects.Dispatch:
        """A request arrives and is dispatched."""
        self.arrive(new)
        self.answer_claims()
        return self.running[new.id]

    def start_answer(self, request_id: str) -> tuple[Effect, ...]:
        """The first byte goes out."""
        self.committed.add(request_id)
        return self.feed(events.AnswerStarted(request_id))

    def fail(self, request_id: str, failure: Failure) -> tuple[Effect, ...]:
        """An attempt breaks; after some failures the engine works on for a while."""
        dispatch = self.running.pop(request_id)
        if failure in (Failure.CONNECT, Failure.LOADING, Failure.OVERLOADED, Failure.ENGINE_ERROR):
            self.engines.done(dispatch.nonce)
        else:
            self.engines.unread(dispatch.nonce, self.now_s)
        if request_id in self.committed:
            self._close(request_id, "truncated")
        return self.feed(events.AttemptFailed(request_id, failure))

    def end(
        self,
        request_id: str,
        outcome: Outcome = Outcome.DONE,
        *,
        measured: Measured | None = None,
        answer: Message | None = None,
        more_cached: int = 0,
        other_slot: int = 0,
    ) -> tuple[Effect, ...]:
        """An exchange is over. With an answer its true costs are told, but that the last two arguments change them."""
        dispatch = self.running.pop(request_id)
        if outcome is Outcome.TRUNCATED:
            self.engines.unread(dispatch.nonce, self.now_s)
        else:
            model, length = self.open[request_id].model, len(self.texts[request_id])
            measured = measured or self.engines.measured(dispatch, model, length, answer, more_cached, other_slot)
            self.engines.done(dispatch.nonce, tokens_of([answer] if answer else []))
        self._close(request_id, outcome.value)
        return self.feed(events.RequestEnded(request_id, outcome, measured))

    def client_leaves(self, request_id: str) -> tuple[Effect, ...]:
        """A client goes away, whatever its request is doing."""
        dispatch = self.running.pop(request_id, None)
        if dispatch is not None:
            self.engines.unread(dispatch.nonce, self.now_s)
        self._close(request_id, "client-left")
        return self.feed(events.ClientLeft(request_id))

    def notice(self, nonce: str) -> None:
        """An engine notices that nobody reads an answer."""
        self.now_s += TICK_S
        self.engines.done(nonce)

    def look(
        self, backend_id: str, asked_at_s: float | None = None, foreign: int = 0, *, shown: bool = False
    ) -> tuple[Effect, ...]:
        """A look comes back that shows the engine as it is now."""
        self.now_s += TICK_S
        return self.feed(events.BackendReported(self.report(backend_id, asked_at_s, foreign, shown=shown)))

    def report(
        self, backend_id: str, asked_at_s: float | None = None, foreign: int = 0, *, shown: bool = False
    ) -> Report:
        """What a look at this moment sees; `shown`: each slot too. `foreign`: busy slots of somebody who is no one."""
        known = self.backends[backend_id]
        tells = known.slot_source == "slots"
        played = self.engines.of(backend_id)
        return Report(
            backend_id,
            known.epoch,
            self.now_s if asked_at_s is None else asked_at_s,
            busy_slots=self.busy(backend_id) + foreign + len(played.foreigners) if tells else None,
            slots=played.states() if tells and shown else (),
            residencies=self.loads.of(known),
        )

    # What is true

    def busy(self, backend_id: str) -> int:
        """Slots that the engine works with for us."""
        return self.engines.busy(backend_id)

    def view(self, backend_id: str) -> BackendView:
        """A backend as the scheduler sees it."""
        views = self.scheduler.snapshot(self.now_s).backends
        return next(view for view in views if view.backend.id == backend_id)

    def waiting(self) -> list[str]:
        """Ids of the requests that wait, in order."""
        return [ticket.request.id for ticket in self.scheduler.waiting()]

    def rejection(self, request_id: str) -> Rejection | None:
        """Why a request was refused."""
        for _event, _at_s, done in self.history:
            for effect in of_type(done, effects.Reject):
                if effect.request_id == request_id:
                    return effect.rejection
        return None

    def replay(self) -> None:
        """The same events give the same effects."""
        again = Scheduler(self.policy)
        for event, at_s, done in self.history:
            assert again.handle(event, at_s) == done

    # Effects

    def _take(self, effect: Effect) -> None:
        match effect:
            case effects.Claim():
                assert effect.nonce not in self.claimed, "a nonce is used once"
                self.claimed.add(effect.nonce)
                self.claims[effect.nonce] = effect
                assert self.view(effect.backend_id).seats_leased <= effect.running_limit
                assert effect.request_id in self.open
                assert effect.request_id not in self.committed, "no retry after the first byte"
                wanted = self.open[effect.request_id]
                assert wanted.least_seats <= effect.seats <= wanted.seats
            case effects.Dispatch():
                assert effect.request_id in self.open
                assert effect.request_id not in self.committed, "no retry after the first byte"
                assert effect.request_id not in self.running, "at one engine at a time"
                self.running[effect.request_id] = effect
                self.loads.dispatched(effect, self.open[effect.request_id])
                seats = effect.seats
                assert (effect.nonce == "") == (self.open[effect.request_id].seats == 0)
                if seats:
                    assert seats == self.granted[effect.nonce].seats, "what is told is what the store granted"
                    assert effect.nonce in self.granted
                    assert effect.nonce not in self.released
                    self.engines.start(effect, self.open[effect.request_id], self.texts[effect.request_id])
            case effects.Release():
                assert effect.nonce in self.granted, "only what was granted is given back"
                assert effect.nonce not in self.released, "and only once"
                self.released.add(effect.nonce)
            case effects.Reject():
                assert effect.request_id not in self.running
                assert effect.request_id not in self.committed
                if effect.retry_after_s is not None:
                    assert self.policy.retry_after_min_s <= effect.retry_after_s <= self.policy.retry_after_max_s
                self._close(effect.request_id, "rejected")
            case effects.Load():
                self.loads.asked(effect)
            case effects.Unload():
                self.loads.unloads(effect)
            case effects.WakeAt():
                assert effect.at_s < self.wake_at_s, "only an earlier time is worth an effect"
                self.wake_at_s = effect.at_s
            case _:
                pass

    def _close(self, request_id: str, how: str) -> None:
        assert request_id not in self.over, "a request ends once"
        del self.open[request_id]
        self.over[request_id] = how
        self.holds.pop(request_id, None)


def world_of(*ids: str, policy: Policy | None = None, limit: int = 1, slot_source: str = "slots") -> World:
    """A world with backends that are ready."""
    world = World(policy)
    for backend_id in ids:
        world.join(backend(backend_id, limit=limit, slot_source=slot_source))
    return world


def claimed(done: tuple[effects.Effect, ...]) -> list[tuple[str, str]]:
    """Which request claims seats of which backend."""
    return [(claim.request_id, claim.backend_id) for claim in of_type(done, effects.Claim)]
