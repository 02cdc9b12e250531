"""What fits in a card's memory: what a sample told, what a load needs, what loads in progress will take. Pure.

Memory matters when a model must be loaded, and only then: engines allocate the KV cache of all slots with the weights,
and neither grows with use. So these questions are for an engine that loads when a request comes, which is Ollama; a
llama-server has loaded its model before it is ready at all.

Every estimate of a need here is a lower bound, and a fact that is missing speaks against nobody: what is refused would
surely not fit, what passes may still not fit.
"""

from collections.abc import Iterable

import msgspec

from scheduler.domain import Residency

MARGIN = 0.05
"""Share of a card that stays free: a load needs memory for its CUDA context and compute buffers beside weights and KV.
An 8B Q4_0 engine took 0.63 GB for them; 5 % of a card with 24 GiB are 1.2 GiB."""
LONGEST_LOAD_S = 120.0
"""A load that nobody saw end within this time reserves nothing any more."""
FRESH_S = 10.0
"""A sample older than this, five times the pause between two, says nothing of now."""

_GIB = 2**30


class GpuMemory(msgspec.Struct, frozen=True):
    """One card's memory at one time, as one backend on it sees it."""

    total_bytes: int
    """What programs can use: without the driver's reserve where the driver tells it apart."""
    free_bytes: int
    used_by_engine_bytes: int | None
    """What the backend's processes hold. None: not told, or none of the processes on the card is known to be its own
    (it holds nothing, or process ids are those of another name space)."""
    sampled_s: float
    """When the sample began, on the scheduler's scale."""


def need_bytes(model_bytes: int | None) -> int | None:
    """What loading a model takes at least: its weights. No engine tells beforehand what its KV cache will take.

    Args:
        model_bytes: size of the weights, as the engine lists the model; None or 0: not told.

    Returns:
        Bytes; None where even the weights are not known.
    """
    return model_bytes or None


def loaded_bytes(model: str, context_tokens: int | None, residencies: Iterable[Residency]) -> int | None:
    """What a model took where it was seen loaded: weights, KV and buffers in one, better than any formula.

    Args:
        model: canonical name.
        context_tokens: of one slot, as it would be loaded; None: not known.
        residencies: of backends that have no more slots than the one it would be loaded at.

    Returns:
        The largest size seen with at most that context: a larger one took more than this load will. None: not seen.
    """
    sizes = [
        one.size_bytes
        for one in residencies
        if one.model == model
        and one.size_bytes
        and (context_tokens is None or one.context_tokens is None or one.context_tokens <= context_tokens)
    ]
    return max(sizes, default=None)


def evictable_bytes(memory: GpuMemory | None, residencies: Iterable[Residency]) -> int | None:
    """What an engine can free by unloading all its models for one that it must load: Ollama does so by itself.

    It unloads a model only when its last request is through: that takes time, but needs no room. A model that is being
    loaded is in no residency, so it does not count.

    Returns:
        Bytes on the card; None: the engine tells of no sizes, and the driver does not either.
    """
    sizes = [one.gpu_bytes for one in residencies]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return sum(known)
    return None if memory is None else memory.used_by_engine_bytes


def fresh(memory: GpuMemory | None, now_s: float) -> GpuMemory | None:
    """The sample, unless it is too old to tell anything."""
    return memory if memory is not None and now_s - memory.sampled_s <= FRESH_S else None


def card_holds(memory: GpuMemory | None, need: int | None, margin: float = MARGIN) -> bool:
    """Whether a load of `need` bytes would fit if the card were empty; what is not known fits.

    Ollama loads what does not fit in part onto the CPU: where no card holds a model, a filter must not bar them all.
    """
    return memory is None or need is None or need <= memory.total_bytes - _margin_bytes(memory, margin)


def room_for(
    memory: GpuMemory | None,
    need: int | None,
    reserved: int = 0,
    margin: float = MARGIN,
    *,
    evictable: int | None = 0,
) -> str | None:
    """Whether a load fits on a card now: `need + reserved + margin * total <= free + evictable`.

    Args:
        memory: a fresh sample; None: not known.
        need: bytes of the load, see `need_bytes` and `loaded_bytes`; None: not known.
        reserved: bytes that other loads in progress will take, see `Reservations`.
        margin: share of the card that stays free, 0..1.
        evictable: bytes that the engine can free itself, see `evictable_bytes`; None: not known, maybe all.

    Returns:
        None: it fits, or nobody can tell. Otherwise a sentence with the numbers, in GiB, that says why not.
    """
    if memory is None or need is None:
        return None
    used = memory.total_bytes - memory.free_bytes
    freed = used if evictable is None else min(evictable, used)
    kept = _margin_bytes(memory, margin)
    if need + reserved + kept <= memory.free_bytes + freed:
        return None
    parts = [f"{_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} GiB are free"]
    if freed:
        parts.append(f"the engine could free {_gib(freed)}")
    if reserved:
        parts.append(f"loads in progress take {_gib(reserved)}")
    if kept:
        parts.append(f"{_gib(kept)} stay free")
    return f"loading takes {_gib(need)} GiB: {', '.join(parts)}"


def _margin_bytes(memory: GpuMemory, margin: float) -> int:
    return int(memory.total_bytes * margin)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f}"


class _Load:
    """A load in progress."""

    __slots__ = ("card", "need_bytes", "seen_s", "since_s")

    def __init__(self, card: str, need_bytes: int, since_s: float) -> None:
        self.card = card
        self.need_bytes = need_bytes
        self.since_s = since_s
        self.seen_s: float | None = None
        """When the first look began that showed the model loaded."""


class Reservations:
    """Loads in progress. Each keeps its memory on its card until the driver's free memory shows what it took.

    While a load goes on, what it has allocated so far counts twice, here and in the sample: for these seconds the card
    looks fuller than it is. Times are seconds on the scheduler's scale.
    """

    def __init__(self, longest_s: float = LONGEST_LOAD_S) -> None:
        self._longest_s = longest_s
        self._loads: dict[tuple[str, str], _Load] = {}

    def reserve(self, backend_id: str, card: str, model: str, need_bytes: int, now_s: float) -> None:
        """A request goes to a backend that must load the model for it. More requests for the same load change nothing.

        Args:
            backend_id: where it is loaded.
            card: UUID of its GPU; backends may share one.
            model: canonical name.
            need_bytes: as `room_for` was asked; 0 where it is not known.
            now_s: the time.
        """
        if self.is_loading(backend_id, model, now_s):
            return
        self._loads = {key: load for key, load in self._loads.items() if not self._over(load, now_s)}
        self._loads[backend_id, model] = _Load(card, need_bytes, now_s)

    def is_loading(self, backend_id: str, model: str, now_s: float) -> bool:
        """Whether the model is being loaded there already: another request for it needs no room of its own."""
        load = self._loads.get((backend_id, model))
        return load is not None and load.seen_s is None and not self._over(load, now_s)

    def seen(self, backend_id: str, models: Iterable[str], asked_at_s: float) -> None:
        """A look at a backend, begun at `asked_at_s`, showed these models loaded (canonical names)."""
        for model in models:
            load = self._loads.get((backend_id, model))
            if load is not None and load.seen_s is None and asked_at_s >= load.since_s:
                load.seen_s = asked_at_s

    def release(self, backend_id: str, model: str) -> None:
        """The load failed, or never began."""
        self._loads.pop((backend_id, model), None)

    def clear(self, backend_id: str) -> None:
        """The engine is gone, and its loads with it."""
        self._loads = {key: load for key, load in self._loads.items() if key[0] != backend_id}

    def reserved_bytes(self, card: str, now_s: float, sampled_s: float) -> int:
        """Bytes on a card that loads in progress will take, beyond what a sample begun at `sampled_s` shows as used."""
        return sum(
            load.need_bytes
            for load in self._loads.values()
            if load.card == card and not self._over(load, now_s) and (load.seen_s is None or sampled_s < load.seen_s)
        )

    def _over(self, load: _Load, now_s: float) -> bool:
        return now_s >= load.since_s + self._longest_s
