"""Worlds of llama-servers whose slots we name, and requests whose text their engines get."""

from typing import Any

from scheduler import effects
from scheduler.policy import Policy
from tests.scheduler.prompts import Message
from tests.scheduler.world import World, backend, talk


def fleet(*ids: str, limit: int = 3, policy: Policy | None = None) -> World:
    """llama-servers on unknown cards, which nobody else uses as far as looks showed."""
    world = World(policy)
    for backend_id in ids or ("a",):
        world.join(backend(backend_id, limit=limit))
        world.look(backend_id)
    return world


def say(world: World, request_id: str, *messages: Message, **more: Any) -> effects.Dispatch:
    """A turn is dispatched; the engine gets its very text."""
    world.arrive(talk(request_id, *messages, **more), list(messages))
    world.answer_claims()
    return world.running[request_id]
