"""Owns which of this proxy's Ollamas is the one for cloud models. Pure; asks nobody.

Cloud models run at ollama.com under the account of the Ollama that passes a request on, so there is one for all of
them: the one that is configured to be, else the first Ollama of the configuration, as far as its engines are known.
"""

from collections.abc import Sequence

import msgspec

from scheduler.domain import Backend, Engine
from scheduler.events import BackendChanged, Event


class CloudChoice:
    """Marks one backend in the facts that pass."""

    def __init__(self, names: Sequence[str], chosen: str | None) -> None:
        """Know the order.

        Args:
            names: of all backends, in the order of the configuration.
            chosen: the configured one; None: the first Ollama.
        """
        self._names = [chosen] if chosen is not None else list(names)
        self._ollamas: dict[str, Backend] = {}

    def take(self, event: Event) -> list[Event]:
        """The fact as it is to be told, and behind it that another backend is the one no longer."""
        if not isinstance(event, BackendChanged):
            return [event]
        backend, before = event.backend, self._holder()
        if backend.engine is Engine.OLLAMA:
            self._ollamas[backend.id] = backend
        else:
            self._ollamas.pop(backend.id, None)
        holder = self._holder()
        told: list[Event] = [self._marked(backend, holder)]
        told += [self._marked(self._ollamas[name], holder) for name in (before, holder)
                 if before != holder and name not in (None, backend.id) and name in self._ollamas]  # fmt: skip
        return told

    def _holder(self) -> str | None:
        return next((name for name in self._names if name in self._ollamas), None)

    @staticmethod
    def _marked(backend: Backend, holder: str | None) -> BackendChanged:
        return BackendChanged(msgspec.structs.replace(backend, cloud=backend.id == holder))
