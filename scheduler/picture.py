"""What a proxy has learned, as another one that starts can take it over. Frozen structs; owns no behaviour.

Times are seconds ago, since clocks of boxes differ; None: never. What requests run is not in it: that is told (`news`).
"""

import msgspec

from scheduler.domain import Prompt
from scheduler.priors import Rates

MOST_BLOCKS = 400_000
"""Blocks of prompts in one picture, about 4 MB; of more, the slots that were used last are told."""


class HeldPicture(msgspec.Struct, frozen=True, array_like=True):
    """What one slot, or one entry of a host cache, holds: see `held.Held`."""

    prompt: Prompt
    prompt_tokens: int
    tokens: int
    answer_tokens: int
    content: int
    counted: bool


class MirrorPicture(msgspec.Struct, frozen=True):
    """One backend's slots with one model. Slots with a running request are told as empty."""

    model: str
    """Empty for a llama-server, which has one."""
    trust: float
    sequences: int
    held: tuple[HeldPicture | None, ...]
    """By slot."""
    used_s_ago: tuple[float | None, ...]
    """By slot."""
    host: tuple[HeldPicture, ...] = ()
    """Its host cache, oldest first."""


class GainPicture(msgspec.Struct, frozen=True, array_like=True):
    """See `learning.Gain`."""

    agreed: int
    spread: float


class PairPicture(msgspec.Struct, frozen=True):
    """How fast one model runs on one backend: see `estimates`."""

    model: str
    rates: Rates
    batch_ms: float
    token_ms: float
    pair_ms: float
    copy_ms: float
    prefill: GainPicture
    copies: GainPicture
    factors: tuple[float, ...]
    """Of steps, by knot."""
    gains: tuple[GainPicture | None, ...]
    limit: int
    samples: int
    learned_s_ago: float | None


class MeanPicture(msgspec.Struct, frozen=True, array_like=True):
    """See `learning.Mean`."""

    value: float
    samples: int


class BackendPicture(msgspec.Struct, frozen=True):
    """All that was learned of one backend. Where it has another epoch by now, nothing of it counts."""

    backend_id: str
    epoch: int
    used_s_ago: float | None = None
    """When a request went there last."""
    tuned: str | None = None
    """The model by which its running limit was tuned last."""
    mirrors: tuple[MirrorPicture, ...] = ()
    pairs: tuple[PairPicture, ...] = ()
    tenants: tuple[tuple[int, str], ...] = ()
    """Who used each slot last: see `slot_shares`."""
    load_times: tuple[tuple[str, MeanPicture], ...] = ()
    """How long loading takes, by model: see `load_times`."""


class ReturnsPicture(msgspec.Struct, frozen=True):
    """See `returns`."""

    events: tuple[float, ...]
    exposed_s: tuple[float, ...]
    seen: int


class Picture(msgspec.Struct, frozen=True):
    """All that was learned."""

    backends: tuple[BackendPicture, ...] = ()
    returns: ReturnsPicture | None = None
    outputs: tuple[tuple[str, str | None, int | None, MeanPicture], ...] = ()
    """Lengths of answers by model, tenant and size of the client's limit."""
    tokens_per_byte: tuple[tuple[str, MeanPicture], ...] = ()
    shares: tuple[tuple[int, str, float], ...] = ()
    """Rank of the priority, tenant, weighted tokens left."""
