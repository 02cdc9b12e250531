"""Owns saying an engine's error in another dialect. Must not know requests' bodies or the relay."""

import msgspec

from proxy.dialects.call import Call
from proxy.dialects.contract import ErrorBody, Rendered
from proxy.dialects.errors import ClientError, render_error
from proxy.dialects.translate import NO_IMAGES, full_name
from scheduler.domain import Dialect, Operation


class _Inner(msgspec.Struct):
    message: str = ""
    type: str = ""


class _Error(msgspec.Struct):
    error: _Inner


_decode = msgspec.json.Decoder(_Error).decode


def llama_error(call: Call) -> ErrorBody | None:
    """How llama-server's errors are shown to this client; None: as they are."""
    if call.dialect is Dialect.OLLAMA:
        return lambda status, body: _ollama(call, status, body)
    if call.dialect is Dialect.ANTHROPIC:
        return _anthropic
    return None


def _read(body: bytes) -> _Inner | None:
    try:
        return _decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _anthropic(status: int, body: bytes) -> Rendered:
    """llama-server answers in OpenAI's form even on /v1/messages."""
    inner = _read(body)
    text = inner.message if inner else body.decode("utf-8", "replace").strip()
    return render_error(Dialect.ANTHROPIC, status, "", text or "the engine gave no reason")


def _ollama(call: Call, status: int, body: bytes) -> Rendered:
    """Ollama hands its engine's error on as text, JSON and all; the cases it words itself come first."""
    inner = _read(body)
    text = body.decode("utf-8", "replace").strip()
    if inner is not None:
        own = _ollama_words(call, status, inner)
        if own is not None:
            return render_error(Dialect.OLLAMA, own.status, "", own.message)
    return render_error(Dialect.OLLAMA, status, "", text or "the engine gave no reason")


def _ollama_words(call: Call, status: int, inner: _Inner) -> ClientError | None:
    model = call.model or ""
    if call.operation is Operation.EMBED:
        if inner.type == "exceed_context_size_error" or "too large to process" in inner.message:
            return ClientError(400, "the input length exceeds the context length")
        old = call.route.path == "/api/embeddings"
        return ClientError(500 if old and status == 501 else status, inner.message)
    if status == 501 and call.fields.get("suffix"):
        return ClientError(400, f"{full_name(model)} does not support insert")
    if status == 501 and "does not support completions" in inner.message:
        what = "generate" if call.operation is Operation.GENERATE else "chat"
        return ClientError(400, f'"{model}" does not support {what}')
    if "image input is not supported" in inner.message:
        return ClientError(400, NO_IMAGES)
    return None
