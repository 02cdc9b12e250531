"""Conversations at engines that mostly work: which slot, who goes next, who holds. `world` checks each step.

`test_invariants` breaks everything that can break; here most steps go into requests that run.
"""

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler import events
from scheduler.domain import Backend, Engine, Failure, Outcome
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.scheduler import promises
from tests.scheduler.talks import POLICIES, TURNS, Talks
from tests.scheduler.world import MODEL, OTHER_MODEL, TICK_S, World, backend

CLAIMS = st.sampled_from([True, True, True, False])
"""Whether the store answers at once."""


def patient(policy: Policy) -> Policy:
    """The same, but nobody is refused for the line: what is looked at here is who goes, and where."""
    return msgspec.structs.replace(policy, max_waiting=40, max_expected_wait_s=0.0, retry_floor_per_s=9.0)


class Talking(RuleBasedStateMachine):
    """Backends `a` and `b`, llama-servers whose slots we may name (`b` has another model too), sometimes an Ollama."""

    def __init__(self) -> None:
        super().__init__()
        self.talks = Talks()

    @initialize(policy=POLICIES, limit=st.integers(1, 3), more_slots=st.integers(0, 2), ollama=st.booleans())
    def begin(self, policy: Policy, limit: int, more_slots: int, ollama: bool) -> None:
        self.first_policy = patient(policy)
        self.world = World(self.first_policy)
        self.epoch = 1
        self.limit, self.slots = limit, limit + more_slots
        self.world.join(self.a())
        self.world.join(backend("b", managed=True, limit=limit, models=[MODEL, OTHER_MODEL]))
        if ollama:
            self.world.join(backend("c", limit=1, engine=Engine.OLLAMA, slot_source="leases"))

    def a(self) -> Backend:
        return backend("a", managed=True, epoch=self.epoch, limit=self.limit, slots=self.slots)

    def running(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.world.running)))

    def answer(self, answers: bool) -> None:
        if answers:
            self.world.answer_claims()

    @rule(number=st.integers(0, 4), turn=TURNS, answers=CLAIMS)
    def say(self, number: int, turn: dict[str, Any], answers: bool) -> None:
        self.world.arrive(*self.talks.turn(self.world, number, **turn))
        self.answer(answers)

    @rule(number=st.integers(0, 4), turn=TURNS, count=st.integers(2, 5))
    def all_say(self, number: int, turn: dict[str, Any], count: int) -> None:
        """Several at once."""
        for _ in range(count):
            self.world.arrive(*self.talks.turn(self.world, number, **turn))
        self.world.answer_claims()

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), tokens=st.integers(1, 80), answers=CLAIMS)
    def end(self, data: st.DataObject, tokens: int, answers: bool) -> None:
        self.talks.end(self.world, self.running(data), tokens)
        self.answer(answers)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), more_cached=st.sampled_from([-1000, -100, 100]), other_slot=st.integers(0, 1))
    def end_with_lies(self, data: st.DataObject, more_cached: int, other_slot: int) -> None:
        self.talks.end(self.world, self.running(data), 10, more_cached, other_slot)
        self.world.answer_claims()

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), answers=CLAIMS)
    def start_answer(self, data: st.DataObject, answers: bool) -> None:
        self.world.start_answer(self.running(data))
        self.answer(answers)

    @precondition(lambda self: self.world.claims)
    @rule()
    def answer_claims(self) -> None:
        self.world.answer_claims()

    @precondition(lambda self: self.world.claims)
    @rule(data=st.data(), elsewhere=st.integers(0, 1))
    def refuse_claim(self, data: st.DataObject, elsewhere: int) -> None:
        self.world.refuse(data.draw(st.sampled_from(list(self.world.claims))), seats_elsewhere=elsewhere)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), failure=st.sampled_from([Failure.RESET, Failure.LOADING, Failure.ENGINE_ERROR]))
    def fail(self, data: st.DataObject, failure: Failure) -> None:
        self.world.fail(self.running(data), failure)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.ENGINE_REFUSED, Outcome.TRUNCATED]))
    def end_badly(self, data: st.DataObject, outcome: Outcome) -> None:
        self.world.end(self.running(data), outcome)

    @precondition(lambda self: self.world.open)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        self.world.client_leaves(data.draw(st.sampled_from(list(self.world.open))))

    @precondition(lambda self: any(work.left_s is not None for work in self.world.engine.values()))
    @rule()
    def notice(self) -> None:
        for nonce in [nonce for nonce, work in self.world.engine.items() if work.left_s is not None]:
            self.world.notice(nonce)
        self.look(None, shown=True)

    @rule(data=st.data(), backend_id=st.sampled_from("ab"))
    def foreigner_comes(self, data: st.DataObject, backend_id: str) -> None:
        """Somebody goes around us."""
        if idle := self.world.engines.of(backend_id).idle():
            self.world.now_s += TICK_S
            slot = data.draw(st.sampled_from(idle))
            self.world.engines.of(backend_id).foreigner_comes(slot, self.world.now_s)

    @rule(foreigners_stay=st.booleans(), shown=st.booleans())
    def look(self, foreigners_stay: bool | None, shown: bool) -> None:
        """At all backends; sometimes whoever went around us has left by then."""
        for backend_id in self.world.backends:
            if foreigners_stay is False:
                self.world.engines.of(backend_id).foreigners_leave()
            self.world.look(backend_id, shown=shown)
        self.world.answer_claims()

    @rule(seconds=st.sampled_from([0.01, 0.4, 1.1, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.world.answer_claims()

    @rule(policy=POLICIES)
    def change_policy(self, policy: Policy) -> None:
        self.world.policy = patient(policy)
        self.world.feed(events.PolicyChanged(self.world.policy))

    @rule(told=st.booleans())
    def restart(self, told: bool) -> None:
        if told:
            self.world.exit("a")
        self.epoch += 1
        self.world.join(self.a())

    def teardown(self) -> None:
        world = self.world
        for backend_id in world.backends:
            world.engines.of(backend_id).foreigners_leave()
            world.feed(events.BackendSignalled(backend_id, Signal.ANSWERED))
        promises.keep_to_the_end(world)
        world.policy = self.first_policy
        world.replay()


TestTalking = Talking.TestCase
TestTalking.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
