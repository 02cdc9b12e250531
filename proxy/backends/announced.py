"""What a record of the registry says of a backend: all that a proxy needs that has never heard of it. Bounded.

The part for people is plain; the rest, which may be long (hundreds of models, a chat template), is packed.
"""

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import structlog

from proxy.backends.boxes import Box
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, Gate, is_local
from proxy.store.records import FACTS_MAX_BYTES
from scheduler.domain import Backend

log = structlog.get_logger("slotgate.announced")

UNPACKED_MAX_BYTES = 4 * 2**20
"""A longer one was not written by slotgate."""
DETAIL_MAX_BYTES = FACTS_MAX_BYTES - 4096
_PRIVATE = ("media_marker", "ui", "ui_settings", "cors_proxy_enabled", "webui_settings")
"""Properties of a llama-server that no other proxy shows or uses."""
_NEEDED = ("modalities", "default_generation_settings", "model_path")
"""Properties that answers to clients are made of."""


class Announced(msgspec.Struct, frozen=True):
    """One backend as the proxy that looks after it announces it. Nothing in it is secret."""

    name: str
    """As that proxy calls it."""
    box: Box
    """Where it is."""
    endpoint: Endpoint
    """As that proxy reaches it, without headers."""
    backend: Backend
    """Its `id` is the store's."""
    guarded: bool = False
    """It answers only to who knows its API key."""
    key_file: str = ""
    """Where other processes of the same box and user find that key."""
    gate: Gate | None = None
    """How other boxes reach it."""
    ready: bool = False
    facts: EngineFacts | None = None
    facts_epoch: int = 0
    """The epoch that `facts` are of."""


def to_facts(announced: Announced) -> dict[str, Any]:
    """The facts of its record."""
    plain: dict[str, Any] = {
        "name": announced.name,
        "engine": announced.backend.engine.value,
        "slots": announced.backend.slots,
        "box": announced.box.name,
        "address": str(announced.endpoint),
    }
    if announced.gate is not None:
        plain["gate"] = f"{announced.gate.host}:{announced.gate.port}"
    for short in _shorter(announced):
        packed = base64.b85encode(zlib.compress(msgspec.json.encode(short))).decode()
        if len(msgspec.json.encode(packed)) <= DETAIL_MAX_BYTES:
            break
    return plain | {"detail": packed}


def from_facts(facts: dict[str, Any]) -> Announced | None:
    """The other way round; None: it is of another version, or none."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b85decode(facts["detail"]), UNPACKED_MAX_BYTES)
        announced = msgspec.json.decode(data, type=Announced)
    except (KeyError, TypeError, ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return None
    known = announced.facts
    if known is None or not known.props or "chat_template" in known.props:
        return announced
    props = known.props | {"chat_template": known.chat_template}
    return msgspec.structs.replace(announced, facts=msgspec.structs.replace(known, props=props))


def reach(announced: Announced, box: Box, headers: tuple[tuple[str, str], ...] | None) -> tuple[Endpoint | None, str]:
    """How a process on the given box reaches the backend, or why it cannot.

    Args:
        announced: the backend.
        box: where the process runs.
        headers: what the engine wants with each request, as far as known there.
    """
    here = announced.box.id == box.id
    known = not announced.guarded or bool(headers)
    direct = msgspec.structs.replace(announced.endpoint, headers=headers or ())
    if here and known:
        return direct, ""
    if announced.gate is not None:
        return msgspec.structs.replace(announced.endpoint, headers=(), gate=announced.gate), ""
    if not here and is_local(announced.endpoint):
        return None, f"it is on box {announced.box.name}, which lets nobody in: set box.gate there"
    if not known:
        why = f"its API key is known on box {announced.box.name} only"
        return None, f"{why}: configure it as a backend here too, or set box.gate there"
    return direct, ""


def _shorter(announced: Announced) -> Iterator[Announced]:
    """The same, each time with less of what can be done without."""
    facts = announced.facts
    if facts is None:
        yield announced
        return

    def having(**changes: Any) -> Announced:
        nonlocal facts
        facts = msgspec.structs.replace(facts, **changes)  # type: ignore[type-var] # set above
        return msgspec.structs.replace(announced, facts=facts)

    props = {key: value for key, value in facts.props.items() if key not in _PRIVATE}
    if props.get("chat_template") == facts.chat_template:
        del props["chat_template"]  # said once
    # digests cannot be packed, so what a model is loaded from is said once too: by the backend
    yield having(props=props, models=tuple([msgspec.structs.replace(model, weights="") for model in facts.models]))
    log.warning("what the engine says of itself is too long for the registry: shortened", backend=announced.name)
    yield having(props={key: value for key, value in props.items() if key in _NEEDED})
    yield having(models=tuple([msgspec.structs.replace(model, listing={}) for model in facts.models]))
    yield having(chat_template="", props={})
    while facts.models:
        yield having(models=facts.models[: len(facts.models) // 2])
    models = sorted(announced.backend.models)
    while models:
        models = models[: len(models) // 2]
        backend = _with_models(announced.backend, frozenset(models))
        yield msgspec.structs.replace(announced, facts=facts, backend=backend)


def _with_models(backend: Backend, models: frozenset[str]) -> Backend:
    """The same with these models only."""
    by_model = {
        field: {name: value for name, value in getattr(backend, field).items() if name in models}
        for field in ("model_bytes", "contexts", "most_context", "weights")
    }
    embeds_only = backend.embeds_only & models
    return msgspec.structs.replace(backend, models=models, embeds_only=embeds_only, **by_model)
