"""Owns putting a streamed llama-server answer together again, as that server would have answered unstreamed.

A llama-server notices late, or never, that the client of an unstreamed request has left. So such requests go to it as
streams where what comes out can be made equal to its own whole answer, field by field and in its order; `*_FIELDS` say
for which requests that was shown. All others pass as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.dialects.contract import EngineError, Headers, TruncatedReply, check_held
from proxy.dialects.pieces import Delta, RecordError
from proxy.dialects.reading import names
from proxy.dialects.sse import Events, data_of

_SAMPLING = names(
    "model stream temperature dynatemp_range dynatemp_exponent top_k top_p min_p top_n_sigma xtc_probability "
    "xtc_threshold typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty dry_multiplier dry_base "
    "dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat mirostat_tau mirostat_eta seed logit_bias "
    "samplers max_tokens n_predict n_keep ignore_eos cache_prompt grammar json_schema n id_slot t_max_predict_ms "
    "user metadata store service_tier safety_identifier prompt_cache_key"
)

CHAT_FIELDS = _SAMPLING + names(
    "messages max_completion_tokens response_format tools tool_choice parallel_tool_calls logprobs top_logprobs "
    "chat_template_kwargs reasoning_format reasoning_effort add_generation_prompt"
)
"""Request fields with which a whole /v1/chat/completions answer can be made of a stream. `stop` is not among them:
text that a token limit cuts off inside a possible stop sequence is in a whole answer, but never in a stream."""

COMPLETIONS_FIELDS = (*_SAMPLING, "prompt", "logprobs")
"""The same for /v1/completions."""

COMPLETION_FIELDS = (*_SAMPLING, "prompt", "n_probs")
"""The same for /completion."""

_FIELDS = {
    "/v1/chat/completions": frozenset(CHAT_FIELDS),
    "/v1/completions": frozenset(COMPLETIONS_FIELDS),
    "/completion": frozenset(COMPLETION_FIELDS),
    "/completions": frozenset(COMPLETION_FIELDS),
}


def can_assemble(path: str, fields: Mapping[str, Any], seats: int) -> bool:
    """Whether an unstreamed request to this path may go to the engine as a stream."""
    known = _FIELDS.get(path)
    if known is None or seats != 1 or not known.issuperset(fields):
        return False
    if fields.get("n") is not None and (type(fields["n"]) is not int or fields["n"] != 1):
        return False  # how many answers come is then the engine's to say
    if path != "/v1/chat/completions":
        return isinstance(fields.get("prompt"), str)
    if fields.get("tools") and fields.get("logprobs"):
        return False  # the engine refuses the two together in a stream, but not in a whole answer
    return not _is_prefilled(fields.get("messages"))


def _is_prefilled(messages: object) -> bool:
    """The answer goes on where the last message ends: the engine's whole answer repeats that, its stream does not."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def assembler(path: str) -> "ChatAssembly | CompletionsAssembly | CompletionAssembly":
    """The transform for a path that `can_assemble` said yes to."""
    if path == "/v1/chat/completions":
        return ChatAssembly()
    return CompletionsAssembly() if path == "/v1/completions" else CompletionAssembly()


def added_fields(path: str) -> dict[str, Any]:
    """What makes the request a stream that holds all that the whole answer has."""
    fields: dict[str, Any] = {"stream": True, "return_progress": True}
    if path == "/v1/chat/completions":
        fields["stream_options"] = {"include_usage": True}
    return fields


class _Assembly(ABC):
    """What the three have in common: events in, one JSON document out at the end."""

    def __init__(self) -> None:
        self._events = Events()
        self._size = 0
        self._ended = False

    @property
    def passthrough(self) -> bool:
        """Never."""
        return False

    def head(self, status: int, headers: Headers) -> Headers:  # noqa: ARG002 - the relay's contract
        """The engine's, with the content type of its whole answers."""
        dropped = ("content-type", "x-accel-buffering", "cache-control")
        kept = [(name, value) for name, value in headers if name.lower() not in dropped]
        return [*kept, ("Content-Type", "application/json; charset=utf-8")]

    def feed(self, data: bytes) -> bytes:
        """Nothing before the end of the answer.

        Raises:
            EngineError: the engine reported an error inside its stream, or sent what cannot be read or is too long.
                Nothing has gone to the client yet.
        """
        self._size += len(data)
        check_held(self._size)
        for event in self._events.feed(data):
            record = data_of(event)
            if record is None:
                continue
            if record == b"[DONE]":
                self._ended = True
                continue
            try:
                self._take(record)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EngineError(f"unreadable record: {error}") from None
        return b""

    def finish(self) -> bytes:
        """The whole answer.

        Raises:
            TruncatedReply: the stream's end mark is missing.
        """
        if not self._ended:
            raise TruncatedReply("the engine's stream ended without its end mark")
        return msgspec.json.encode(self._whole())

    @abstractmethod
    def _take(self, record: bytes) -> None: ...

    @abstractmethod
    def _whole(self) -> dict[str, Any]: ...


def _fail(error: RecordError | None) -> None:
    if error is not None:
        raise EngineError(error.text())


def _check_index(index: int) -> None:
    if index != 0:
        raise EngineError("the engine gave several answers to a request for one")


_NONE = msgspec.Raw(b"")
"""Not there; a union of Raw and None would be read as None."""


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] = []


class _Choice(msgspec.Struct):
    index: int = 0
    delta: Delta = msgspec.field(default_factory=Delta)
    text: str = ""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    created: msgspec.Raw = msgspec.Raw(b"0")
    id: msgspec.Raw = msgspec.Raw(b'""')
    model: msgspec.Raw = msgspec.Raw(b'""')
    system_fingerprint: msgspec.Raw = msgspec.Raw(b'""')
    usage: msgspec.Raw = _NONE
    timings: msgspec.Raw = _NONE
    prompt_progress: msgspec.Raw = _NONE
    error: RecordError | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_raw_record = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _OpenAIAssembly(_Assembly):
    def __init__(self) -> None:
        super().__init__()
        self._last = _Chunk()
        self._finish: str | None = None
        self._usage = _NONE
        self._timings = _NONE
        self._logprobs: list[msgspec.Raw] = []

    def _take(self, record: bytes) -> None:
        chunk = _chunk(record)
        _fail(chunk.error)
        if chunk.prompt_progress:
            return
        self._last = chunk
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        for choice in chunk.choices:
            _check_index(choice.index)
            self._finish = choice.finish_reason or self._finish
            if choice.logprobs is not None:
                self._logprobs += [msgspec.Raw(bytes(item)) for item in choice.logprobs.content]
            self._add(choice)

    @abstractmethod
    def _add(self, choice: _Choice) -> None: ...

    def _document(self, choice: dict[str, Any], kind: str) -> dict[str, Any]:
        last = self._last
        whole = {
            "choices": [choice],
            "created": last.created,
            "model": last.model,
            "system_fingerprint": last.system_fingerprint,
            "object": kind,
            "usage": self._usage,
            "id": last.id,
            "timings": self._timings,
        }
        return {key: value for key, value in whole.items() if value != b""}


class ChatAssembly(_OpenAIAssembly):
    """A `ReplyTransform` that makes a whole /v1/chat/completions answer of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[int, tuple[list[str], list[str], list[str]]] = {}

    def _add(self, choice: _Choice) -> None:
        delta = choice.delta
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning_content:
            self._reasoning.append(delta.reasoning_content)
        for tool in delta.tool_calls or ():
            ids, names, arguments = self._tools.setdefault(tool.index, ([], [], []))
            ids.append(tool.id or "")
            names.append(tool.function.name or "")
            arguments.append(tool.function.arguments or "")

    def _whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._tools:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": "".join(names), "arguments": "".join(arguments)},
                    "id": "".join(ids),
                }
                for ids, names, arguments in self._tools.values()
            ]
        choice: dict[str, Any] = {"finish_reason": self._finish, "index": 0, "message": message}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        return self._document(choice, "chat.completion")


class CompletionsAssembly(_OpenAIAssembly):
    """A `ReplyTransform` that makes a whole /v1/completions answer of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []

    def _add(self, choice: _Choice) -> None:
        self._text.append(choice.text)

    def _whole(self) -> dict[str, Any]:
        logprobs = {"content": self._logprobs} if self._logprobs else None
        choice = {"text": "".join(self._text), "index": 0, "logprobs": logprobs, "finish_reason": self._finish}
        return self._document(choice, "text_completion")


class _Native(msgspec.Struct):
    index: int = 0
    content: str = ""
    stop: bool = False
    completion_probabilities: list[msgspec.Raw] = []
    prompt_progress: msgspec.Raw = _NONE
    error: RecordError | None = None


_native = msgspec.json.Decoder(_Native).decode


class CompletionAssembly(_Assembly):
    """A `ReplyTransform` that makes a whole /completion answer of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._content: list[str] = []
        self._probabilities: list[msgspec.Raw] = []
        self._last: dict[str, msgspec.Raw] = {}

    def _take(self, record: bytes) -> None:
        piece = _native(record)
        _fail(piece.error)
        _check_index(piece.index)
        if piece.prompt_progress:
            return
        self._content.append(piece.content)
        self._probabilities += [msgspec.Raw(bytes(item)) for item in piece.completion_probabilities]
        if piece.stop:
            self._ended = True
            self._last = {key: msgspec.Raw(bytes(value)) for key, value in _raw_record(record).items()}

    def _whole(self) -> dict[str, Any]:
        whole: dict[str, Any] = dict(self._last)
        whole["content"] = "".join(self._content)
        if "generation_settings" in whole:
            settings: dict[str, Any] = dict(_raw_record(whole["generation_settings"]))
            settings["stream"] = False
            whole["generation_settings"] = settings
        if self._probabilities:
            whole["completion_probabilities"] = self._probabilities
        return whole
