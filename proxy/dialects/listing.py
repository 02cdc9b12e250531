"""Owns the shapes of what slotgate answers itself: model lists, show, ps, slots, props. Pure: facts in, bytes out.

Nothing is looked up here; the catalog gathers the facts of all backends and decides what is shown once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.shapes import encode
from proxy.dialects.times import rfc3339_nano, unix_s
from scheduler.names import canonical

ROOT_TEXT = b"Ollama is running"
"""What Ollama answers at `/`; clients look for it."""

FOREVER_NS = 2**63 - 1
"""Ollama's "never unloaded": the longest Go duration, about 292 years from now."""


class SlotEntry(msgspec.Struct, frozen=True):
    """One slot in /api/ps, which Ollama's own does not show."""

    id: int
    state: str
    """idle or busy."""
    backend: str
    cached_tokens: int | None = None
    """Prefix that it holds; None where the engine does not tell."""
    context_tokens: int | None = None


class PsEntry(msgspec.Struct, frozen=True):
    """One loaded model in /api/ps."""

    model: ModelFacts
    size_bytes: int = 0
    gpu_bytes: int = 0
    context_tokens: int = 0
    """Of one slot."""
    expires_at_unix_s: float | None = None
    """None: never."""
    slots: tuple[SlotEntry, ...] = ()
    details: Mapping[str, Any] | None = None
    """The engine's own `details`, where it has some."""


def human_number(count: int) -> str:
    """A number of weights as Ollama shows it: 134.52M, 8.0B → 8B, 1.5B."""
    for size, letter, digits in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= size:
            return f"{count // size}{letter}" if count % size == 0 else f"{count / size:.{digits}f}{letter}"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def details(model: ModelFacts, *, sizes: bool = False) -> dict[str, Any]:
    """Ollama's `details`; `sizes`: with the context and embedding lengths that only /api/tags shows."""
    shown: dict[str, Any] = {
        "parent_model": "",
        "format": model.format,
        "family": model.family,
        "families": [model.family] if model.family else None,
        "parameter_size": human_number(model.parameters) if model.parameters else "",
        "quantization_level": model.quantization,
    }
    if sizes:
        lengths = {"context_length": model.context_tokens, "embedding_length": model.embedding_length}
        shown |= {key: value for key, value in lengths.items() if value}
    return shown


_SIZES = ("context_length", "embedding_length")


def _without_sizes(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in shown.items() if key not in _SIZES}


def ollama_tags(models: Iterable[ModelFacts]) -> bytes:
    """/api/tags, newest first. An Ollama's own entry passes as it is; the others are made to look like one."""
    newest = sorted(models, key=lambda model: unix_s(model.modified_at), reverse=True)
    return encode({"models": [dict(model.listing) if model.listing else _tag(model) for model in newest]})


def _tag(model: ModelFacts) -> dict[str, Any]:
    name = canonical(model.name)
    return {
        "name": name,
        "model": name,
        "modified_at": model.modified_at,
        "size": model.size_bytes,
        "digest": model.digest,
        "details": details(model, sizes=True),
        "capabilities": list(model.capabilities),
    }


def ollama_show(facts: EngineFacts, model: ModelFacts) -> bytes:
    """/api/show for a model of a llama-server: what that engine tells, in Ollama's fields and order.

    `template` is the chat template (Jinja, where Ollama's are Go's). There is no `tensors`: the engine does not say.
    """
    family = model.family or "unknown"
    settings = _sampling_defaults(facts)
    info: dict[str, Any] = {"general.architecture": family}
    numbers = {
        "general.parameter_count": model.parameters,
        f"{family}.context_length": model.context_tokens,
        f"{family}.embedding_length": model.embedding_length,
        f"{family}.vocab_size": model.vocabulary,
    }
    info |= {key: value for key, value in numbers.items() if value}
    source = str(facts.props.get("model_path") or canonical(model.name)).rpartition("/")[2]
    shown = {
        "modelfile": f"# Served by llama-server {facts.version}; this text cannot rebuild the model\nFROM {source}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in settings.items()),
        "template": facts.chat_template,
        "details": details(model),
        "model_info": info,
        "capabilities": list(model.capabilities),
        "modified_at": model.modified_at,
    }
    return encode({key: value for key, value in shown.items() if value != ""})


def _sampling_defaults(facts: EngineFacts) -> dict[str, Any]:
    """What the engine uses where a request says nothing."""
    default = facts.props.get("default_generation_settings") or {}
    params = default.get("params") or {}
    shown = {"num_ctx": facts.slot_context_tokens or default.get("n_ctx")}
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty"):
        value = params.get(name)
        shown[name] = round(value, 6) if isinstance(value, float) else value
    return {name: value for name, value in shown.items() if value is not None}


def ollama_ps(entries: Iterable[PsEntry], now_ns: int) -> bytes:
    """/api/ps: what is loaded, longest-lived first, as Ollama says it, with the slots added."""
    return encode({"models": [_ps(entry, now_ns) for entry in sorted(entries, key=_expiry_s, reverse=True)]})


def _expiry_s(entry: PsEntry) -> float:
    """Of whole seconds, as Ollama compares them."""
    return math.inf if entry.expires_at_unix_s is None else math.floor(entry.expires_at_unix_s)


def _ps(entry: PsEntry, now_ns: int) -> dict[str, Any]:
    never = entry.expires_at_unix_s is None
    expires_ns = now_ns + FOREVER_NS if never else round((entry.expires_at_unix_s or 0.0) * 1e6) * 1000
    name = canonical(entry.model.name)
    return {
        "name": name,
        "model": name,
        "size": entry.size_bytes,
        "digest": entry.model.digest,
        "details": _without_sizes(entry.details) if entry.details else details(entry.model),
        "expires_at": rfc3339_nano(expires_ns),
        "size_vram": entry.gpu_bytes,
        "context_length": entry.context_tokens,
        "slots": list(entry.slots),
    }


def openai_models(models: Iterable[ModelFacts]) -> bytes:
    """/v1/models, newest first. `data` is an empty list where Ollama has null: clients loop over it."""
    newest = sorted(models, key=lambda model: unix_s(model.modified_at), reverse=True)
    data = [_openai(model, canonical(model.name)) for model in newest]
    return msgspec.json.encode({"object": "list", "data": data}) + b"\n"


def openai_model(model: ModelFacts, asked: str) -> bytes:
    """/v1/models/{model}, under the name that was asked for."""
    return msgspec.json.encode(_openai(model, asked)) + b"\n"


def _openai(model: ModelFacts, shown: str) -> dict[str, Any]:
    space, slash, _ = canonical(model.name).rpartition("/")
    owner = space.rpartition("/")[2] if slash else "library"
    return {"id": shown, "object": "model", "created": unix_s(model.modified_at), "owned_by": owner}


def llamacpp_slots(slots: Sequence[SlotEntry]) -> bytes:
    """/slots over all backends: numbered through, each with the backend that it is on."""
    return msgspec.json.encode(
        [
            {
                "id": number,
                "n_ctx": slot.context_tokens or 0,
                "speculative": False,
                "is_processing": slot.state == "busy",
                "n_prompt_tokens": slot.cached_tokens or 0,
                "backend": slot.backend,
                "backend_slot": slot.id,
            }
            for number, slot in enumerate(slots)
        ]
    )


def llamacpp_no_slot() -> tuple[int, bytes]:
    """What `/slots?fail_on_no_slot=1` gets when all are busy."""
    return 503, b'{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}'


def llamacpp_props(engines: Sequence[EngineFacts]) -> bytes:
    """/props over all llama-servers: the first one's with everybody's slots, and nothing private to one process."""
    shown = dict(engines[0].props) if engines else {}
    for private in ("model_path", "media_marker", "ui", "ui_settings", "cors_proxy_enabled"):
        shown.pop(private, None)
    shown["total_slots"] = sum(facts.slots or 0 for facts in engines)
    shown |= {"endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": False}
    return msgspec.json.encode(shown)
