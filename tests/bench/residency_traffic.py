"""Who asks what when, for the residency benchmark: seeded, the same for every side. Knows no HTTP and no clock."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from proxy.emulated.text import WORDS

TENANTS = 12
"""System prompts, of which each client sends one."""
SYSTEM_TOKENS, QUESTION_TOKENS = 160, 60
SHORTEST, LONGEST = 60, 600
"""Tokens of an answer; about half of them are below `MEDIAN`."""
MEDIAN, SIGMA = 220, 0.6


class Kind(NamedTuple):
    """One kind of client."""

    path: str
    num_ctx: int | None = None
    """What it says in `options`; None: nothing. The /v1 routes cannot say it."""
    more: tuple[tuple[str, int], ...] = ()
    """Further options by which Ollamas load."""


CONTEXTS = (None, 2048, 4096, 8192)
NATIVE = tuple(Kind(path, num_ctx) for path in ("/api/chat", "/api/generate") for num_ctx in CONTEXTS)
MIX = (*NATIVE, Kind("/v1/chat/completions"), Kind("/v1/messages"))
"""Clients that do not agree on a context, and some that cannot say one."""
ODD = (
    *MIX,
    *(Kind("/api/chat", num_ctx) for num_ctx in (1500, 3000, 5000, 6000, 7500)),
    Kind("/api/chat", None, (("num_batch", 256),)),
    Kind("/api/generate", 4096, (("num_gpu", 99),)),
    Kind("/api/chat", 8192, (("num_thread", 8),)),
)
"""The same, some that want what nobody else wants, and some that say how the engine shall be run."""
PLAIN = (Kind("/api/chat"),)


class Ask(NamedTuple):
    """One request."""

    number: int
    at_s: float
    """When it is due, in the engines' time."""
    model: str
    kind: Kind
    tenant: int
    tokens: int
    """Of its answer."""


Popularity = Callable[[float], Sequence[float]]
"""Share of each model at a time, given as a share of the run, 0..1."""


def steady(*shares: float) -> Popularity:
    """The same all the time."""
    return lambda _at: shares


def steps(*each: Sequence[float]) -> Popularity:
    """One after the other, each for the same time."""
    return lambda at: each[min(len(each) - 1, int(at * len(each)))]


def sine(low: float, high: float) -> Popularity:
    """Two models: the first one's share goes from `high` to `low` and back, as a cosine does."""

    def shares(at: float) -> Sequence[float]:
        first = (high + low) / 2 + (high - low) / 2 * math.cos(2 * math.pi * at)
        return first, 1 - first

    return shares


def asks(
    seed: int, duration_s: float, per_s: float, models: Sequence[str], popularity: Popularity, kinds: Sequence[Kind]
) -> list[Ask]:
    """Independent clients (Poisson), by arrival.

    Args:
        seed: of all chance.
        duration_s: how long they arrive, in the engines' time.
        per_s: how many, on average.
        models: their names.
        popularity: which of them is asked for when.
        kinds: all of them equally often.
    """
    random = Random(seed)
    made: list[Ask] = []
    at_s = random.expovariate(per_s)
    while at_s < duration_s:
        model = random.choices(models, popularity(at_s / duration_s))[0]
        tokens = min(LONGEST, max(SHORTEST, int(random.lognormvariate(math.log(MEDIAN), SIGMA))))
        made.append(Ask(len(made), at_s, model, random.choice(kinds), random.randrange(TENANTS), tokens))
        at_s += random.expovariate(per_s)
    return made


def body(ask: Ask) -> dict[str, Any]:
    """What the request says, always for a stream."""
    system, question = _words(f"system {ask.tenant}", SYSTEM_TOKENS), _words(f"ask {ask.number}", QUESTION_TOKENS)
    fields: dict[str, Any] = {"model": ask.model, "stream": True}
    user = {"role": "user", "content": question}
    if ask.kind.path.startswith("/v1/"):
        fields["max_tokens"] = ask.tokens
        if ask.kind.path == "/v1/messages":
            return fields | {"system": system, "messages": [user]}
        return fields | {"messages": [{"role": "system", "content": system}, user]}
    fields["options"] = {"num_predict": ask.tokens, **dict(ask.kind.more)}
    if ask.kind.num_ctx is not None:
        fields["options"]["num_ctx"] = ask.kind.num_ctx
    if ask.kind.path == "/api/generate":
        return fields | {"system": system, "prompt": question}
    return fields | {"messages": [{"role": "system", "content": system}, user]}


def _words(name: str, count: int) -> str:
    random = Random(name)
    return " ".join(random.choice(WORDS) for _ in range(count))
