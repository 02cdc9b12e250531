"""How models are loaded at Ollamas, as far as requests are concerned: what they want and what they are told.

The rules come from [residency] of the configuration. Which loaded model a request runs on, and what is loaded where, is
the scheduler's decision; this puts its inputs together and keeps those who carry it out.
"""

from collections import Counter

import msgspec

from proxy.config_residency import ResidencyConfig
from proxy.context_note import ContextNote
from proxy.dialects import Call, ClientError
from proxy.dialects.runner import Residing, without_keep_alive
from proxy.dispatcher import Dispatcher
from proxy.loads import Loads
from proxy.pins import Pins
from proxy.ticketed import Assignment
from scheduler.domain import Backend, Dialect, Engine, Operation, Request
from scheduler.names import canonical, short
from scheduler.runner import Runner, RunnerRules, context_of, default_context, grown, normalise

WRITES = frozenset({Operation.CHAT, Operation.GENERATE})
"""Operations whose prompt and answer share a context."""
UNLOADS_BELOW_S = 1.0
"""A `keep_alive` below this has a model unloaded as good as one of 0 does, which it may well be as Ollama reads it:
Go's durations have no fractions of a nanosecond, and numbers no fractions of a second."""


class Residencies:
    """One proxy's side of how models are loaded."""

    def __init__(self, config: ResidencyConfig, dispatcher: Dispatcher, loads: Loads, pins: Pins) -> None:
        self.loads = loads
        self.pins = pins
        self.exceeded: Counter[str] = Counter()
        """Requests by backend whose prompt and answer may not have fit their context."""
        self._dispatcher = dispatcher
        self._config = config
        self.rules = rules_of(config)
        self.configure(config)

    def configure(self, config: ResidencyConfig) -> None:
        """Take over other rules; what is loaded stays loaded."""
        self._config = config
        self.rules = rules_of(config)
        self.pins.configure(
            {name: normalise(Runner(), name, self.rules) for name, model in config.models.items() if model.pin}
        )

    def guarded(self, call: Call, *, is_admin: bool) -> Call:
        """The call as far as its client may have its way: only some may unload models.

        Raises:
            ClientError: 403: it does nothing else, or the model is pinned.
        """
        kept_s = call.keep_alive_s
        if call.dialect is not Dialect.OLLAMA or kept_s is None or not 0 <= kept_s < UNLOADS_BELOW_S:
            return call
        if call.operation is not Operation.UNLOAD:
            return call if is_admin or self._config.clients_may_unload else kept_loaded(call)
        name = short(call.model or "")
        if not (is_admin or self._config.clients_may_unload):
            raise ClientError(
                403,
                f"unloading {name} is closed to this client: run `slotgate unload {name}` on the box, use an API key "
                "with admin = true (tenancy.keys), or set residency.clients_may_unload = true",
            )
        if self.pins.is_pinned(canonical(name)):
            raise ClientError(403, f"{name} is pinned: {self.pins.cure(canonical(name))} lets it be unloaded")
        return call

    def wish(self, call: Call, request: Request) -> Request:
        """The request with the options that it shall run with, and how long its model shall stay loaded.

        Args:
            call: what the client asked for.
            request: made of it, without these.
        """
        runner = None
        if call.runner is not None and request.model is not None:
            runner = normalise(call.runner, request.model, self.rules)
            if self.rules.grow_context and call.operation in WRITES:
                runner = self._grown(runner, request)
        return msgspec.structs.replace(request, runner=runner, keep_alive_s=call.keep_alive_s)

    def residing(self, call: Call, backend: Backend, runner: Runner | None) -> Residing:
        """How the model is loaded that an attempt goes to; `runner` is what the scheduler says of that."""
        model = canonical(call.model or "")
        return Residing(
            runner=runner,
            default_context=default_context(model, backend),
            most_context=backend.most_context.get(model),
            stays=self.pins.keeps(model, backend, runner),
        )

    def note_context(self, request: Request, backend: Backend, assignment: Assignment) -> ContextNote | None:
        """Whether an Ollama would leave out messages, or shift its context, for what it gets; counted where it would.

        None: everything fits, or nobody can tell.
        """
        if backend.engine is not Engine.OLLAMA or request.operation not in WRITES or request.cloud:
            return None
        context = self._context(request, backend, assignment.runner)
        if context is None:
            return None
        tokens = self._dispatcher.scheduler.outlook.tokens(request)
        if tokens + (request.max_output_tokens or 0) <= context:
            return None
        self.exceeded[backend.id] += 1
        return ContextNote(tokens, request.max_output_tokens, context)

    def _grown(self, runner: Runner, request: Request) -> Runner | None:
        model = request.model or ""
        backends = [
            each for each in self._dispatcher.backends.values() if each.engine is Engine.OLLAMA and model in each.models
        ]
        defaults = [known for each in backends if (known := default_context(model, each)) is not None]
        mosts = [known for each in backends if (known := each.most_context.get(model)) is not None]
        tokens = self._dispatcher.scheduler.outlook.tokens(request) + (request.max_output_tokens or 0)
        return grown(runner, tokens, self.rules, min(defaults, default=None), max(mosts, default=None))

    def _context(self, request: Request, backend: Backend, runner: Runner | None) -> int | None:
        model = request.model or ""
        known = context_of(runner or Runner(), model, backend)
        if known is not None:
            return known
        snapshot = self._dispatcher.scheduler.snapshot(self._dispatcher.clock())
        return next(
            (
                residency.context_tokens
                for view in snapshot.backends
                if view.backend.id == backend.id
                for residency in view.residencies
                if residency.model == model
            ),
            None,
        )


def rules_of(config: ResidencyConfig) -> RunnerRules:
    """The rules by which wishes are normalised."""
    return RunnerRules(
        context_buckets=tuple(config.context_buckets),
        keep_options=config.options == "keep",
        contexts={name: model.num_ctx for name, model in config.models.items() if model.num_ctx is not None},
        grow_context=config.grow_context,
    )


def kept_loaded(call: Call) -> Call:
    """An Ollama call that says nothing of how long its model stays loaded."""
    fields = {name: value for name, value in call.fields.items() if name != "keep_alive"}
    return msgspec.structs.replace(call, body=without_keep_alive(call.body), fields=fields, keep_alive_s=None)
