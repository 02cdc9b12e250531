"""Several proxies at one store, under random interleavings: nothing is given twice, and all come to see the same."""

from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler.domain import Failure, Measured, Outcome
from scheduler.policy import Policy
from tests.scheduler.prompts import prompt_of
from tests.scheduler.proxies import Fleet, Proxy, fail_lost
from tests.scheduler.world import backend, request

POLICIES = st.builds(
    Policy,
    tenant_max_running=st.sampled_from([0, 0, 2]),
    hold_s=st.sampled_from([0.0, 1.0]),
    quantum_tokens=st.sampled_from([0, 100, 4000]),
    order=st.sampled_from(["cost", "fcfs"]),
    window=st.sampled_from([1, 64]),
    max_prefills=st.sampled_from([0, 0, 1]),
    turn_s=st.sampled_from([0.0, 0.03]),
    retry_floor_per_s=st.just(1000.0),
    max_attempts=st.just(1000),
)


class ManyProxies(RuleBasedStateMachine):
    """Two to three proxies and two backends; `Fleet.check` runs at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.looks: list[tuple[str, Any]] = []

    @initialize(count=st.integers(2, 3), limit=st.integers(1, 3), policy=POLICIES)
    def begin(self, count: int, limit: int, policy: Policy) -> None:
        backends = [backend("a", limit=limit, slots=limit + 1, managed=True), backend("b", limit=2, managed=True)]
        self.fleet = Fleet([f"p{number}" for number in range(count)], backends, policy)
        self.owners = count

    def pick(self, data: st.DataObject, among: str = "") -> Proxy | None:
        """A proxy that has something of this kind."""
        having = [owner for owner, proxy in self.fleet.proxies.items() if not among or getattr(proxy, among)]
        return self.fleet.proxies[data.draw(st.sampled_from(having))] if having else None

    @rule(
        data=st.data(),
        seats=st.sampled_from([1, 1, 1, 2]),
        tenant=st.sampled_from("xy"),
        priority=st.sampled_from(["high", "normal", "low"]),
        named=st.sampled_from([True, True, False]),
        text=st.integers(0, 3),
        stream=st.booleans(),
    )
    def arrive(self, data: st.DataObject, text: int, named: bool, stream: bool, **more: Any) -> None:
        proxy = self.pick(data)
        if proxy is None:
            return
        self.count += 1
        prompt = prompt_of([(text, 300), (100 + self.count, 50)])
        wanted = request(f"r{self.count}", arrived_s=proxy.now_s, prompt=prompt, can_name_slot=named, **more)
        proxy.arrive(wanted.id, wanted=wanted)

    @rule(seed=st.integers(0, 2**32), times=st.integers(1, 12))
    def messages(self, seed: int, times: int) -> None:
        """A few messages arrive, in some order."""
        draw = Random(seed)
        for _ in range(times):
            ways = [way for proxy in self.fleet.proxies.values() for way in proxy.ways()]
            if ways:
                draw.choice(ways)()

    @rule(data=st.data())
    def lose_reply(self, data: st.DataObject) -> None:
        if (proxy := self.pick(data, "replies")) is not None:
            proxy.lose_reply()

    @rule(data=st.data())
    def miss(self, data: st.DataObject) -> None:
        if (proxy := self.pick(data)) is not None:
            proxy.miss()

    @rule(data=st.data())
    def start_answer(self, data: st.DataObject) -> None:
        if (proxy := self.pick(data, "running")) is not None:
            proxy.start_answer(data.draw(st.sampled_from(list(proxy.running))))

    @rule(data=st.data(), outcome=st.sampled_from([Outcome.DONE, Outcome.DONE, Outcome.ENGINE_REFUSED]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        if (proxy := self.pick(data, "running")) is not None:
            measured = Measured(400, 100, 50, 30.0, 900.0, 35.0) if outcome is Outcome.DONE else None
            proxy.end(data.draw(st.sampled_from(list(proxy.running))), outcome, measured)

    @rule(data=st.data(), failure=st.sampled_from([Failure.CONNECT, Failure.RESET]))
    def fail(self, data: st.DataObject, failure: Failure) -> None:
        if (proxy := self.pick(data, "running")) is not None:
            proxy.fail(data.draw(st.sampled_from(list(proxy.running))), failure)

    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        if (proxy := self.pick(data, "open")) is not None:
            proxy.client_leaves(data.draw(st.sampled_from(list(proxy.open))))

    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        """An engine notices that nobody reads."""
        unread = [nonce for nonce, work in self.fleet.working.items() if not work.read]
        if unread:
            del self.fleet.working[data.draw(st.sampled_from(unread))]

    @rule(data=st.data(), backend_id=st.sampled_from("ab"))
    def begin_look(self, data: st.DataObject, backend_id: str) -> None:
        if (proxy := self.pick(data)) is not None and len(self.looks) < 3:
            self.looks.append((proxy.owner, self.fleet.report(backend_id, proxy.now_s)))

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        owner, report = self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))
        if owner in self.fleet.proxies:
            self.fleet.proxies[owner].see(report)

    @rule(backend_id=st.sampled_from("ab"))
    def restart(self, backend_id: str) -> None:
        self.fleet.restart(backend_id)

    @precondition(lambda self: len(self.fleet.proxies) > 1)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        if (proxy := self.pick(data)) is not None:
            self.fleet.crash(proxy.owner)

    @precondition(lambda self: self.fleet.crashed)
    @rule()
    def expire(self) -> None:
        self.fleet.expire()

    @precondition(lambda self: len(self.fleet.proxies) < 3)
    @rule()
    def join(self) -> None:
        self.owners += 1
        self.fleet.join(f"p{self.owners}")

    @rule(data=st.data(), backend_id=st.sampled_from("ab"))
    def ask_store(self, data: st.DataObject, backend_id: str) -> None:
        if (proxy := self.pick(data)) is not None:
            proxy.ask_store(backend_id)

    @rule(seconds=st.sampled_from([0.005, 0.05, 1.1]))
    def pass_time(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)

    @rule()
    def settle(self) -> None:
        """All messages arrive, and all agree."""
        fleet = self.fleet
        fleet.expire()
        fleet.settle()
        for proxy in fleet.proxies.values():
            fail_lost(proxy)
        fleet.settle()
        fleet.agree()

    def teardown(self) -> None:
        """However it went: once everything calms down, all requests end, and nothing is held or remembered."""
        if not hasattr(self, "fleet"):
            return
        fleet = self.fleet
        for _ in range(200):
            self.settle()
            if not any(proxy.open for proxy in fleet.proxies.values()):
                break
            for proxy in fleet.proxies.values():
                for request_id in list(proxy.running):
                    proxy.end(request_id)
            for nonce in [nonce for nonce, work in fleet.working.items() if not work.read]:
                del fleet.working[nonce]
            for proxy in fleet.proxies.values():
                for backend_id in fleet.backends:
                    proxy.look(backend_id)
            fleet.pass_time(1.0)
        assert not any(proxy.open for proxy in fleet.proxies.values()), "every request ends"
        fleet.settle()
        fleet.pass_time(200.0)
        fleet.settle()
        fleet.agree()
        assert not fleet.store.leases
        for proxy in fleet.proxies.values():
            scheduler = proxy.scheduler
            assert not proxy.scheduler._open
            assert not len(scheduler._deadlines)
            assert not scheduler.outlook.naming.reserved
            assert not scheduler.outlook.naming.unnamed
            assert not scheduler._matching.turns.tickets
            for view in scheduler.snapshot(proxy.now_s).backends:
                assert view.room == view.backend.running_limit
                for mirror in scheduler.outlook.mirrors(view.backend.id).values():
                    assert not mirror._leases
                    assert mirror.idle() == view.backend.slots


TestManyProxies = ManyProxies.TestCase
TestManyProxies.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
