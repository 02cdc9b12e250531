"""Owns reading Ollama requests, with Go's and Ollama's words for what is wrong. Must not know engines' replies."""

import binascii
from typing import Any

from proxy.dialects import gojson
from proxy.dialects.errors import ClientError
from proxy.dialects.goduration import keep_alive_s
from proxy.dialects.options import check_options
from proxy.dialects.reading import Reading, embed_inputs, output_limit
from proxy.dialects.runner import asked_runner
from scheduler.domain import Engine, Operation

STRUCTS = {
    "/api/chat": "api.ChatRequest",
    "/api/generate": "api.GenerateRequest",
    "/api/embed": "api.EmbedRequest",
    "/api/embeddings": "api.EmbeddingRequest",
    "/api/show": "api.ShowRequest",
}
"""Go types that Ollama decodes these bodies into; its error texts name them."""

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "model": (str, "string"),
    "messages": (list, "[]api.Message"),
    "prompt": (str, "string"),
    "suffix": (str, "string"),
    "system": (str, "string"),
    "template": (str, "string"),
    "stream": (bool, "bool"),
    "raw": (bool, "bool"),
    "truncate": (bool, "bool"),
    "shift": (bool, "bool"),
    "logprobs": (bool, "bool"),
    "top_logprobs": (int, "int"),
    "dimensions": (int, "int"),
    "context": (list, "[]int"),
    "images": (list, "[]api.ImageData"),
    "tools": (list, "api.Tools"),
    "options": (dict, "map[string]interface {}"),
}
"""Field -> what its JSON value must be, and the Go type that the error names."""

_FIELDS = {
    "/api/chat": "model messages stream tools options truncate shift logprobs top_logprobs",
    "/api/generate": (
        "model prompt suffix system template stream raw images options context truncate shift logprobs top_logprobs"
    ),
    "/api/embed": "model truncate dimensions options",
    "/api/embeddings": "model prompt options",
}

_MESSAGE_TYPES: dict[str, tuple[type, str]] = {
    "role": (str, "string"),
    "content": (str, "string"),
    "thinking": (str, "string"),
    "images": (list, "[]api.ImageData"),
    "tool_calls": (list, "[]api.ToolCall"),
    "tool_name": (str, "string"),
    "tool_call_id": (str, "string"),
}

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/\r\n"

NO_CONTEXT = (
    'the "context" of an earlier /api/generate answer holds token numbers, which llama-server cannot continue from: '
    "send the conversation as messages to /api/chat instead"
)
NO_TEMPLATE = (
    'a "template" in the request is written for Ollama and llama-server cannot render it: leave it out to use the '
    'model\'s own, or render the prompt yourself and send it with "raw": true'
)


def read(path: str, fields: dict[str, Any]) -> Reading:
    """What routing needs to know of an Ollama request.

    `stream` is true when absent (embeddings never stream). Requests without prompt or messages only load the model,
    or unload it when `keep_alive` is 0: those take no seat.

    Raises:
        ClientError: as Ollama words it; 500 for a wrong option type, like there.
    """
    _check_types(path, fields)
    kept_s = keep_alive_s(fields.get("keep_alive"))
    embeds = path in ("/api/embed", "/api/embeddings")
    if not embeds:
        _check_think(fields.get("think"))
        if not 0 <= (fields.get("top_logprobs") or 0) <= 20:
            raise ClientError(400, "top_logprobs must be between 0 and 20")
    model = fields.get("model") or ""
    if not model:
        raise ClientError(400, "model is required")
    check_options(fields.get("options") or {})
    runner = asked_runner(fields)
    if embeds:
        batch, seats = ("", 0) if embeds_nothing(path, fields) else ("", 1)
        if seats and path == "/api/embed":
            batch, seats = embed_inputs(fields, "input")
        return Reading(model=model, seats=seats, batch=batch, runner=runner, keep_alive_s=kept_s)
    reading = Reading(
        model=model,
        stream=fields.get("stream") is not False,
        max_output_tokens=output_limit(fields.get("options") or {}, "num_predict"),
        runner=runner,
        keep_alive_s=kept_s,
    )
    if path == "/api/chat":
        messages = fields.get("messages") or []
        idle = not messages
        reading.image_bytes = sum(_check_message(message) for message in messages)
    else:
        idle = not fields.get("prompt") and not fields.get("suffix")
        if fields.get("raw") and (fields.get("template") or fields.get("system") or fields.get("context")):
            raise ClientError(400, "raw mode does not support template, system, or context")
        reading.image_bytes = _check_images(fields.get("images"))
        reading.unsupported = _unsupported(fields)
    if idle:
        reading.operation = Operation.UNLOAD if kept_s == 0 else Operation.LOAD
        reading.seats = 0
        reading.stream = False
        reading.unsupported = {}
    return reading


def embeds_nothing(path: str, fields: dict[str, Any]) -> bool:
    """The input is empty: answered without an engine."""
    given = fields.get("input") if path == "/api/embed" else fields.get("prompt")
    if given is not None and not isinstance(given, str | list):
        raise ClientError(400, "invalid input type")
    if isinstance(given, list) and not all(isinstance(item, str) for item in given):
        raise ClientError(400, "invalid input type")
    return not given


def _check_types(path: str, fields: dict[str, Any]) -> None:
    struct = STRUCTS[path].partition(".")[2]
    for name in _FIELDS[path].split():
        value = fields.get(name)
        if value is None:
            continue
        kind, go_type = _TYPES[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise gojson.mismatch(value, struct, name, go_type)


def _check_message(message: object) -> int:
    """Check one message; the encoded size of its images."""
    if not isinstance(message, dict):
        raise gojson.mismatch(message, "ChatRequest", "messages", "api.Message")
    fields, _ = gojson.fold(message)
    for key, value in fields.items():
        kind, go_type = _MESSAGE_TYPES.get(key, (object, ""))
        if value is not None and not isinstance(value, kind):
            raise gojson.mismatch(value, "ChatRequest", f"messages.{key}", go_type)
    return _check_images(fields.get("images"))


def _check_images(images: list[Any] | None) -> int:
    total = 0
    for image in images or []:
        if not isinstance(image, str):
            raise gojson.mismatch(image, "ChatRequest", "messages.images", "api.ImageData")
        try:
            binascii.a2b_base64(base64_text(image), strict_mode=True)
        except ValueError:
            raise ClientError(400, f"illegal base64 data at input byte {_good_bytes(image.encode())}") from None
        total += len(image)
    return total


def _good_bytes(data: bytes) -> int:
    """How many bytes come before the first that base64 does not use; images are megabytes, so no loop over them."""
    bad = data.translate(None, _BASE64)
    return data.index(bad[0]) if bad else len(data)


def base64_text(image: str) -> str:
    """Base64 without the line breaks that it may be wrapped with, which Go skips."""
    return image.replace("\n", "").replace("\r", "")


def _check_think(think: object) -> None:
    levels = '"high", "medium", "low", true, or false)'
    if isinstance(think, str):
        if think not in ("high", "medium", "low", "max"):
            raise ClientError(400, f"invalid think value: {gojson.quote(think)} (must be {levels}")
    elif think is not None and not isinstance(think, bool):
        raise ClientError(400, f"think must be a boolean or string ({levels}")


def _unsupported(fields: dict[str, Any]) -> dict[Engine, str]:
    if fields.get("context"):
        return {Engine.LLAMA_SERVER: NO_CONTEXT}
    if fields.get("template"):
        return {Engine.LLAMA_SERVER: NO_TEMPLATE}
    return {}
