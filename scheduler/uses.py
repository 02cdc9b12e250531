"""Since when nothing has run on a backend's loaded models. Owns only these times."""

from math import inf


class Uses:
    """When the last request of each model ended, by backend. Bounded by the models that backends have."""

    def __init__(self) -> None:
        self._ended_s: dict[str, dict[str, float]] = {}

    def ended(self, backend_id: str, model: str | None, now_s: float) -> None:
        """A request for a model is through at a backend."""
        if model is not None:
            self._ended_s.setdefault(backend_id, {})[model] = now_s

    def ended_s(self, backend_id: str, model: str) -> float:
        """When the last one ended; -inf: none did."""
        return self._ended_s.get(backend_id, {}).get(model, -inf)

    def void(self, backend_id: str) -> None:
        """The engine is gone."""
        self._ended_s.pop(backend_id, None)
