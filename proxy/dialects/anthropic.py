"""Owns reading Anthropic requests: messages and count_tokens. Must not know engines' details or replies."""

from typing import Any

from proxy.dialects import gojson
from proxy.dialects.errors import ClientError
from proxy.dialects.reading import Reading, image_bytes, output_limit
from scheduler.domain import Engine

NO_COUNT = "Ollama cannot count tokens: /v1/messages/count_tokens needs a llama-server backend"


def read(path: str, fields: dict[str, Any]) -> Reading:
    """What routing needs to know of an Anthropic request.

    Raises:
        ClientError: 400, worded as Ollama words it in this dialect.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise gojson.mismatch(model, "MessagesRequest", "model", "string")
    if path == "/v1/messages/count_tokens":
        return Reading(model=model or None, seats=0, unsupported={Engine.OLLAMA: NO_COUNT})
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise gojson.mismatch(stream, "MessagesRequest", "stream", "bool")
    limit = fields.get("max_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise gojson.mismatch(limit, "MessagesRequest", "max_tokens", "int")
    if not limit or limit <= 0:
        raise ClientError(400, "max_tokens is required and must be positive")
    if not fields.get("messages"):
        raise ClientError(400, "messages is required")
    return Reading(
        model=model or None,
        stream=bool(stream),
        image_bytes=image_bytes(fields["messages"]),
        max_output_tokens=output_limit(fields, "max_tokens"),
    )
