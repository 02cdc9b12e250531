"""What an engine says of itself, as far as answering clients needs it."""

from typing import Any

import msgspec

from scheduler.domain import Engine


class ModelFacts(msgspec.Struct, frozen=True):
    """One model as its engine describes it."""

    name: str
    """As the engine calls it (a llama-server alias, an Ollama name)."""
    digest: str = ""
    """sha256 hex: Ollama's manifest digest; for llama-server made of what names the model, so backends agree."""
    size_bytes: int = 0
    modified_at: str = ""
    """RFC 3339."""
    format: str = "gguf"
    family: str = ""
    parameters: int = 0
    """Number of weights."""
    quantization: str = ""
    context_tokens: int = 0
    """Context it was trained for."""
    embedding_length: int = 0
    vocabulary: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    """In Ollama's words: completion, tools, vision, embedding, insert, thinking."""
    weights: str = ""
    """What an Ollama loads it from: sha256 hex of the blob; empty: not known."""
    default_context: int | None = None
    """Context of one slot, in tokens, that an Ollama gives it where nobody says another; None: not known."""
    listing: dict[str, Any] = {}
    """The engine's own entry of /api/tags (Ollama), passed on as it is."""


class EngineFacts(msgspec.Struct, frozen=True):
    """One engine as it describes itself."""

    engine: Engine
    version: str = ""
    """/api/version of Ollama, build_info of llama-server."""
    models: tuple[ModelFacts, ...] = ()
    slots: int | None = None
    slot_context_tokens: int | None = None
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    props: dict[str, Any] = {}
    """llama-server's /props as it came."""
    started: str = ""
    """Changes when the engine restarts (process start time or media marker); part of telling a new epoch."""
    max_loaded: int = 0
    """Models that an Ollama may hold at once; 0: not known."""
    slot_source_why: str = ""
    """Why its occupancy is known as it is, or why not better, in a sentence without its full stop."""
    model_store: str = ""
    """Of an Ollama: which directory its models are in, the same for all that share it; empty: not known."""
