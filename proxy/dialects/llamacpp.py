"""Owns reading requests of llama-server's own API. Must not know replies."""

from collections.abc import Mapping
from typing import Any

from proxy.dialects.errors import ClientError
from proxy.dialects.reading import Reading, choices, embed_inputs, output_limit, prompts
from scheduler.domain import Engine

_NO_SEAT = frozenset({"/tokenize", "/detokenize", "/apply-template"})
_STREAMS = frozenset({"/completion", "/completions", "/infill"})
"""They generate."""


def read(path: str, fields: dict[str, Any]) -> Reading:
    """What routing needs to know of a llama.cpp request; all but the stream flag is the engine's to check.

    Raises:
        ClientError: 400 in llama-server's form.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise ClientError(400, "Field 'model': type must be string")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ClientError(400, "Field 'stream': type must be boolean")
    batch, seats = "", 0
    if path in _STREAMS:
        seats = choices(fields)
    elif path == "/embedding":
        batch, seats = embed_inputs(fields, "input", "content")
    elif path not in _NO_SEAT:
        batch, seats = _documents(fields)
    if path in ("/completion", "/completions"):
        seats *= prompts(fields.get("prompt"))
    reason = f"{path} is llama-server's own API: Ollama has nothing like it, a llama-server backend is needed"
    return Reading(
        model=model or None,
        stream=bool(stream) and path in _STREAMS,
        seats=seats,
        batch=batch,
        unsupported={Engine.OLLAMA: reason},
        max_output_tokens=output_limit(fields) if path in _STREAMS else None,
    )


def _documents(fields: Mapping[str, Any]) -> tuple[str, int]:
    """Of a rerank request: the field that holds several texts ("" if none does), and how many there are."""
    for name in ("documents", "texts"):
        value = fields.get(name)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return (name, len(value)) if len(value) > 1 else ("", 1)
    return "", 1
