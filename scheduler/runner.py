"""Runner options: what an Ollama loads a model with, and which loaded model a request can use. Pure.

An Ollama has one runner per file of weights. A request whose options differ from those of the runner makes it load them
anew, whatever name they have. So wishes are normalised: contexts are rounded up to a few sizes, and other options are
left out unless the operator says otherwise; and a request that asks for less than a loaded model offers is sent there
with the loaded model's own options.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from scheduler.domain import Backend, Request, Residency

BUCKETS = (2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
"""Contexts in tokens: doubling wastes at most half of a KV cache, and each size between would be one more reload."""


class Runner(msgspec.Struct, frozen=True):
    """The options by which an Ollama loads a model; a request with others makes it load the model anew.

    Source: Ollama 0.33, server/sched.go:1381-1431. None: not said, which is the engine's default.
    """

    num_ctx: int | None = None
    """Context of one slot, in tokens."""
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    use_mmap: bool | None = None
    draft_num_predict: int | None = None
    shift: bool | None = None
    """Whether a full context drops its oldest half (a field of the request, not one of its options)."""
    exact: bool = False
    """Its context is the operator's choice for the model: it is loaded with that, not with a larger default. Not said
    to the engine."""


LEAST_DEFAULT = 4096
"""Context in tokens that an Ollama gives at least where nobody set it lower.

Source: Ollama 0.33, server/routes.go:2043-2058."""

OPTIONS = ("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "draft_num_predict")
"""Those that are kept only where the operator wants it. They change how fast a model runs, not what it answers."""


class RunnerRules(msgspec.Struct, frozen=True):
    """How wishes are normalised."""

    context_buckets: tuple[int, ...] = BUCKETS
    """Contexts in tokens, ascending: a wish is rounded up to one of them; one above the last stays as it is."""
    keep_options: bool = False
    """Keep all options of a wish; False: only its context, and `shift`, which changes answers."""
    contexts: dict[str, int] = {}
    """Context in tokens that all requests for a model get, by canonical name, whatever they ask for."""
    grow_context: bool = False
    """Give a request a larger context than it asks for where its prompt and answer would not fit; see `grown`."""


def normalise(asked: Runner, model: str, rules: RunnerRules) -> Runner:
    """What a request shall run with.

    Args:
        asked: what its client said. A context that is not positive counts as not said, as for an Ollama.
        model: canonical name.
        rules: of the operator.
    """
    kept = asked if rules.keep_options else Runner(asked.num_ctx, shift=asked.shift)
    pinned = rules.contexts.get(model)
    if pinned is not None:
        return msgspec.structs.replace(kept, num_ctx=pinned, exact=True)
    wanted = asked.num_ctx if asked.num_ctx is not None and asked.num_ctx > 0 else None
    return msgspec.structs.replace(kept, num_ctx=wanted and bucket(wanted, rules), exact=False)


def bucket(tokens: int, rules: RunnerRules) -> int:
    """The smallest configured context that holds so many tokens; where none does: just so many."""
    place = bisect_left(rules.context_buckets, tokens)
    return rules.context_buckets[place] if place < len(rules.context_buckets) else tokens


def grown(
    runner: Runner | None, tokens: int, rules: RunnerRules, default: int | None = None, most: int | None = None
) -> Runner | None:
    """The options with a context that holds a request, where theirs does not.

    Args:
        runner: normalised; None: its API cannot say, so nothing can be changed.
        tokens: of its prompt and its answer together, as predicted.
        rules: of the operator.
        default: the engine's context in tokens, for options that do not say; None: not known, so it may be enough.
        most: the context that the model was trained for, in tokens; None: not known.
    """
    if runner is None or runner.exact:
        return runner
    context = runner.num_ctx if runner.num_ctx is not None else default
    if context is None or tokens <= context or (most is not None and context >= most):
        return runner
    return msgspec.structs.replace(runner, num_ctx=_clamped(bucket(tokens, rules), most))


def default_context(model: str, backend: "Backend") -> int | None:
    """Context of one slot, in tokens, that an engine gives a model where nothing is said; None: not known."""
    return _clamped(backend.contexts.get(model), backend.most_context.get(model))


def context_of(runner: Runner, model: str, backend: "Backend") -> int | None:
    """Context of one slot, in tokens, that a model loaded with these options has; None: not known."""
    if runner.num_ctx is None:
        return default_context(model, backend)
    return _clamped(runner.num_ctx, backend.most_context.get(model))


def load_with(runner: Runner | None, model: str, backend: "Backend") -> Runner:
    """The options to load a model with for requests that want these.

    A context below the engine's default becomes that default: so clients that cannot say, or ask for less, share it.
    Where the default is not known it is hardly less than `LEAST_DEFAULT`; a look at what was loaded tells.
    """
    if runner is None:
        return Runner()
    default, wanted = default_context(model, backend), context_of(runner, model, backend)
    if runner.exact or wanted is None or wanted > (LEAST_DEFAULT if default is None else default):
        return runner
    return msgspec.structs.replace(runner, num_ctx=None)


def shares(model: str, residency: "Residency", backend: "Backend") -> bool:
    """Whether a loaded model is this one: it has its name, or is loaded from the same weights."""
    if residency.model == model:
        return True
    weights = backend.weights.get(model)
    return weights is not None and weights == (residency.weights or backend.weights.get(residency.model))


def suits(model: str, runner: Runner | None, residency: "Residency", backend: "Backend") -> bool:
    """Whether requests for a model with these options run on a loaded model without a reload.

    Args:
        model: canonical name.
        runner: normalised options; None: nothing can be said, so the engine compares its default with what is loaded.
        residency: what is loaded.
        backend: where. What is not known of it speaks against nobody.
    """
    if not shares(model, residency, backend):
        return False
    asked = residency.asked
    is_other = asked is not None and asked.num_ctx is None and not _same_default(model, residency, backend)
    if asked is not None and _same(asked, runner or Runner()) and not is_other:
        return True  # the engine was told just that, whatever it made of it
    loaded = asked or residency.runner or Runner()
    if runner is None and asked is not None and any(getattr(asked, name) is not None for name in OPTIONS):
        return False
    if (runner is not None and runner.shift is False) is not (loaded.shift is False):
        return False
    if runner is not None and any(
        getattr(runner, name) is not None and getattr(runner, name) != getattr(loaded, name) for name in OPTIONS
    ):
        return False
    wanted = context_of(runner or Runner(), model, backend)
    has = _context(residency, backend)
    if wanted is None and runner is None and asked is not None and (asked.num_ctx is not None or is_other):
        return False  # the default is not known, and this is hardly it
    if has is None and is_other:
        return False  # what to say so that the engine takes it as it is comes with the next look
    if wanted is None or has is None:
        return True
    return has == wanted if runner is None else has >= wanted


def fits(request: "Request", residency: "Residency", backend: "Backend") -> bool:
    """Whether a request runs on a loaded model without a reload; one for any model does."""
    return request.model is None or suits(request.model, request.runner, residency, backend)


def told(residency: "Residency", backend: "Backend") -> Runner | None:
    """What to say to the engine so that it takes this loaded model as it is; None: nothing is known of its options.

    The context is told as it is, also where it is the engine's default: the engine compares numbers. None within the
    options: nothing must be said of that one.
    """
    loaded = residency.asked or residency.runner
    context = _context(residency, backend)
    if loaded is None:
        return None if context is None else Runner(context)
    return msgspec.structs.replace(loaded, num_ctx=context, exact=False)


def _context(residency: "Residency", backend: "Backend") -> int | None:
    """Context of one slot of a loaded model: as reported, else as it follows from what it was loaded with."""
    if residency.context_tokens is not None or residency.asked is None:
        return residency.context_tokens
    return context_of(residency.asked, residency.model, backend)


def _same_default(model: str, residency: "Residency", backend: "Backend") -> bool:
    """Whether an engine gives both names the same context where nothing is said; their Modelfiles may differ."""
    return residency.model == model or default_context(model, backend) == default_context(residency.model, backend)


def _same(one: Runner, other: Runner) -> bool:
    return msgspec.structs.replace(one, exact=False) == msgspec.structs.replace(other, exact=False)


def _clamped(context: int | None, most: int | None) -> int | None:
    return context if context is None or most is None else min(context, most)
