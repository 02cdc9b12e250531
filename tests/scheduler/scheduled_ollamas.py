"""The real scheduler before Ollamas in virtual time: what its plans of loads come to in minutes of shifting demand."""

from collections.abc import Sequence

from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.domain import Backend, Dialect, Engine, Measured, Operation, Outcome, Report, Request, Residency
from scheduler.health import Signal
from scheduler.names import canonical
from scheduler.policy import Policy
from scheduler.runner import Runner, RunnerRules, normalise
from tests.bench.residency_traffic import Ask
from tests.scheduler.ollamas import PREFILL_S, Job, Ollama, Ollamas

LOOK_EVERY_S = 2.0
TRAINED = 131_072


class Scheduled(Ollamas):
    """The real scheduler; claims are granted at once, and looks see what is loaded."""

    def __init__(self, policy: Policy | None = None, models: Sequence[str] = ("alpha",), **settings: float) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.scheduler = Scheduler(policy or Policy())
        self.requests: dict[str, Ask] = {}
        self.rejected: list[effects.Reject] = []
        self.plans: list[tuple[float, effects.Load]] = []
        names = frozenset(canonical(name) for name in models)
        for engine in self.engines:
            backend = Backend(
                id=f"gpu-{engine.number}",
                engine=Engine.OLLAMA,
                slots=engine.slots,
                running_limit=engine.slots,
                models=names,
                contexts=dict.fromkeys(names, self.context),
                most_context=dict.fromkeys(names, TRAINED),
                model_bytes=dict.fromkeys(names, 4_661_224_676),
                max_loaded=1,
                epoch=1,
            )
            self.feed(events.BackendChanged(backend))
            for signal in (Signal.STARTED, Signal.ANSWERED):
                self.feed(events.BackendSignalled(backend.id, signal))
            self.timeline.at(engine.number * 0.1, lambda engine=engine: self._look(engine))  # type: ignore[misc]

    def arrive(self, ask: Ask) -> None:
        kind, now_s = ask.kind, self.timeline.now_s
        request_id = f"r{ask.number}"
        self.requests[request_id] = ask
        native = not kind.path.startswith("/v1/")
        asked = Runner(num_ctx=kind.num_ctx, **dict(kind.more))  # type: ignore[arg-type]
        self.feed(
            events.RequestArrived(
                Request(
                    id=request_id,
                    operation=Operation.GENERATE if kind.path == "/api/generate" else Operation.CHAT,
                    dialect=Dialect.OLLAMA if native else Dialect.OPENAI,
                    model=canonical(ask.model),
                    arrived_s=now_s,
                    wait_until_s=now_s + 1e6,
                    stream=True,
                    max_output_tokens=ask.tokens,
                    runner=normalise(asked, canonical(ask.model), RunnerRules()) if native else None,
                )
            )
        )

    def feed(self, event: events.Event) -> None:
        for effect in self.scheduler.handle(event, self.timeline.now_s):
            self._perform(effect)

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Claim():
                self.timeline.after(0.001, lambda: self.feed(events.ClaimGranted(effect.request_id, effect.nonce)))
            case effects.Dispatch():
                self._dispatch(effect)
            case effects.Load():
                self._load(effect)
            case effects.Unload():
                self._engine(effect.backend_id).unload(effect.model)
            case effects.Reject():
                self.rejected.append(effect)
                raise AssertionError(f"{effect.request_id} is refused: {effect.rejection} {effect.detail}")
            case effects.WakeAt():
                self.timeline.at(effect.at_s, lambda: self.feed(events.TimePassed()))
            case _:
                pass

    def _engine(self, backend_id: str) -> Ollama:
        return self.engines[int(backend_id.rpartition("-")[2])]

    def _dispatch(self, effect: effects.Dispatch) -> None:
        engine, ask = self._engine(effect.backend_id), self.requests[effect.request_id]
        said = effect.runner.num_ctx if effect.runner is not None else ask.kind.num_ctx

        def ended(job: Job) -> None:
            self.note(job, engine.number)
            measured = Measured(prompt_tokens=220, output_tokens=ask.tokens, prompt_ms=PREFILL_S * 1000)
            self.feed(events.RequestEnded(effect.request_id, Outcome.DONE, measured))

        job = Job(ask, said or self.context, self.timeline.now_s, ended)
        one = engine.fits(job)
        assert one is not None, f"{ask} goes to {effect.backend_id}, which has {engine.open_stays}"
        assert one.running < engine.slots, f"{ask} goes to {effect.backend_id}, which is full"
        engine.submit(job)
        self.timeline.after(PREFILL_S, lambda: self.feed(events.AnswerStarted(effect.request_id)))

    def _load(self, effect: effects.Load) -> None:
        engine, begun_s = self._engine(effect.backend_id), self.timeline.now_s
        assert not engine.loading, f"a second load at {effect.backend_id}: {effect}"
        for one in engine.loaded.values():
            assert one.idle, f"{effect} while {one.model} is busy"
        self.plans.append((begun_s, effect))

        def done() -> None:
            took_ms = (self.timeline.now_s - begun_s) * 1000
            ended = events.LoadEnded(effect.backend_id, effect.model, effect.nonce, loaded=True, took_ms=took_ms)
            self.feed(ended)

        engine.preload(effect.model, effect.runner.num_ctx or self.context, effect.unload, done)

    def _look(self, engine: Ollama) -> None:
        """The look begins; what it saw comes a moment later."""
        report = Report(
            f"gpu-{engine.number}",
            1,
            self.timeline.now_s,
            residencies=tuple(
                Residency(one.model, context_tokens=one.context, expires_at_unix_s=None)
                for one in engine.loaded.values()
            ),
        )
        self.timeline.after(0.01, lambda: self.feed(events.BackendReported(report)))
        self.timeline.after(LOOK_EVERY_S, lambda: self._look(engine))
