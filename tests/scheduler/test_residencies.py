"""Where a model is loaded."""

from scheduler.domain import Backend, BackendView, Engine, Health, Residency, Snapshot
from scheduler.residencies import unloadable


def view(name: str, engine: Engine, *models: str) -> BackendView:
    residencies = tuple(Residency(model) for model in models)
    return BackendView(Backend(name, engine, 1, 1), Health.READY, residencies=residencies)


def test_only_ollamas_that_have_it_loaded() -> None:
    snapshot = Snapshot(
        0.0,
        (
            view("a", Engine.OLLAMA, "m:latest"),
            view("b", Engine.OLLAMA, "n:latest"),
            view("c", Engine.LLAMA_SERVER, "m:latest"),
            view("d", Engine.OLLAMA, "n:latest", "m:latest"),
        ),
    )

    assert unloadable(snapshot, "m:latest") == ("a", "d")
