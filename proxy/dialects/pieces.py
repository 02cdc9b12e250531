"""Owns reading llama-server's stream records, chat and native, into pieces of an answer. Not who wants them."""

from typing import Any

import msgspec

from proxy.dialects.sse import data_of


class Timings(msgspec.Struct):
    """llama-server's account of one answer; times in ms."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class ToolDelta(msgspec.Struct):
    """A piece of a tool call: the first of an index brings id and name."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Piece(msgspec.Struct):
    """What one record adds to an answer."""

    content: str = ""
    thinking: str = ""
    tools: list[ToolDelta] = []
    logprobs: list[dict[str, Any]] = []
    finish: str = ""
    """`stop` or `length` in the last record."""
    timings: Timings | None = None
    error: str = ""
    """What went wrong inside the engine; nothing comes after it."""


class RecordError(msgspec.Struct):
    """The error that a record reports."""

    message: str = ""

    def text(self) -> str:
        """In the engine's words, if it has any."""
        return self.message or "unknown error"


class Function(msgspec.Struct):
    """What a piece of a tool call says of the function."""

    name: str | None = None
    arguments: str | None = None


class Tool(msgspec.Struct):
    """A piece of a tool call, as chat records have it."""

    index: int = 0
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Delta(msgspec.Struct):
    """What a chat record adds to the message."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Tool] | None = None


class _Logprobs(msgspec.Struct):
    content: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chat(msgspec.Struct):
    choices: list[_Choice] = []
    timings: Timings | None = None
    error: RecordError | None = None


class _Completion(msgspec.Struct):
    content: str = ""
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[dict[str, Any]] = []
    timings: Timings | None = None
    error: RecordError | None = None


_chat = msgspec.json.Decoder(_Chat).decode
_completion = msgspec.json.Decoder(_Completion).decode
_DONE = b"[DONE]"


def chat_piece(event: bytes) -> Piece | None:
    """What an event of /v1/chat/completions adds; None for comments, progress and the end mark.

    Raises:
        msgspec.DecodeError: it is not what llama-server sends.
    """
    data = data_of(event)
    if data is None or data == _DONE:
        return None
    record = _chat(data)
    if record.error is not None:
        return Piece(error=record.error.text())
    if not record.choices:
        return None
    choice = record.choices[0]
    finish = "" if choice.finish_reason is None else "length" if choice.finish_reason == "length" else "stop"
    return Piece(
        content=choice.delta.content or "",
        thinking=choice.delta.reasoning_content or "",
        tools=[
            ToolDelta(tool.index, tool.id or "", tool.function.name or "", tool.function.arguments or "")
            for tool in choice.delta.tool_calls or ()
        ],
        logprobs=(choice.logprobs.content or []) if choice.logprobs else [],
        finish=finish,
        timings=record.timings,
    )


def completion_piece(event: bytes) -> Piece | None:
    """What an event of /completion or /infill adds.

    Raises:
        msgspec.DecodeError: it is not what llama-server sends.
    """
    data = data_of(event)
    if data is None or data == _DONE:
        return None
    record = _completion(data)
    if record.error is not None:
        return Piece(error=record.error.text())
    return Piece(
        content=record.content,
        logprobs=record.completion_probabilities,
        finish="" if not record.stop else "length" if record.stop_type == "limit" else "stop",
        timings=record.timings,
    )
