"""Owns what passing bytes tell: token counts, and whether the stream reached its end mark. Changes nothing.

Only the last few KiB are kept, and read when somebody asks. Every mark is a piece of JSON with unescaped quotes, so
text that a model wrote, whose quotes are escaped, cannot be taken for one.
"""

import re
from collections.abc import Callable

import msgspec

KEEP_BYTES = 8 * 1024
"""Longest end of a stream that is looked at: the last record of every engine has its counts within this."""
_HEAD_BYTES = 2 * 1024


REPEATED = 30
"""Same tokens in a row after which Ollama ends an answer that has no end (llm/llama_server.go: more than 30)."""
_ADDED = re.compile(rb'"(?:content|response|delta|text)":"((?:[^"\\]|\\.)+)"')
"""What a record adds to an answer: of Ollama's own APIs, chat completions, responses, messages and completions."""


class Usage(msgspec.Struct, frozen=True):
    """What one answer cost, as its engine reports it. None: not told."""

    prompt_tokens: int | None = None
    """All of the prompt, cached part included."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prompt_ms: float | None = None
    """Time spent on the part that was not cached; waiting not included."""
    output_ms: float | None = None
    slot: int | None = None
    """The slot that answered: told at the end of llama-server's own streams and answers, if the prompt is not long."""
    load_ms: float | None = None
    """Time until the model was loaded: told by an Ollama's own API, which loads it if nobody has."""


class StreamWatch:
    """A `Watch` over a stream with an end mark, or over one JSON document without."""

    def __init__(self, ended: Callable[[bytes], bool] | None = None, *, record_end: bytes = b"\n") -> None:
        """Look at nothing yet.

        Args:
            ended: looks for the end mark in the tail; None where the dialect has none.
            record_end: how a record of the stream ends; a blank line for server-sent events.
        """
        self._ended = ended
        self._record_end = record_end
        self._chunks: list[bytes] = []
        self._size = 0
        self._head = b""

    def see(self, data: bytes) -> None:
        """The next bytes of the engine's body."""
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        self._chunks.append(data)
        self._size += len(data)
        if self._size > 2 * KEEP_BYTES:
            self._trim()

    def complete(self) -> bool:
        """The end mark was seen. Always True where there is none."""
        return self._ended is None or self._ended(self._tail())

    @property
    def midline(self) -> bool:
        """The bytes so far end inside a record: what is added now would belong to it."""
        tail = self._tail()
        return bool(tail) and not tail.endswith(self._record_end)

    @property
    def usage(self) -> Usage:
        """Token counts and times of the last record; of a stream that ended early there may be none."""
        return _usage(self._tail(), self._head)

    @property
    def error(self) -> str | None:
        """The text of an error that the engine sent as the last record of its stream."""
        line = self._tail().rstrip().rpartition(b"\n")[2]
        if b'"error"' not in line:
            return None
        try:
            record = msgspec.json.decode(line.removeprefix(b"data:"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        error = record.get("error") if isinstance(record, dict) else None
        if isinstance(error, dict):
            error = error.get("message")
        return error if isinstance(error, str) else None

    @property
    def repeated(self) -> bool:
        """The last records of the stream all add the same text. Ollama ends such an answer, without an end mark."""
        said = _ADDED.findall(self._tail())[-REPEATED:]
        return len(said) == REPEATED and len(set(said)) == 1

    def _tail(self) -> bytes:
        if len(self._chunks) > 1 or self._size > KEEP_BYTES:
            self._trim()
        return self._chunks[0] if self._chunks else b""

    def _trim(self) -> None:
        tail = b"".join(self._chunks)[-KEEP_BYTES:]
        self._chunks = [tail]
        self._size = len(tail)


def ndjson_ended(tail: bytes) -> bool:
    """Ollama: the last line says `"done":true`. A long `context` may have pushed that out of sight, not the counts."""
    if not tail.endswith(b"}\n"):
        return False
    line = tail[:-1].rpartition(b"\n")[2]
    return b'"done":true' in line or (b'],"total_duration":' in line and not line.startswith(b"{"))


def done_ended(tail: bytes) -> bool:
    """OpenAI: `data: [DONE]`."""
    return tail.rstrip().endswith(b"data: [DONE]")


def completion_ended(tail: bytes) -> bool:
    """llama-server's /completion and /infill: the record that says `"stop":true`, which repeats the whole prompt."""
    record = tail[max(tail.rfind(b"data: {"), 0) :]
    return record.endswith(b"}\n\n") and (b'"stop":true' in record or b'"stop_type":"' in record)


def messages_ended(tail: bytes) -> bool:
    """Anthropic: `message_stop`."""
    return tail.rstrip().endswith((b'data: {"type":"message_stop"}', b'data: {"type": "message_stop"}'))


def responses_ended(tail: bytes) -> bool:
    """OpenAI Responses: `response.completed`, `incomplete` or `failed`, which repeat the whole output."""
    if not tail.endswith(b"}\n\n"):
        return False
    if b'"usage":{"input_tokens":' in tail:
        return True
    return any(b'"type":"response.%s"' % end in tail for end in (b"completed", b"incomplete", b"failed"))


_NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def _usage(tail: bytes, head: bytes) -> Usage:
    timings = tail.rfind(b'"timings":{')
    if timings >= 0:
        part = tail[timings:]
        cached, processed = _int(part, b"cache_n"), _int(part, b"prompt_n")
        return Usage(
            prompt_tokens=None if processed is None else processed + (cached or 0),
            cached_tokens=cached,
            output_tokens=_int(part, b"predicted_n"),
            prompt_ms=_float(part, b"prompt_ms"),
            output_ms=_float(part, b"predicted_ms"),
            slot=_int(tail, b"id_slot"),
        )
    if b'"eval_duration":' in tail or b'"total_duration":' in tail:
        prompt_ns, output_ns = _float(tail, b"prompt_eval_duration"), _float(tail, b"eval_duration")
        load_ns = _float(tail, b"load_duration")
        return Usage(
            prompt_tokens=_int(tail, b"prompt_eval_count"),
            output_tokens=_int(tail, b"eval_count"),
            prompt_ms=None if prompt_ns is None else prompt_ns / 1e6,
            output_ms=None if output_ns is None else output_ns / 1e6,
            load_ms=None if load_ns is None else load_ns / 1e6,
        )
    if b'"input_tokens":' in tail or b'"output_tokens":' in tail:
        return _anthropic_usage(tail, head)
    return Usage(
        prompt_tokens=_int(tail, b"prompt_tokens"),
        cached_tokens=_int(tail, b"cached_tokens"),
        output_tokens=_int(tail, b"completion_tokens"),
    )


def _anthropic_usage(tail: bytes, head: bytes) -> Usage:
    """Anthropic and Responses. Anthropic counts cached tokens apart; llama-server tells them at the start."""
    cached = _int(tail, b"cached_tokens")
    prompt = _int(tail, b"input_tokens")
    if cached is None:
        source = tail if b'"cache_read_input_tokens":' in tail else head
        cached = _int(source, b"cache_read_input_tokens")
        if cached is not None:
            fresh = _int(source, b"input_tokens")
            prompt = None if fresh is None else fresh + cached
    return Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=_int(tail, b"output_tokens"))


def _find(data: bytes, name: bytes) -> bytes | None:
    start = data.rfind(b'"' + name + b'":')
    if start < 0:
        return None
    match = _NUMBER.match(data, start + len(name) + 3)
    return match.group() if match else None


def _int(data: bytes, name: bytes) -> int | None:
    found = _find(data, name)
    return None if found is None else int(float(found))


def _float(data: bytes, name: bytes) -> float | None:
    found = _find(data, name)
    return None if found is None else float(found)
