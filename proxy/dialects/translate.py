"""Owns turning Ollama requests into llama-server requests. Must not know replies, nor how the request gets there."""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.dialects.call import Call
from proxy.dialects.errors import ClientError
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.gojson import fold, quote
from proxy.dialects.ollama import base64_text
from proxy.dialects.options import sampling
from scheduler.names import canonical

NO_IMAGES = (
    '{"error":{"code":400,"message":"Multimodal data provided, but model does not support multimodal requests.",'
    '"type":"invalid_request_error"}}'
)
"""What Ollama answers to images for a model that cannot see: its own engine's JSON, as text."""

_MAGIC = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"RIFF", "webp"))
"""How image files begin; llama-server reads the data itself, the type in the URI is for the record."""

_THINKING_MARKS = ("enable_thinking", "reasoning_effort", "reasoning_content", "<think>")
"""What the chat templates of models that can think contain."""


class Translated(msgspec.Struct):
    """A request in llama-server's terms."""

    path: str
    fields: dict[str, Any]


def model_facts(facts: EngineFacts, name: str | None) -> ModelFacts | None:
    """The model of this name; a llama-server has one model, which answers to every name."""
    for model in facts.models:
        if name and canonical(model.name) == canonical(name):
            return model
    return facts.models[0] if facts.models else None


def thinks(facts: EngineFacts, model: ModelFacts | None) -> bool:
    """Whether the model can think before it answers: its capabilities say so, or its chat template."""
    if model is not None and "thinking" in model.capabilities:
        return True
    return any(mark in facts.chat_template for mark in _THINKING_MARKS)


def full_name(name: str) -> str:
    """A model's name as some of Ollama's errors show it: with registry and namespace."""
    name = canonical(name)
    return f"registry.ollama.ai/{name if '/' in name else 'library/' + name}" if name.count("/") < 2 else name


def chat(call: Call, facts: EngineFacts) -> Translated:
    """/api/chat as /v1/chat/completions.

    Raises:
        ClientError: the model cannot do what is asked for.
    """
    fields = _common(call, facts)
    fields["messages"] = _messages(call.fields.get("messages") or [], facts)
    tools = call.fields.get("tools")
    if tools:
        fields["tools"] = tools
    _format(call, fields)
    _think(call, facts, fields)
    _logprobs(call, fields)
    return Translated("/v1/chat/completions", fields)


def generate(call: Call, facts: EngineFacts) -> Translated:
    """/api/generate as /v1/chat/completions, so that llama-server applies the model's template; `raw` as /completion,
    and with a `suffix` as /infill.

    Raises:
        ClientError: the model cannot do what is asked for.
    """
    prompt, suffix = call.fields.get("prompt") or "", call.fields.get("suffix")
    images = call.fields.get("images") or []
    fields = _common(call, facts)
    if suffix or call.fields.get("raw"):
        if images:
            raise ClientError(400, "images need the model's template: leave out raw and suffix, or use /api/chat")
        fields |= {"input_prefix": prompt, "input_suffix": suffix} if suffix else {"prompt": prompt}
        if (schema := _schema(call)) is not None:
            fields["json_schema"] = schema or {"type": "object"}
        if call.fields.get("logprobs"):
            fields["n_probs"] = max(1, call.fields.get("top_logprobs") or 0)
        return Translated("/infill" if suffix else "/completion", fields)
    system = call.fields.get("system")
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt, "images": images})
    fields["messages"] = _messages(messages, facts)
    _format(call, fields)
    _think(call, facts, fields)
    _logprobs(call, fields)
    return Translated("/v1/chat/completions", fields)


def embed(call: Call, facts: EngineFacts) -> Translated:
    """/api/embed and /api/embeddings as /v1/embeddings."""
    given = call.fields.get("input") if call.route.path == "/api/embed" else call.fields.get("prompt")
    return Translated("/v1/embeddings", {"model": _engine_name(call, facts), "input": given})


def _engine_name(call: Call, facts: EngineFacts) -> str:
    model = model_facts(facts, call.model)
    return model.name if model else call.model or ""


def _common(call: Call, facts: EngineFacts) -> dict[str, Any]:
    # Always streamed, with progress: the only way in which llama-server notices soon that the client has left.
    base = {"model": _engine_name(call, facts), "stream": True, "return_progress": True}
    return base | sampling(call.fields.get("options") or {})


def _schema(call: Call) -> dict[str, Any] | None:
    """The JSON schema of `format`: empty for any JSON object, None where the form is free."""
    wanted = call.fields.get("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return {}
    if isinstance(wanted, dict):
        return wanted
    shown = quote(msgspec.json.encode(wanted).decode())
    raise ClientError(400, f'invalid format: {shown}; expected "json" or a valid JSON Schema object')


def _format(call: Call, fields: dict[str, Any]) -> None:
    schema = _schema(call)
    if schema:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": schema}}
    elif schema is not None:
        fields["response_format"] = {"type": "json_object"}


def _think(call: Call, facts: EngineFacts, fields: dict[str, Any]) -> None:
    think = call.fields.get("think")
    if think is None:
        return
    can = thinks(facts, model_facts(facts, call.model))
    if think and not can:
        raise ClientError(400, f"{quote(call.model or '')} does not support thinking")
    if can:
        arguments: dict[str, Any] = {"enable_thinking": bool(think)}
        if isinstance(think, str):
            arguments["reasoning_effort"] = think
        fields["chat_template_kwargs"] = arguments


def _logprobs(call: Call, fields: dict[str, Any]) -> None:
    if call.fields.get("logprobs"):
        # llama-server tells nothing at all with 0; the surplus alternative is dropped from the answer.
        fields |= {"logprobs": True, "top_logprobs": max(1, call.fields.get("top_logprobs") or 0)}


def _messages(messages: list[Mapping[str, Any]], facts: EngineFacts) -> list[dict[str, Any]]:
    """Ollama's messages in OpenAI's form: images as parts, tool arguments as text, tool results by call id."""
    out: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # id, function: calls whose result has not come yet
    for given in messages:
        message, _ = fold(dict(given))
        role = str(message.get("role") or "").lower()
        kept: dict[str, Any] = {"role": role, "content": _content(message, facts)}
        if message.get("thinking"):
            kept["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            kept["tool_calls"] = _tool_calls(message["tool_calls"], len(out))
            open_calls += [(item["id"], item["function"]["name"]) for item in kept["tool_calls"]]
        if role == "tool":
            name = message.get("tool_name") or message.get("name")
            kept["tool_call_id"] = _answered(open_calls, message.get("tool_call_id"), name)
            if name:
                kept["name"] = name
        out.append(kept)
    return out


def _content(message: Mapping[str, Any], facts: EngineFacts) -> str | list[dict[str, Any]]:
    text = message.get("content") or ""
    images = message.get("images")
    if not images:
        return text
    if not (facts.props.get("modalities") or {}).get("vision"):
        raise ClientError(400, NO_IMAGES)
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in images]


def _data_uri(image: str) -> str:
    image = base64_text(image)  # llama-server stops reading at a line break
    start = base64.b64decode(image[:16])  # whole groups of four: `read_call` has checked the padding
    kind = next((name for magic, name in _MAGIC if start.startswith(magic)), "jpeg")
    return f"data:image/{kind};base64,{image}"


def _tool_calls(calls: list[Any], position: int) -> list[dict[str, Any]]:
    out = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ClientError(400, "tool_calls: each call needs a function with name and arguments")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise ClientError(400, "tool_calls: arguments must be an object")
        out.append(
            {
                "id": call.get("id") or f"call_{position}_{number}",
                "type": "function",
                "function": {
                    "name": function.get("name") or "",
                    "arguments": msgspec.json.encode(arguments or {}).decode(),
                },
            }
        )
    return out


def _answered(open_calls: list[tuple[str, str]], call_id: str | None, name: str | None) -> str:
    """The id of the call that a tool message answers: the one it names, else the oldest open one of that function."""
    if call_id:
        match = next((item for item in open_calls if item[0] == call_id), None)
    else:
        match = next((item for item in open_calls if item[1] == name), open_calls[0] if open_calls else None)
    if match is None:
        return call_id or "call_0"
    open_calls.remove(match)
    return match[0]
