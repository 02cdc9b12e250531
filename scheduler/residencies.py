"""Where a model is loaded. Pure questions to a snapshot."""

from scheduler.domain import Engine, Snapshot


def unloadable(snapshot: Snapshot, model: str) -> tuple[str, ...]:
    """Ids of the backends whose engine has the model loaded and can unload it: Ollamas."""
    return tuple(
        view.backend.id
        for view in snapshot.backends
        if view.backend.engine is Engine.OLLAMA and any(residency.model == model for residency in view.residencies)
    )
