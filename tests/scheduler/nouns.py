"""Backends and requests as tests want them: everything at its default but what a test says."""

from collections.abc import Iterable
from typing import Any

from scheduler.domain import Backend, Dialect, Engine, Operation, Prompt, Request
from tests.scheduler.prompts import Message, prompt_of

MODEL = "qwen3:latest"
OTHER_MODEL = "llama3:latest"


def backend(
    backend_id: str = "a",
    *,
    limit: int = 2,
    slots: int | None = None,
    models: Iterable[str] = (MODEL,),
    engine: Engine = Engine.LLAMA_SERVER,
    slot_source: str = "slots",
    epoch: int = 1,
    capabilities: Iterable[Operation] = tuple(Operation),
    managed: bool = False,
    **more: Any,
) -> Backend:
    """A backend with as many slots as it may run requests, unless said otherwise."""
    return Backend(
        id=backend_id,
        engine=engine,
        slots=limit if slots is None else slots,
        running_limit=limit,
        models=frozenset(models),
        capabilities=frozenset(capabilities),
        managed=managed,
        epoch=epoch,
        slot_source=slot_source,
        **more,
    )


def request(
    request_id: str = "r1",
    *,
    model: str | None = MODEL,
    seats: int = 1,
    arrived_s: float = 0.0,
    wait_s: float = 300.0,
    operation: Operation = Operation.CHAT,
    engines: frozenset[Engine] = frozenset(Engine),
    divisible: bool = False,
    further: bool = False,
    tenant: str = "",
    priority: str = "normal",
    prompt: Prompt | None = None,
    max_output_tokens: int | None = None,
    can_name_slot: bool = False,
    **more: Any,
) -> Request:
    """A chat for one slot, unless said otherwise."""
    return Request(
        id=request_id,
        operation=operation,
        dialect=Dialect.OLLAMA,
        model=model,
        arrived_s=arrived_s,
        wait_until_s=arrived_s + wait_s,
        seats=seats,
        engines=engines,
        divisible=divisible,
        further=further,
        tenant=tenant,
        priority=priority,
        prompt_bytes=prompt.size_bytes if prompt else 0,
        prompt=prompt,
        max_output_tokens=max_output_tokens,
        can_name_slot=can_name_slot,
        **more,
    )


def talk(request_id: str, *messages: Message, can_name_slot: bool = True, **more: Any) -> Request:
    """A request with a prompt, which may be told its slot."""
    return request(request_id, prompt=prompt_of(list(messages)), can_name_slot=can_name_slot, **more)
