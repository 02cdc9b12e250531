"""Owns the records of Ollama's answers: which fields, in which order, which of them vanish when empty. Pure shapes."""

from typing import Any

import msgspec

_ESCAPES = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


class ToolFunction(msgspec.Struct):
    """A function that the model wants called."""

    index: int
    name: str
    arguments: msgspec.Raw
    """A JSON object, as the model wrote it."""


class ToolCall(msgspec.Struct):
    """One call of a tool."""

    id: str
    function: ToolFunction


class Message(msgspec.Struct, omit_defaults=True):
    """What the model said: one piece of it in a stream."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: list[ToolCall] = []


class ChatRecord(msgspec.Struct, omit_defaults=True):
    """A record of /api/chat."""

    model: str
    created_at: str
    message: Message
    done: bool
    done_reason: str = ""
    logprobs: list[Any] = []
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class GenerateRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A record of /api/generate."""

    model: str
    created_at: str
    response: str
    thinking: str = ""
    done: bool
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[Any] = []


def encode(record: object) -> bytes:
    """JSON as Go's encoder writes it: compact, with `<`, `>`, `&` and the two Unicode line separators escaped."""
    data = msgspec.json.encode(record)
    # Once per token. `in` would try to read the bytes as a number first, and build an exception each time.
    find = data.find
    if find(b"<") >= 0 or find(b">") >= 0 or find(b"&") >= 0 or find(b"\xe2\x80") >= 0:
        for plain, escaped in _ESCAPES:
            data = data.replace(plain, escaped)
    return data
