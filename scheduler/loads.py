"""Whether a model that must be loaded first has room on a backend's card. Owns samples of memory and loads in progress.

Only for engines that load at request time, which is Ollama. See `memory` for what is compared with what. What is loaded
where, and when, is `loading`'s business.
"""

from collections.abc import Iterable

from scheduler.domain import Backend, BackendView, Engine, Residency
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
from scheduler.residencies import loads
from scheduler.runner import shares


class Loads:
    """Memory of all backends' cards, and what is being loaded onto them."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[float, GpuMemory | None]] = {}
        self._reservations = Reservations()
        self._views: tuple[BackendView, ...] = ()
        self._needs: dict[tuple[str, int | None, Engine, int], int | None] = {}
        """What models were seen to take at `_views`, by model, context, engine and its slots: one decision asks this
        of each backend."""

    def sampled(self, backend_id: str, memory: GpuMemory | None, asked_at_s: float) -> None:
        """A look at a card. Older than what is known: dropped. None: the driver tells nothing."""
        known = self._samples.get(backend_id)
        if known is None or known[0] <= asked_at_s:
            self._samples[backend_id] = asked_at_s, memory

    def memory(self, backend_id: str, now_s: float) -> GpuMemory | None:
        """What is known of a backend's card now."""
        known = self._samples.get(backend_id)
        return fresh(known[1], now_s) if known is not None else None

    def refusal(
        self,
        view: BackendView,
        model: str | None,
        now_s: float,
        views: tuple[BackendView, ...],
        *,
        evicting: Iterable[Residency] | None = None,
        context_tokens: int | None = None,
    ) -> str | None:
        """Why a backend has no room for a model, with numbers; None: it has, has it loaded, or nobody can tell.

        Args:
            view: the backend.
            model: canonical name.
            now_s: the time.
            views: of the whole fleet.
            evicting: what is unloaded for it; None: whatever the backend has loaded.
            context_tokens: context of one slot that it is loaded with; None: not known.
        """
        memory = self.memory(view.backend.id, now_s)
        if memory is None or view.backend.gpu is None or (evicting is None and not needs_load(view, model)):
            return None
        if model is None:
            return None
        if self._reservations.is_loading(view.backend.id, model, now_s):
            return None
        need = self._need(view.backend, model, views, context_tokens)
        if not card_holds(memory, need) and not any(
            model in other.backend.models and card_holds(self.memory(other.backend.id, now_s), need) for other in views
        ):
            return None  # no card is large enough: Ollama then keeps a part of the model on the CPU
        reserved = self._reservations.reserved_bytes(view.backend.gpu.uuid, now_s, memory.sampled_s)
        leaving = view.residencies if evicting is None else evicting
        return room_for(memory, need, reserved, evictable=evictable_bytes(memory, leaving))

    def begun(
        self,
        view: BackendView,
        model: str,
        now_s: float,
        views: tuple[BackendView, ...],
        context_tokens: int | None = None,
    ) -> None:
        """A backend loads a model: its card's memory is kept for that."""
        if view.backend.gpu is not None and loads(view.backend):
            need = self._need(view.backend, model, views, context_tokens) or 0
            self._reservations.reserve(view.backend.id, view.backend.gpu.uuid, model, need, now_s)

    def seen(self, backend_id: str, models: Iterable[str], asked_at_s: float) -> None:
        """A look at a backend showed these models loaded."""
        self._reservations.seen(backend_id, models, asked_at_s)

    def release(self, backend_id: str, model: str) -> None:
        """The load failed, or never began."""
        self._reservations.release(backend_id, model)

    def void(self, backend_id: str) -> None:
        """The engine is gone, and its loads with it."""
        self._reservations.clear(backend_id)

    def left(self, backend_id: str) -> None:
        """The backend is gone for good."""
        self.void(backend_id)
        self._samples.pop(backend_id, None)

    def _need(
        self, backend: Backend, model: str, views: tuple[BackendView, ...], context_tokens: int | None = None
    ) -> int | None:
        if views is not self._views:
            self._views = views
            self._needs.clear()
        key = model, context_tokens, backend.engine, backend.slots
        if key not in self._needs:
            alike = (
                residency
                for other in views
                if other.backend.engine is backend.engine and other.backend.slots <= backend.slots
                for residency in other.residencies
            )
            self._needs[key] = loaded_bytes(model, context_tokens, alike)
        return self._needs[key] or need_bytes(backend.model_bytes.get(model))


def needs_load(view: BackendView, model: str | None) -> bool:
    """Whether a backend's engine must load the model before it can answer for it, with whatever options."""
    if model is None or not loads(view.backend):
        return False
    return not any(shares(model, residency, view.backend) for residency in view.residencies)
