"""What a request to Ollama asks for, whichever of its routes it came by, checked as Ollama checks it.

Must not know loads, slots or how it is answered.
"""

from typing import Any

import msgspec

from proxy.emulated.go_values import duration_s, expect, read_object, read_options
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_runner import RUNNER_OPTIONS
from proxy.emulated.ollama_store import STOP, StoredModel
from proxy.emulated.options import Options
from proxy.emulated.prompts import (
    Message,
    from_anthropic,
    from_responses,
    has_images,
    render_chat,
    schema_of,
    tool_to_call,
)
from proxy.emulated.replies import Tool, Wish
from proxy.emulated.text import tokenize

_KEPT = 4
"""--keep of Ollama's child."""


class Asked(msgspec.Struct):
    """One request, understood, but not yet checked against its model."""

    model: str
    stream: bool
    chat: bool
    body: dict[str, Any]
    options: dict[str, Any] = {}
    keep_alive_s: float | None = None
    messages: list[Message] = []
    text: str | None = None
    """A prompt that is used as it is."""
    context: list[int] = []
    tool: Tool | None = None
    empty: bool = False
    """Nothing to answer: it only loads or unloads."""
    may_truncate: bool = True
    sees: bool = False
    """The model takes pictures."""

    @property
    def runner(self) -> dict[str, Any]:
        """The options that choose how the model is loaded."""
        given = self.options | {"shift": self.body.get("shift")}
        return {name: given[name] for name in RUNNER_OPTIONS if given.get(name) is not None}

    @property
    def logprobs(self) -> int | None:
        """How many alternatives each token's probability is told with; None: it is not told."""
        return int(self.body.get("top_logprobs") or 0) if self.body.get("logprobs") is True else None

    @property
    def most(self) -> int:
        """Tokens to generate at most; -1: no limit was given."""
        return int(self.options.get("num_predict", -1))


_LISTS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "model": (str, "string"),
    "messages": (list, "[]api.Message"),
    "stream": (bool, "bool"),
    "options": (dict, "map[string]interface {}"),
}


def read_chat(body: bytes) -> Asked:
    """A request to /api/chat."""
    fields = read_object(body, "api.ChatRequest")
    expect(fields, "ChatRequest", _LISTS)
    messages = fields.get("messages") or []
    return Asked(
        model=fields.get("model") or "",
        stream=fields.get("stream", True) is not False,
        chat=True,
        body=fields,
        options=read_options_later(fields),
        keep_alive_s=duration_s(fields.get("keep_alive")),
        messages=messages,
        tool=tool_to_call(fields, messages),
        empty=not messages,
        may_truncate=not (fields.get("truncate") is False and fields.get("shift") is False),
    )


def read_generate(body: bytes) -> Asked:
    """A request to /api/generate."""
    fields = read_object(body, "api.GenerateRequest")
    expect(fields, "GenerateRequest", _LISTS | {"prompt": (str, "string"), "context": (list, "[]int")})
    prompt = str(fields.get("prompt") or "")
    system = str(fields.get("system") or "")
    text = None
    if fields.get("raw"):
        text = prompt
    elif template := fields.get("template"):
        text = str(template).replace("{{ .System }}", system).replace("{{ .Prompt }}", prompt)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    user = {"role": "user", "content": prompt, "images": fields.get("images")}
    return Asked(
        model=fields.get("model") or "",
        stream=fields.get("stream", True) is not False,
        chat=False,
        body=fields,
        options=read_options_later(fields),
        keep_alive_s=duration_s(fields.get("keep_alive")),
        messages=[*messages, user],
        text=text,
        context=[] if fields.get("raw") else list(fields.get("context") or []),
        empty=not prompt,
        may_truncate=not (fields.get("truncate") is False and fields.get("shift") is False),
    )


def read_options_later(fields: dict[str, Any]) -> dict[str, Any]:
    """The options unchecked: Ollama checks them only once the model is known (see `check_model`)."""
    return dict(fields.get("options") or {})


def _openai_options(fields: dict[str, Any], most: Any) -> dict[str, Any]:
    stop = fields.get("stop", fields.get("stop_sequences"))
    options = {"num_predict": most, "seed": fields.get("seed"), "temperature": fields.get("temperature")}
    options["stop"] = [stop] if isinstance(stop, str) else stop
    return {name: value for name, value in options.items() if value is not None}


def read_openai_chat(body: bytes) -> Asked:
    """A request to /v1/chat/completions."""
    fields = read_object(body, "openai.ChatCompletionRequest")
    expect(fields, "ChatCompletionRequest", _LISTS | {"messages": (list, "[]openai.Message")})
    messages = fields.get("messages") or []
    if not messages:
        raise OllamaError(400, "[] is too short - 'messages'", early=True)
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    return _translated(fields, messages, _openai_options(fields, most))


def read_openai_completion(body: bytes) -> Asked:
    """A request to /v1/completions."""
    fields = read_object(body, "openai.CompletionRequest")
    expect(fields, "CompletionRequest", {"model": (str, "string"), "prompt": (str, "string")})
    messages: list[Message] = [{"role": "user", "content": fields.get("prompt") or ""}]
    asked = _translated(fields, messages, _openai_options(fields, fields.get("max_tokens")))
    asked.chat = False
    return asked


def read_responses(body: bytes) -> Asked:
    """A request to /v1/responses."""
    fields = read_object(body, "openai.ResponsesRequest")
    if fields.get("input") is None:
        raise OllamaError(400, "input is required", early=True)
    return _translated(fields, from_responses(fields), _openai_options(fields, fields.get("max_output_tokens")))


def read_anthropic(body: bytes) -> Asked:
    """A request to /v1/messages."""
    fields = read_object(body, "anthropic.MessagesRequest")
    if not isinstance(fields.get("max_tokens"), int) or fields["max_tokens"] <= 0:
        raise OllamaError(400, "max_tokens is required and must be positive", early=True)
    if not isinstance(fields.get("messages"), list) or not fields["messages"]:
        raise OllamaError(400, "messages is required", early=True)
    return _translated(fields, from_anthropic(fields), _openai_options(fields, fields["max_tokens"]))


def _translated(fields: dict[str, Any], messages: list[Message], options: dict[str, Any]) -> Asked:
    return Asked(
        model=fields.get("model") or "",
        stream=fields.get("stream") is True,
        chat=True,
        body=fields,
        options=options,
        messages=messages,
        tool=tool_to_call(fields, messages),
    )


def check_model(asked: Asked, model: StoredModel) -> None:
    """Check what is asked for against what the model can do, then its options; fill in what its Modelfile says.

    Raises:
        OllamaError: it cannot, in Ollama's words.
    """
    name, can = model.name.full, model.facts.capabilities
    if "completion" not in can:
        raise OllamaError(400, f'"{asked.model}" does not support {"chat" if asked.chat else "generate"}')
    if asked.body.get("think") and "thinking" not in can:
        raise OllamaError(400, f'"{asked.model}" does not support thinking')
    if asked.body.get("tools") and "tools" not in can:
        raise OllamaError(400, f"{name} does not support tools")
    if asked.body.get("suffix") and "insert" not in can:
        raise OllamaError(400, f"{name} does not support insert")
    asked.sees = "vision" in can
    own = {name: value for name, value in model.settings.items() if (name, value) != ("stop", STOP)}
    asked.options = read_options({**own, **{name: one for name, one in asked.options.items() if one is not None}})
    if model.system and not any(message.get("role") == "system" for message in asked.messages[:1]):
        asked.messages = [{"role": "system", "content": model.system}, *asked.messages]


def prompt_tokens(asked: Asked, context: int) -> list[int]:
    """The prompt, cut to the context as Ollama cuts it.

    Raises:
        OllamaError: it does not fit and must not be cut, or it holds pictures that the model cannot see.
    """
    if has_images(asked.messages) and not asked.sees:
        message = "Multimodal data provided, but model does not support multimodal requests."
        raise _child_error(f'{{"code":400,"message":"{message}","type":"invalid_request_error"}}')
    tokens = tokenize(asked.text) if asked.text is not None else asked.context + _rendered(asked, context)
    if len(tokens) < context:
        return tokens
    if not asked.may_truncate:
        message = (
            f"request ({len(tokens)} tokens) exceeds the available context size ({context} tokens), try increasing it"
        )
        raise _child_error(
            f'{{"code":400,"message":"{message}","type":"exceed_context_size_error",'
            f'"n_prompt_tokens":{len(tokens)},"n_ctx":{context}}}'
        )
    return tokens[:_KEPT] + tokens[-(context - _KEPT) // 2 :]


def _child_error(text: str) -> OllamaError:
    """An error of the process that computes: Ollama passes its JSON on as text."""
    return OllamaError(400, f'{{"error":{text}}}')


def _rendered(asked: Asked, context: int) -> list[int]:
    """The chat through the template, without its oldest messages if it does not fit (the system text stays)."""
    tools = asked.body.get("tools") or []
    messages = list(asked.messages)
    tokens = tokenize(render_chat(messages, tools))
    while len(tokens) >= context and asked.may_truncate:
        oldest = next((place for place, one in enumerate(messages[:-1]) if one.get("role") != "system"), None)
        if oldest is None:
            break
        del messages[oldest]
        tokens = tokenize(render_chat(messages, tools))
    return tokens


def wish_of(asked: Asked, options: Options) -> Wish:
    """What shapes the answer."""
    seed = asked.options.get("seed")
    stop = asked.options.get("stop") or ()
    return Wish(
        seed=options.seed if seed is None else int(seed),
        length=options.answer_tokens,
        stop=tuple(str(word) for word in stop),
        schema=schema_of(asked.body),
        tool=asked.tool,
    )
