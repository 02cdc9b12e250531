"""Whether a model that must be loaded first has room on a backend's card. Owns samples of memory and loads in progress.

Only for engines that load at request time, which is Ollama. See `memory` for what is compared with what.
"""

from collections.abc import Iterable

from scheduler.domain import Backend, BackendView, Engine
from scheduler.memory import (
    GpuMemory,
    Reservations,
    card_holds,
    evictable_bytes,
    fresh,
    loaded_bytes,
    need_bytes,
    room_for,
)


class Loads:
    """Memory of all backends' cards, and what is being loaded onto them."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[float, GpuMemory | None]] = {}
        self._reservations = Reservations()

    def sampled(self, backend_id: str, memory: GpuMemory | None, asked_at_s: float) -> None:
        """A look at a card. Older than what is known: dropped. None: the driver tells nothing."""
        known = self._samples.get(backend_id)
        if known is None or known[0] <= asked_at_s:
            self._samples[backend_id] = asked_at_s, memory

    def memory(self, backend_id: str, now_s: float) -> GpuMemory | None:
        """What is known of a backend's card now."""
        known = self._samples.get(backend_id)
        return fresh(known[1], now_s) if known is not None else None

    def refusal(self, view: BackendView, model: str | None, now_s: float, views: Iterable[BackendView]) -> str | None:
        """Why a backend has no room for a model, with numbers; None: it has, has it loaded, or nobody can tell."""
        memory = self.memory(view.backend.id, now_s)
        if memory is None or view.backend.gpu is None or not needs_load(view, model):
            return None
        assert model is not None  # noqa: S101 - `needs_load` asks that
        if self._reservations.is_loading(view.backend.id, model, now_s):
            return None
        views = list(views)
        need = self._need(view.backend, model, views)
        cards = [self.memory(other.backend.id, now_s) for other in views if model in other.backend.models]
        if not any(card_holds(card, need) for card in cards):
            return None  # no card is large enough: Ollama then keeps a part of the model on the CPU
        reserved = self._reservations.reserved_bytes(view.backend.gpu.uuid, now_s, memory.sampled_s)
        return room_for(memory, need, reserved, evictable=evictable_bytes(memory, view.residencies))

    def begun(self, view: BackendView, model: str | None, now_s: float, views: Iterable[BackendView]) -> None:
        """A request goes to a backend; if that makes it load the model, the card's memory is kept for that."""
        if view.backend.gpu is not None and model is not None and needs_load(view, model):
            need = self._need(view.backend, model, views) or 0
            self._reservations.reserve(view.backend.id, view.backend.gpu.uuid, model, need, now_s)

    def seen(self, backend_id: str, models: Iterable[str], asked_at_s: float) -> None:
        """A look at a backend showed these models loaded."""
        self._reservations.seen(backend_id, models, asked_at_s)

    def release(self, backend_id: str, model: str) -> None:
        """A request that would have made the engine load a model ended without an answer: the load may have failed."""
        self._reservations.release(backend_id, model)

    def void(self, backend_id: str) -> None:
        """The engine is gone, and its loads with it."""
        self._reservations.clear(backend_id)

    def left(self, backend_id: str) -> None:
        """The backend is gone for good."""
        self.void(backend_id)
        self._samples.pop(backend_id, None)

    def _need(self, backend: Backend, model: str, views: Iterable[BackendView]) -> int | None:
        alike = (
            residency
            for other in views
            if other.backend.engine is backend.engine and other.backend.slots <= backend.slots
            for residency in other.residencies
        )
        return loaded_bytes(model, None, alike) or need_bytes(backend.model_bytes.get(model))


def needs_load(view: BackendView, model: str | None) -> bool:
    """Whether the backend must load the model before it can answer."""
    if model is None or view.backend.engine is not Engine.OLLAMA:
        return False
    return all(residency.model != model for residency in view.residencies)
