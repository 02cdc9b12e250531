"""What must hold of loads whatever happens: engines fail, operators pin and unload, looks come late."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler import events
from scheduler.domain import Engine, Failure, Operation, Outcome, Report
from scheduler.health import Signal
from scheduler.policy import Policy
from scheduler.runner import Runner
from tests.scheduler import promises
from tests.scheduler.world import MODEL, OTHER_MODEL, TICK_S, World, backend, request

COPY, THIRD = "copy:latest", "third:latest"
MODELS = (MODEL, OTHER_MODEL, COPY, THIRD)
WEIGHTS = {MODEL: "w1", COPY: "w1", OTHER_MODEL: "w2", THIRD: "w3"}
RUNNERS = st.sampled_from([None, Runner(), Runner(), Runner(2048), Runner(8192), Runner(4096, shift=False)])
KEEP_ALIVES = st.sampled_from([None, 0.0, 1.0, 300.0, -1.0])
ATOMS = ("a", "b", "c")


class Loads(RuleBasedStateMachine):
    """Ollamas `a` and `b`, and `c`, which is one or a llama-server with one of the models."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.epochs = dict.fromkeys(ATOMS, 1)
        self.looks: list[Report] = []

    @initialize(
        most=st.sampled_from([0, 1, 1, 2]),
        limit=st.integers(1, 3),
        mixed=st.booleans(),
        policy=st.builds(
            Policy,
            residence_s=st.sampled_from([1.0, 10.0]),
            idle_residence_s=st.sampled_from([0.5, 2.0]),
            copy_gain=st.sampled_from([0.0, 2.0]),
            load_ms=st.sampled_from([0.0, 2000.0]),
            tenant_max_running=st.sampled_from([0, 0, 2]),
        ),
    )
    def begin(self, most: int, limit: int, mixed: bool, policy: Policy) -> None:
        self.world = World(policy)
        self.most, self.limit, self.mixed = most, limit, mixed
        for backend_id in ATOMS:
            self.join(backend_id)

    def join(self, backend_id: str, *signals: Signal) -> None:
        plain = self.mixed and backend_id == "c"
        self.world.join(
            backend(
                backend_id,
                engine=Engine.LLAMA_SERVER if plain else Engine.OLLAMA,
                slot_source="leases",
                limit=self.limit,
                models=[MODEL] if plain else MODELS if backend_id == "a" else MODELS[:3],
                epoch=self.epochs[backend_id],
                contexts=dict.fromkeys(MODELS, 4096),
                most_context=dict.fromkeys(MODELS, 8192),
                weights=WEIGHTS,
                max_loaded=self.most,
                cloud=backend_id == "b",
            ),
            *signals,
        )

    def draw(self, data: st.DataObject, ids: Any) -> Any:
        return data.draw(st.sampled_from(sorted(ids)))

    # Requests

    @rule(
        model=st.sampled_from(MODELS),
        runner=RUNNERS,
        keep_alive_s=KEEP_ALIVES,
        tenant=st.sampled_from("xy"),
        wait_s=st.sampled_from([3.0, 60.0, 300.0]),
        operation=st.sampled_from([Operation.CHAT, Operation.CHAT, Operation.CHAT, Operation.LOAD, Operation.UNLOAD]),
        seats=st.sampled_from([1, 1, 1, 2]),
        divisible=st.booleans(),
    )
    def arrive(self, operation: Operation, seats: int, wait_s: float, **more: Any) -> None:
        self.count += 1
        if operation is not Operation.CHAT:
            seats = 0
            more["divisible"] = False
        self.world.arrive(
            request(
                f"r{self.count}",
                operation=operation,
                seats=seats,
                arrived_s=self.world.now_s,
                wait_s=wait_s,
                engines=frozenset({Engine.OLLAMA}) if seats == 0 else frozenset(Engine),
                **more,
            )
        )

    @rule()
    def arrive_for_a_cloud_model(self) -> None:
        self.count += 1
        wanted = request(f"r{self.count}", model="big:cloud", seats=0, arrived_s=self.world.now_s, cloud=True)
        self.world.arrive(wanted)

    @precondition(lambda self: self.world.claims)
    @rule(data=st.data())
    def answer_claim(self, data: st.DataObject) -> None:
        self.world.answer_claim(self.draw(data, self.world.claims))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.world.end(self.draw(data, self.world.running), Outcome.DONE)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), failure=st.sampled_from(list(Failure)))
    def fail(self, data: st.DataObject, failure: Failure) -> None:
        self.world.fail(self.draw(data, self.world.running), failure)

    @precondition(lambda self: self.world.open)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        self.world.client_leaves(self.draw(data, self.world.open))

    # Loads

    @precondition(lambda self: self.world.loads.under_way)
    @rule(data=st.data(), how=st.sampled_from(["loaded", "loaded", "loaded", "failed", "refused"]))
    def end_load(self, data: st.DataObject, how: str) -> None:
        nonce = self.draw(data, self.world.loads.under_way)
        self.world.loads.end(nonce, loaded=how == "loaded", refused=how == "refused")

    @rule(
        pins=st.lists(
            st.builds(
                events.Pin,
                st.sampled_from(MODELS),
                st.sampled_from(["", "a", "b"]),
                st.sampled_from([Runner(), Runner(8192)]),
            ),
            max_size=2,
        )
    )
    def pin(self, pins: list[events.Pin]) -> None:
        self.world.feed(events.PinsChanged(tuple(pins)))

    @rule(model=st.sampled_from(MODELS), backend_id=st.sampled_from([None, "a", "b"]), keep_alive_s=KEEP_ALIVES)
    def want_loaded(self, model: str, backend_id: str | None, keep_alive_s: float | None) -> None:
        self.world.feed(events.LoadWanted(model, backend_id, Runner(), keep_alive_s))

    @rule(model=st.sampled_from(MODELS), backend_id=st.sampled_from([None, "a", "b"]))
    def want_unloaded(self, model: str, backend_id: str | None) -> None:
        self.world.feed(events.UnloadWanted(model, backend_id))

    # Backends

    @rule(backend_id=st.sampled_from(ATOMS))
    def begin_look(self, backend_id: str) -> None:
        if len(self.looks) < 3:
            self.world.now_s += TICK_S
            self.looks.append(self.world.report(backend_id))

    @precondition(lambda self: self.looks)
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        """It shows what was so when it began."""
        self.world.feed(events.BackendReported(self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))))

    @rule(backend_id=st.sampled_from(ATOMS))
    def look(self, backend_id: str) -> None:
        self.world.look(backend_id)

    @rule(backend_id=st.sampled_from(ATOMS), told=st.booleans(), ready=st.booleans())
    def restart(self, backend_id: str, told: bool, ready: bool) -> None:
        if told:
            self.world.exit(backend_id)
        self.epochs[backend_id] += 1
        self.join(backend_id, *([] if ready else [Signal.STARTED]))

    @rule(backend_id=st.sampled_from(ATOMS), signal=st.sampled_from([Signal.ANSWERED, Signal.MISSED]))
    def signal(self, backend_id: str, signal: Signal) -> None:
        self.world.feed(events.BackendSignalled(backend_id, signal))

    @rule(backend_id=st.sampled_from(ATOMS), drain=st.booleans())
    def drain(self, backend_id: str, drain: bool) -> None:
        self.world.feed(events.DrainRequested(backend_id) if drain else events.UndrainRequested(backend_id))

    @rule(seconds=st.sampled_from([0.01, 0.6, 3.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # What must hold

    @invariant()
    def one_of_ours_at_a_time(self) -> None:
        under_way = self.world.scheduler.loads_under_way()
        places = [load.backend_id for load in under_way if not load.owner]
        assert len(places) == len(set(places))
        asked = {load.nonce for load in under_way if not load.closing}
        assert asked == set(self.world.loads.under_way), "each load that was asked for is remembered until it ends"

    @invariant()
    def what_waits_has_something_to_wait_for(self) -> None:
        world = self.world
        waiting = [ticket for ticket in world.scheduler.waiting() if not ticket.request.cloud]
        if waiting:
            assert world.wake_at_s < float("inf")

    @invariant()
    def demand_is_bounded(self) -> None:
        assert len(self.world.scheduler._planner._demand._sums) <= len(MODELS) * 5

    def teardown(self) -> None:
        """Once everything calms down all requests end, all loads end, and nothing is remembered."""
        world = self.world
        world.feed(events.PinsChanged(()))
        for backend_id in ATOMS:
            world.feed(events.UndrainRequested(backend_id))
            world.feed(events.BackendSignalled(backend_id, Signal.ANSWERED))
        for _ in range(40):  # what operators wanted is done, or forgotten
            world.answer_claims()
            for request_id in list(world.running):
                world.end(request_id)
            world.pass_time(10.0)
        promises.keep_to_the_end(world)
        for backend_id in ATOMS:
            assert not world.view(backend_id).loading
            assert not world.view(backend_id).closing
        assert not world.scheduler.loads_under_way()
        world.replay()


TestLoads = Loads.TestCase
TestLoads.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
