"""The two kinds of router that a simulated fleet can have: the real scheduler, and the baselines. Runs no engine.

A router is told what happened and answers with placements.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Dialect, Engine, Gpu, Measured, Operation, Outcome, Report, Request
from scheduler.health import Signal
from scheduler.policy import Policy
from scheduler.simulation.baselines import Baseline, Load
from scheduler.simulation.contents import Chain
from scheduler.simulation.conversations import Turn
from scheduler.simulation.engine import EngineSettings

MODEL = "simulated:latest"
CARD_BYTES = 24 * 1024**3
PATIENCE_S = 1e6
"""Clients wait for good: a figure that leaves out those that left is no figure."""


class Placement(NamedTuple):
    """A request goes to a backend."""

    request_id: str
    backend: int
    slot: int | None = None
    predicted_tokens: int = 0


class Refusal(NamedTuple):
    """A request is refused."""

    request_id: str
    reason: str


Answer = Placement | Refusal


class Router(Protocol):
    """What a fleet asks of a router. Times in milliseconds."""

    def arrived(self, request_id: str, turn: Turn, tenant: str, priority: str, now_ms: float) -> list[Answer]:
        """A client wants something."""
        ...

    def answer_started(self, request_id: str, now_ms: float) -> list[Answer]:
        """The first token went out."""
        ...

    def ended(self, request_id: str, measured: Measured, now_ms: float) -> list[Answer]:
        """An engine is done with a request."""
        ...

    def wake_ms(self) -> float:
        """When it wants to be woken; infinity: never."""
        ...

    def woken(self, now_ms: float) -> list[Answer]:
        """That time has come."""
        ...

    def reported(self, report: Report, now_ms: float) -> list[Answer]:
        """A look at a backend came back."""
        ...


class BaselineRouter:
    """A baseline, with the counts that it goes by and the line that it may have.

    Args:
        baseline: decides.
        backends: how many there are.
    """

    def __init__(self, baseline: Baseline, backends: int) -> None:
        self._baseline = baseline
        self._loads = [Load() for _ in range(backends)]
        self._line: deque[tuple[str, Chain]] = deque()
        self._running: dict[str, tuple[int, Chain, int]] = {}

    def arrived(self, request_id: str, turn: Turn, _tenant: str, _priority: str, now_ms: float) -> list[Answer]:
        """Placed at once, or put in the line."""
        self._line.append((request_id, turn.content.first(turn.prompt_tokens)))
        return self._place(now_ms)

    def answer_started(self, request_id: str, _now_ms: float) -> list[Answer]:
        """Its prompt is computed."""
        backend, _prompt, fresh = self._running[request_id]
        self._loads[backend].prefill_tokens -= fresh
        return []

    def ended(self, request_id: str, _measured: Measured, now_ms: float) -> list[Answer]:
        """Something may have fallen free."""
        backend, prompt, _fresh = self._running.pop(request_id)
        self._loads[backend].requests -= 1
        self._loads[backend].context_tokens -= prompt.tokens
        return self._place(now_ms)

    def wake_ms(self) -> float:
        """Never."""
        return inf

    def woken(self, _now_ms: float) -> list[Answer]:
        """Nothing to do."""
        return []

    def reported(self, _report: Report, _now_ms: float) -> list[Answer]:
        """None of them looks."""
        return []

    def _place(self, now_ms: float) -> list[Answer]:
        placed: list[Answer] = []
        while self._line:
            request_id, prompt = self._line[0]
            backend = self._baseline.choose(prompt, self._loads, now_ms)
            if backend is None:
                break
            self._line.popleft()
            believed = self._baseline.believed_tokens()
            load, fresh = self._loads[backend], prompt.tokens - believed
            load.requests += 1
            load.prefill_tokens += fresh
            load.context_tokens += prompt.tokens
            self._running[request_id] = backend, prompt, fresh
            placed.append(Placement(request_id, backend, None, believed))
        return placed


class SchedulerRouter:
    """The product's own scheduler: events in, effects done in no time; claims are granted at once.

    Args:
        policy: as in the product.
        engines: settings of each card's engine.
        running_limit: requests that may run at once on each; None: as many as it has slots.
        auto_limit: let the scheduler lower that by what it learns.
    """

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[EngineSettings],
        *,
        running_limit: int | None = None,
        auto_limit: bool = False,
    ) -> None:
        self._scheduler = Scheduler(policy)
        self._numbers: dict[str, int] = {}
        self._wake_s = inf
        for number, settings in enumerate(engines):
            name = settings.gpu_name
            backend = Backend(
                id=f"card-{number}",
                engine=Engine.LLAMA_SERVER,
                slots=settings.slots,
                running_limit=min(settings.slots, running_limit or settings.slots),
                auto_limit=auto_limit,
                models=frozenset({MODEL}),
                gpu=None if name is None else Gpu(f"GPU-{number}", number, name, CARD_BYTES),
                managed=True,
                epoch=1,
                host_cache_tokens=settings.host_tokens,
                slot_source="slots",
            )
            self._numbers[backend.id] = number
            self._feed(events.BackendChanged(backend), 0.0)
            for signal in (Signal.STARTED, Signal.ANSWERED):
                self._feed(events.BackendSignalled(backend.id, signal), 0.0)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler itself, to look at."""
        return self._scheduler

    def arrived(self, request_id: str, turn: Turn, tenant: str, priority: str, now_ms: float) -> list[Answer]:
        """See `Router`."""
        request = Request(
            id=request_id,
            operation=Operation.CHAT,
            dialect=Dialect.OLLAMA,
            model=MODEL,
            arrived_s=now_ms / 1000,
            wait_until_s=now_ms / 1000 + PATIENCE_S,
            stream=True,
            tenant=tenant,
            priority=priority,
            prompt_bytes=turn.prompt.size_bytes,
            prompt=turn.prompt,
            can_name_slot=True,
        )
        return self._feed(events.RequestArrived(request), now_ms)

    def answer_started(self, request_id: str, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return self._feed(events.AnswerStarted(request_id), now_ms)

    def ended(self, request_id: str, measured: Measured, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return self._feed(events.RequestEnded(request_id, Outcome.DONE, measured), now_ms)

    def wake_ms(self) -> float:
        """See `Router`."""
        return self._wake_s * 1000 * (1 + 1e-15)  # seconds to milliseconds and back must not come out earlier

    def woken(self, now_ms: float) -> list[Answer]:
        """See `Router`."""
        self._wake_s = inf
        return self._feed(events.TimePassed(), now_ms)

    def reported(self, report: Report, now_ms: float) -> list[Answer]:
        """See `Router`."""
        return self._feed(events.BackendReported(report), now_ms)

    def _feed(self, event: events.Event, now_ms: float) -> list[Answer]:
        answers: list[Answer] = []
        pending = [event]
        while pending:
            for effect in self._scheduler.handle(pending.pop(0), now_ms / 1000):
                pending += self._asked(effect, now_ms)
                match effect:
                    case effects.Dispatch():
                        best = effect.decision.best
                        reused = 0 if best is None else best.reused_tokens
                        number = self._numbers[effect.backend_id]
                        answers.append(Placement(effect.request_id, number, effect.slot, reused))
                    case effects.Reject():
                        answers.append(Refusal(effect.request_id, effect.rejection.value))
                    case effects.WakeAt():
                        self._wake_s = min(self._wake_s, effect.at_s)
                    case _:
                        pass
        return answers

    def _asked(self, effect: effects.Effect, _now_ms: float) -> list[events.Event]:
        """Do what an effect asks of the store; returns what it answers at once."""
        return [events.ClaimGranted(effect.request_id, effect.nonce)] if isinstance(effect, effects.Claim) else []
