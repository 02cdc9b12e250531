"""The design's promises under random interleavings of everything that can happen."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler import events
from scheduler.domain import Engine, Failure, Operation, Outcome, Report
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler import promises
from tests.scheduler.talks import POLICIES, TURNS, Talks
from tests.scheduler.world import MODEL, OTHER_MODEL, TICK_S, World, backend, request

FAILURES = st.sampled_from(list(Failure))
REPEATABLE = (
    events.ClaimGranted,
    events.ClaimRefused,
    events.ClientLeft,
    events.RequestEnded,
    events.AnswerStarted,
    events.RequestArrived,
    events.BackendReported,
    events.BackendLeft,
    events.BackendChanged,
    events.OccupancyReported,
)


class Anything(RuleBasedStateMachine):
    """Backends `a` (tells its slots, has one more than it may use), `b` (an Ollama that does not) and `c` (another
    model too); `world` checks each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs = {"a": 1, "b": 1, "c": 1}
        self.looks: list[tuple[str, float, Report | None]] = []
        self.talks = Talks()

    @initialize(limit=st.integers(1, 4), policy=POLICIES, managed=st.booleans())
    def begin(self, limit: int, policy: Policy, managed: bool) -> None:
        self.world = World(policy)
        self.first_policy = policy
        self.limit = limit
        self.managed = managed
        for backend_id in self.epochs:
            self.rejoin(backend_id)

    def rejoin(self, backend_id: str, *signals: Signal) -> None:
        self.world.join(
            backend(
                backend_id,
                limit=self.limit if backend_id != "b" else 2,
                slots=self.limit + 1 if backend_id == "a" else None,
                models=(MODEL, OTHER_MODEL) if backend_id == "c" else (MODEL,),
                engine=Engine.OLLAMA if backend_id == "b" else Engine.LLAMA_SERVER,
                slot_source="leases" if backend_id == "b" else "slots",
                epoch=self.epochs[backend_id],
                managed=self.managed,
            ),
            *signals,
        )

    def pick(self, data: st.DataObject, ids: list[str]) -> str:
        return data.draw(st.sampled_from(ids))

    # Requests

    @rule(
        model=st.sampled_from([MODEL, MODEL, OTHER_MODEL, None, "nobody-has:latest"]),
        seats=st.sampled_from([1, 1, 1, 0, 2, 3]),
        wait_s=st.sampled_from([0.0, 2.0, 20.0, 300.0]),
        divisible=st.booleans(),
        further=st.booleans(),
    )
    def arrive(self, model: str | None, seats: int, wait_s: float, divisible: bool, further: bool) -> None:
        """Something without a prompt that could be compared."""
        number, _ = self.talks.message(0)
        operation = Operation.TOKENIZE if seats == 0 else Operation.CHAT
        self.world.arrive(
            request(
                f"r{number}",
                model=model,
                seats=seats,
                arrived_s=self.world.now_s,
                wait_s=wait_s,
                operation=operation,
                divisible=divisible,
                further=further,
            )
        )

    @rule(number=st.integers(0, 4), turn=TURNS)
    def say(self, number: int, turn: dict[str, Any]) -> None:
        """A turn of a conversation."""
        self.world.arrive(*self.talks.turn(self.world, number, **turn))

    @precondition(lambda self: self.world.claims)
    @rule(data=st.data())
    def answer_claim(self, data: st.DataObject) -> None:
        self.world.answer_claim(self.pick(data, list(self.world.claims)))

    @precondition(lambda self: self.world.claims)
    @rule()
    def answer_claims(self) -> None:
        self.world.answer_claims()

    @precondition(lambda self: self.world.claims)
    @rule(data=st.data(), elsewhere=st.integers(0, 4), draining=st.booleans())
    def refuse_claim(self, data: st.DataObject, elsewhere: int, draining: bool) -> None:
        self.world.refuse(self.pick(data, list(self.world.claims)), seats_elsewhere=elsewhere, draining=draining)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def start_answer(self, data: st.DataObject) -> None:
        self.world.start_answer(self.pick(data, list(self.world.running)))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), failure=FAILURES)
    def fail(self, data: st.DataObject, failure: Failure) -> None:
        self.world.fail(self.pick(data, list(self.world.running)), failure)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.DONE, Outcome.ENGINE_REFUSED, Outcome.TRUNCATED]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        self.world.end(self.pick(data, list(self.world.running)), outcome)

    @precondition(lambda self: self.world.running)
    @rule(
        data=st.data(),
        tokens=st.integers(1, 80),
        more_cached=st.sampled_from([0, 0, 0, 0, -100, 100, 1000]),
        other_slot=st.sampled_from([0, 0, 0, 0, 0, 1]),
    )
    def end_with_costs(self, data: st.DataObject, tokens: int, more_cached: int, other_slot: int) -> None:
        """An answer is complete; sometimes its costs are told wrong."""
        self.talks.end(self.world, self.pick(data, list(self.world.running)), tokens, more_cached, other_slot)

    @precondition(lambda self: self.world.open)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        self.world.client_leaves(self.pick(data, list(self.world.open)))

    @precondition(lambda self: self.world.history)
    @rule(data=st.data(), back=st.integers(1, 30))
    def repeat(self, data: st.DataObject, back: int) -> None:
        """An event comes twice, or much too late."""
        event = self.world.history[-min(back, len(self.world.history))][0]
        if isinstance(event, events.RequestArrived) and event.request.id in self.world.over:
            return  # ids are unique: this would be a new request
        if isinstance(event, events.AnswerStarted | events.RequestEnded) and event.request_id in self.world.open:
            return  # would be said of another attempt
        if isinstance(event, events.BackendLeft | events.BackendChanged):
            present = self.world.backends
            if isinstance(event, events.BackendLeft) and event.backend_id in present:
                return
            if isinstance(event, events.BackendChanged) and event.backend.id not in present:
                return
        if isinstance(event, REPEATABLE):
            self.world.feed(event)

    # Backends

    @rule(backend_id=st.sampled_from(["a", "b", "c"]))
    def begin_look(self, backend_id: str) -> None:
        if len(self.looks) < 4:
            self.world.now_s += TICK_S
            self.looks.append((backend_id, self.world.now_s, None))

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), foreign=st.sampled_from([0, 0, 0, 1]), shown=st.booleans())
    def see(self, data: st.DataObject, foreign: int, shown: bool) -> None:
        """The engine reads its slots: at some moment between the look's beginning and its end."""
        index = data.draw(st.integers(0, len(self.looks) - 1))
        backend_id, asked_at_s, _ = self.looks[index]
        if backend_id in self.world.backends:
            self.world.now_s += TICK_S
            report = self.world.report(backend_id, asked_at_s, foreign, shown=shown)
            self.looks[index] = (backend_id, asked_at_s, report)

    @rule(backend_id=st.sampled_from(["a", "b", "c"]), shown=st.booleans())
    def look(self, backend_id: str, shown: bool) -> None:
        """A look that takes no time."""
        if backend_id in self.world.backends:
            self.world.look(backend_id, shown=shown)

    @rule(data=st.data(), backend_id=st.sampled_from(["a", "c"]))
    def foreigner_comes(self, data: st.DataObject, backend_id: str) -> None:
        """Somebody goes around us."""
        if backend_id in self.world.backends and (idle := self.world.engines.of(backend_id).idle()):
            self.world.now_s += TICK_S
            slot = data.draw(st.sampled_from(idle))
            self.world.engines.of(backend_id).foreigner_comes(slot, self.world.now_s)

    @rule(backend_id=st.sampled_from(["a", "c"]))
    def foreigners_leave(self, backend_id: str) -> None:
        if backend_id in self.world.backends:
            self.world.now_s += TICK_S
            self.world.engines.of(backend_id).foreigners_leave()

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        """Looks may come back in any order."""
        _, _, report = self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))
        if report is not None:
            self.world.feed(events.BackendReported(report))

    @precondition(lambda self: any(work.left_s is not None for work in self.world.engine.values()))
    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        unread = [nonce for nonce, work in self.world.engine.items() if work.left_s is not None]
        self.world.notice(self.pick(data, unread))

    @rule(
        backend_id=st.sampled_from(["a", "b", "c"]),
        signal=st.sampled_from([Signal.ANSWERED, Signal.ANSWERED, Signal.MISSED, Signal.STARTED]),
    )
    def signal(self, backend_id: str, signal: Signal) -> None:
        self.world.feed(events.BackendSignalled(backend_id, signal))

    @rule(backend_id=st.sampled_from(["a", "b", "c"]), told=st.booleans(), ready=st.booleans())
    def restart(self, backend_id: str, told: bool, ready: bool) -> None:
        if told and backend_id in self.world.backends:
            self.world.exit(backend_id)
        self.epochs[backend_id] += 1
        self.rejoin(backend_id, *([Signal.STARTED, Signal.ANSWERED] if ready else [Signal.STARTED]))

    @precondition(lambda self: len(self.world.backends) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        backend_id = self.pick(data, list(self.world.backends))
        self.epochs[backend_id] += 1
        self.world.leave(backend_id)

    @rule(backend_id=st.sampled_from(["a", "b", "c"]), drain=st.booleans())
    def drain(self, backend_id: str, drain: bool) -> None:
        event = events.DrainRequested(backend_id) if drain else events.UndrainRequested(backend_id)
        self.world.feed(event)

    @rule(backend_id=st.sampled_from(["a", "b", "c"]), ago_s=st.sampled_from([0.0, 0.002, 1.0]))
    def tell_occupancy(self, backend_id: str, ago_s: float) -> None:
        self.world.feed(events.OccupancyReported(backend_id, 0, self.world.now_s - ago_s))

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.1, 6.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(policy=POLICIES)
    def change_policy(self, policy: Policy) -> None:
        self.world.policy = policy
        self.world.feed(events.PolicyChanged(policy))

    @invariant()
    def waits_are_bounded(self) -> None:
        assert len(self.world.waiting()) <= 6 + 4 + 2 + 4

    def teardown(self) -> None:
        """However it went: once everything calms down, all requests end and nothing is remembered."""
        world = self.world
        for backend_id in self.epochs:
            if backend_id in world.backends:
                world.engines.of(backend_id).foreigners_leave()
            world.feed(events.UndrainRequested(backend_id))
            if backend_id not in world.backends:
                self.rejoin(backend_id)
            world.feed(events.BackendSignalled(backend_id, Signal.ANSWERED))
        promises.keep_to_the_end(world)
        world.policy = self.first_policy
        world.replay()


class Looking(RuleBasedStateMachine):
    """One backend of two seats that is looked at while requests come, end and are abandoned. Claims are answered at
    once, so that most steps go into what a look can get wrong; `world` checks that the engine is never fed too much.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.join(backend("a", limit=2))
        self.count = 0
        self.looks: list[tuple[float, Report | None]] = []

    @rule(seats=st.sampled_from([1, 1, 2]))
    def arrive(self, seats: int) -> None:
        self.count += 1
        self.world.arrive(request(f"r{self.count}", arrived_s=self.world.now_s, seats=seats))
        self.world.answer_claims()

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.world.end(data.draw(st.sampled_from(list(self.world.running))))
        self.world.answer_claims()

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        self.world.client_leaves(data.draw(st.sampled_from(list(self.world.running))))
        self.world.answer_claims()

    @precondition(lambda self: any(work.left_s is not None for work in self.world.engine.values()))
    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        unread = [nonce for nonce, work in self.world.engine.items() if work.left_s is not None]
        self.world.notice(data.draw(st.sampled_from(unread)))

    @precondition(lambda self: len(self.looks) < 2)
    @rule()
    def begin_look(self) -> None:
        self.world.now_s += TICK_S
        self.looks.append((self.world.now_s, None))

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), foreign=st.sampled_from([0, 0, 1]))
    def see(self, data: st.DataObject, foreign: int) -> None:
        index = data.draw(st.integers(0, len(self.looks) - 1))
        asked_at_s, _ = self.looks[index]
        self.looks[index] = (asked_at_s, self.world.report("a", asked_at_s, foreign))

    @precondition(lambda self: any(report is not None for _, report in self.looks))
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        seen = [report for _, report in self.looks if report is not None]
        report = data.draw(st.sampled_from(seen))
        self.looks = [look for look in self.looks if look[1] is not report]
        self.world.feed(events.BackendReported(report))
        self.world.answer_claims()

    def teardown(self) -> None:
        """An undisturbed look tells the truth, whatever the ones before have told."""
        self.world.look("a")
        self.world.answer_claims()
        assert self.world.view("a").foreign_busy == 0
        assert self.world.view("a").seats_leased == self.world.busy("a")


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLooking = Looking.TestCase
TestLooking.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
