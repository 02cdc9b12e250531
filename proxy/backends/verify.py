"""Owns comparing what an engine really took with what was wanted of it. Pure."""

from typing import Any

from proxy.backends.probes import Description
from proxy.config import BackendConfig
from proxy.dialects.facts import EngineFacts
from scheduler.domain import Backend, Engine, Gpu, Operation
from scheduler.names import canonical

DEFAULT_RUNNING_LIMIT = 8
"""Requests that run at once where nobody says otherwise: beyond it streams slow each other down more than they gain."""


def make_backend(
    name: str,
    config: BackendConfig,
    engine: Engine,
    epoch: int,
    *,
    description: Description | None = None,
    expected_model: str | None = None,
    gpu: Gpu | None = None,
) -> Backend:
    """The scheduler's view of a backend. Before the engine has described itself, what it is expected to be.

    Until then it may be able to do anything: requests wait for it, none is refused for good.
    An engine's own number of slots wins over the configured one; the running limit is cut to it.
    """
    slots, models = assumed_slots(config, engine), {expected_model} if expected_model else set()
    capabilities = frozenset(Operation)
    auto = config.running_limit == "auto"
    limit = config.running_limit if isinstance(config.running_limit, int) else None
    source = "leases"
    sizes: dict[str, int] = {}
    loads: dict[str, Any] = {}
    if description is not None:
        slots = description.facts.slots or slots
        models = {model.name for model in description.facts.models}
        capabilities = description.capabilities
        source = description.slot_source
        sizes = {canonical(model.name): model.size_bytes for model in description.facts.models if model.size_bytes}
        loads = _loads(description.facts) if engine is Engine.OLLAMA else {}
    return Backend(
        id=name,
        engine=engine,
        slots=slots,
        running_limit=slots if auto else min(limit or DEFAULT_RUNNING_LIMIT, slots),
        auto_limit=auto,
        models=frozenset(canonical(model) for model in models),
        capabilities=capabilities,
        gpu=gpu,
        gpu_name=config.gpu_name,
        managed=config.url is None,
        epoch=epoch,
        model_bytes=sizes,
        slot_source=source,
        **loads,
    )


def _loads(facts: EngineFacts) -> dict[str, Any]:
    """What matters where an engine loads its models itself."""
    models = {canonical(model.name): model for model in facts.models}
    return {
        "contexts": {name: model.default_context for name, model in models.items() if model.default_context},
        "most_context": {name: model.context_tokens for name, model in models.items() if model.context_tokens},
        "weights": {name: model.weights for name, model in models.items() if model.weights},
        "embeds_only": frozenset(
            name
            for name, model in models.items()
            if "embedding" in model.capabilities and "completion" not in model.capabilities
        ),
        "max_loaded": facts.max_loaded,
    }


def assumed_slots(config: BackendConfig, engine: Engine) -> int:
    """Slots of an engine that does not tell. An external Ollama has one as shipped, and hides what waits beyond it."""
    if config.url is not None and engine is Engine.OLLAMA and "slots" not in config.model_fields_set:
        return 1
    return config.slots


def mismatches(config: BackendConfig, description: Description) -> tuple[str, ...]:
    """Where the engine is not what the configuration says, in words for `status`."""
    facts, found = description.facts, list(description.warnings)
    managed = config.url is None
    if managed and facts.slots not in {None, config.slots} and "OLLAMA_NUM_PARALLEL" not in config.env:
        found.append(f"slots = {config.slots} was wanted, the engine has {facts.slots}")
    more = not managed and facts.engine is Engine.OLLAMA and "slots" in config.model_fields_set
    if more and facts.slots and facts.slots < config.slots:
        found.append(f"slots = {config.slots} is configured, its OLLAMA_NUM_PARALLEL is {facts.slots}")
    if isinstance(config.running_limit, int) and facts.slots and config.running_limit > facts.slots:
        found.append(f"running_limit = {config.running_limit} is more than the engine's {facts.slots} slots")
    if description.slots_assumed:
        found.append(
            "slots = 1 is assumed, as Ollama has it unless told otherwise: set slots to its OLLAMA_NUM_PARALLEL"
        )
    context = facts.slot_context_tokens
    said = "OLLAMA_CONTEXT_LENGTH" in config.env
    if managed and not said and context is not None and context < config.context_tokens:
        found.append(f"context_tokens = {config.context_tokens} was wanted, a slot of the engine has {context}")
    return tuple(found)
