"""Owns reading requests of llama-server's own API. Must not know replies."""

from typing import Any

from proxy.dialects.errors import ClientError
from proxy.dialects.reading import Reading, choices, prompts
from scheduler.domain import Engine

_NO_SEAT = frozenset({"/tokenize", "/detokenize", "/apply-template"})
_STREAMS = frozenset({"/completion", "/completions", "/infill"})
"""They generate."""


def read(path: str, fields: dict[str, Any]) -> Reading:
    """What routing needs to know of a llama.cpp request; all but the stream flag is the engine's to check.

    Embeddings and reranking take one seat however many inputs they have.

    Raises:
        ClientError: 400 in llama-server's form.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise ClientError(400, "Field 'model': type must be string")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ClientError(400, "Field 'stream': type must be boolean")
    seats = 0 if path in _NO_SEAT else choices(fields) if path in _STREAMS else 1
    if path in ("/completion", "/completions"):
        seats *= prompts(fields.get("prompt"))
    reason = f"{path} is llama-server's own API: Ollama has nothing like it, a llama-server backend is needed"
    return Reading(
        model=model or None,
        stream=bool(stream) and path in _STREAMS,
        seats=seats,
        unsupported={Engine.OLLAMA: reason},
    )
