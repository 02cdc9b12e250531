"""Worlds of Ollamas, one per card, that hold few models each."""

from typing import Any

from scheduler import effects
from scheduler.domain import Backend, Engine, Residency
from scheduler.effects import Effect
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, OTHER_MODEL, World, backend, of_type, request

POLICY = Policy(residence_s=10.0, residence_loads=0.0, idle_residence_s=2.0, load_ms=2000.0, copy_gain=2.0)
THIRD = "third:latest"


def ollama(name: str = "a", *, limit: int = 2, **more: Any) -> Backend:
    """An Ollama with three models, of which it holds one at a time unless said otherwise."""
    settings: dict[str, Any] = {
        "models": [MODEL, OTHER_MODEL, THIRD],
        "contexts": dict.fromkeys([MODEL, OTHER_MODEL, THIRD], 4096),
        "max_loaded": 1,
        "slot_source": "leases",
    }
    return backend(name, limit=limit, engine=Engine.OLLAMA, **{**settings, **more})


def cards(*, policy: Policy = POLICY, limit: int = 2, **loaded: str) -> World:
    """Ollamas by name, each with a model loaded for long; an empty name: with none."""
    world = World(policy)
    for name, model in loaded.items():
        world.loads.put(name, *([Residency(model, 4096)] if model else []))
        world.join(ollama(name, limit=limit))
    return world


def loading(done: tuple[Effect, ...]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Loads that are asked for: backend, model, what goes for it."""
    return [(load.backend_id, load.model, load.unload) for load in of_type(done, effects.Load)]


def under_way(world: World) -> effects.Load:
    """The one load that was asked for and has not ended."""
    [load] = world.loads.under_way.values()
    return load


def ask(world: World, name: str, model: str = MODEL, **more: Any) -> tuple[Effect, ...]:
    """A client asks for something now."""
    return world.arrive(request(name, model=model, arrived_s=world.now_s, **more))


def busy(world: World, name: str, model: str = MODEL, **more: Any) -> None:
    """A client's request runs; its model is loaded already."""
    ask(world, name, model, **more)
    while world.claims:
        world.answer_claim(next(iter(world.claims)))
    assert name in world.running


def rejected(world: World, name: str) -> effects.Reject | None:
    """How a request was refused."""
    found = [each for _, _, done in world.history for each in of_type(done, effects.Reject) if each.request_id == name]
    return found[0] if found else None
