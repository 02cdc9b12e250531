"""How long the real scheduler takes for one event, with many backends and a long line. Measures, asserts nothing.

Time is the thread's own CPU time, so that what else the machine does hardly counts. The collector of reference cycles
is set as the server sets it (`proxy.garbage`), unless told otherwise.
"""

import gc
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from proxy import garbage
from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Dialect, Engine, Gpu, Measured, Operation, Outcome, Prompt, Request
from scheduler.health import Signal
from scheduler.policy import Policy

MODEL = "simulated:latest"
SLOTS, RUNNING = 16, 8
TENANTS, SYSTEMS, SESSIONS, TURNS = 50, 12, 2000, 6


class Times(NamedTuple):
    """Milliseconds of one event, while the line has its full length."""

    arrive_p50: float
    """A request comes and waits."""
    arrive_p99: float
    decide_p50: float
    """A request ends, and the seat goes to one of those that wait."""
    decide_p99: float
    decide_max: float


class Fleet:
    """The scheduler with claims granted at once, and a clock of its own."""

    def __init__(self, backends: int, waiting: int, policy: Policy) -> None:
        self.random = random.Random(1)
        self.now_s = 100.0
        self.running: dict[str, effects.Dispatch] = {}
        self.requests = 0
        self.scheduler = Scheduler(msgspec.structs.replace(policy, max_waiting=max(policy.max_waiting, 2 * waiting)))
        for number in range(backends):
            backend = Backend(
                id=f"card-{number}",
                engine=Engine.LLAMA_SERVER,
                slots=SLOTS,
                running_limit=RUNNING,
                models=frozenset({MODEL}),
                managed=True,
                slot_source="slots",
                epoch=1,
                gpu=Gpu(f"GPU-{number}", number, "NVIDIA GeForce RTX 4090", 24 << 30),
            )
            self.feed(events.BackendChanged(backend))
            for signal in (Signal.STARTED, Signal.ANSWERED):
                self.feed(events.BackendSignalled(backend.id, signal))

    def feed(self, event: events.Event) -> float:
        """Handle an event; the milliseconds that the event itself took, without the grants that follow."""
        self.now_s += 0.001
        start_s = time.thread_time()
        answers = self.scheduler.handle(event, self.now_s)
        took_ms = (time.thread_time() - start_s) * 1000
        pending = list(answers)
        while pending:
            match pending.pop(0):
                case effects.Claim() as claim:
                    pending += self.scheduler.handle(events.ClaimGranted(claim.request_id, claim.nonce), self.now_s)
                case effects.Dispatch() as dispatch:
                    self.running[dispatch.request_id] = dispatch
                case _:
                    pass
        return took_ms

    def arrive(self) -> float:
        """One more turn of some session."""
        self.requests += 1
        session = self.random.randrange(SESSIONS)
        request = Request(
            id=f"request-{self.requests}",
            operation=Operation.CHAT,
            dialect=Dialect.OLLAMA,
            model=MODEL,
            arrived_s=self.now_s,
            wait_until_s=self.now_s + 1e6,
            prompt=prompt(session, self.random.randrange(TURNS)),
            can_name_slot=True,
            tenant=f"tenant-{session % TENANTS}",
        )
        return self.feed(events.RequestArrived(request))

    def end(self) -> float:
        """One of those that run is done."""
        request_id = self.random.choice(list(self.running))
        del self.running[request_id]
        self.feed(events.AnswerStarted(request_id))
        measured = Measured(
            prompt_tokens=2000,
            cached_tokens=1400,
            output_tokens=200,
            prompt_ms=100.0,
            output_ms=3000.0,
            first_byte_ms=120.0,
        )
        return self.feed(events.RequestEnded(request_id, Outcome.DONE, measured))


def prompt(session: int, turn: int) -> Prompt:
    """A system prompt of 25 blocks, one of `SYSTEMS`, and 5 blocks per turn."""
    system = session % SYSTEMS
    blocks = [hash((system, number)) for number in range(25)]
    blocks += [hash((session, number, 1)) for number in range(5 * turn + 5)]
    ends = [(25 * 256, hash((system, -1)))]
    ends += [((25 + 5 * (number + 1)) * 256, hash((session, number, 2))) for number in range(turn + 1)]
    return Prompt(tuple(blocks), tuple(ends))


@contextmanager
def as_the_server() -> Iterator[None]:
    """The collector set as in the server, and as before afterwards."""
    before = gc.get_threshold()
    garbage.settle()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def measure(backends: int = 64, waiting: int = 1000, rounds: int = 400, policy: Policy | None = None) -> Times:
    """Fill a fleet and its line, then let requests end and come, so that the line keeps its length."""
    with as_the_server():
        return measure_as_it_is(backends, waiting, rounds, policy)


def measure_as_it_is(backends: int = 64, waiting: int = 1000, rounds: int = 400, policy: Policy | None = None) -> Times:
    """The same with the collector as Python has it."""
    fleet = Fleet(backends, waiting, policy or Policy())
    for _ in range(backends * RUNNING):
        fleet.arrive()
    for _ in range(3 * backends * RUNNING):  # slots with a past, and estimates that have learned
        fleet.end()
        fleet.arrive()
    for _ in range(waiting):
        fleet.arrive()
    assert len(fleet.scheduler.waiting()) >= waiting
    ends, arrivals = [], []
    for _ in range(rounds):
        ends.append(fleet.end())
        arrivals.append(fleet.arrive())
    return Times(statistics.median(arrivals), late(arrivals), statistics.median(ends), late(ends), max(ends))


def late(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)]


if __name__ == "__main__":
    times, plain = measure(), measure_as_it_is()
    for name, value in times._asdict().items():
        print(f"{name} {value:.2f} ms (with Python's own settings of its collector {getattr(plain, name):.2f})")
