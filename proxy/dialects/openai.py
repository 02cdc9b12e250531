"""Owns reading OpenAI requests: completions, chat, responses, embeddings. Must not know engines' details or replies."""

from typing import Any

from proxy.dialects import gojson
from proxy.dialects.errors import ClientError
from proxy.dialects.reading import Reading, choices, embed_inputs, image_bytes, output_limit, prompts
from proxy.dialects.routes import TRANSCRIPTIONS
from scheduler.domain import Engine

STRUCTS = {
    "/v1/chat/completions": "openai.ChatCompletionRequest",
    "/v1/completions": "openai.CompletionRequest",
    "/v1/embeddings": "openai.EmbedRequest",
    "/v1/responses": "openai.ResponsesRequest",
}
"""Go types that Ollama decodes these bodies into; its error texts name them."""


NO_AUDIO = "transcriptions need an Ollama backend with a model that takes audio; llama-server is not asked"


def read(path: str, fields: dict[str, Any]) -> Reading:
    """What routing needs to know of an OpenAI request.

    `n` is counted as a llama-server obeys it, on all other routes; Ollama ignores it, which nobody knows yet here.

    Raises:
        ClientError: 400, worded as Ollama words it in this dialect.
    """
    if path == TRANSCRIPTIONS:
        return _transcription(fields)
    struct = STRUCTS[path].partition(".")[2]
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise gojson.mismatch(model, struct, "model", "string")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise gojson.mismatch(stream, struct, "stream", "bool")
    batch, seats = "", 1
    if path == "/v1/embeddings":
        batch, seats = embed_inputs(fields, "input", "content")
    else:
        seats = choices(fields)
    if path == "/v1/completions":
        seats *= prompts(fields.get("prompt"))
    return Reading(
        model=model or None,
        stream=bool(stream) and path != "/v1/embeddings",
        seats=seats,
        batch=batch,
        image_bytes=image_bytes(fields.get("input" if path == "/v1/responses" else "messages")),
        max_output_tokens=None if path == "/v1/embeddings" else output_limit(fields),
    )


def _transcription(form: dict[str, Any]) -> Reading:
    """A form with a recording: its words go through the model like a prompt, and come back in one piece."""
    if not form.get("model"):
        raise ClientError(400, "model is required")
    if "file" not in form:
        raise ClientError(400, "file is required: http: no such file")
    if not form["file"]:
        raise ClientError(400, "audio file is empty")
    return Reading(model=form["model"], unsupported={Engine.LLAMA_SERVER: NO_AUDIO}, image_bytes=form["file"])
