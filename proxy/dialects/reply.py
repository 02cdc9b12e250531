"""Owns turning llama-server's streams into Ollama's answers, streamed or whole. Must not know requests' bodies.

The clock is an argument: created_at and the durations of the last record come from it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from proxy.dialects.call import Call
from proxy.dialects.contract import EngineError, Headers, TruncatedReply, check_held
from proxy.dialects.pieces import Piece, Timings, ToolDelta
from proxy.dialects.shapes import ChatRecord, GenerateRecord, Message, ToolCall, ToolFunction, encode
from proxy.dialects.sse import Events
from proxy.dialects.times import duration_ns, rfc3339_nano

WHOLE_HEAD = ("Content-Type", "application/json; charset=utf-8")
STREAM_HEAD = ("Content-Type", "application/x-ndjson")


class OllamaReply:
    """A `ReplyTransform` from one of llama-server's streams to /api/chat or /api/generate."""

    def __init__(self, call: Call, read: Callable[[bytes], Piece | None], clock_ns: Callable[[], int]) -> None:
        """`read` makes a piece of an event: `chat_piece` or `completion_piece`."""
        self._call = call
        self._read = read
        self._clock_ns = clock_ns
        self._opened_ns = clock_ns()
        self._events = Events()
        self._size = 0
        self._is_chat = call.route.path == "/api/chat"
        self._think = call.fields.get("think") is not False
        self._tops = call.fields.get("top_logprobs") or 0
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._logprobs: list[Any] = []
        self._tools: dict[int, ToolDelta] = {}
        self._calls: list[ToolCall] = []
        self._done = False
        self._whole = b""

    @property
    def passthrough(self) -> bool:
        """Never: every record has another form."""
        return False

    def head(self, status: int, headers: Headers) -> Headers:  # noqa: ARG002 - the relay's contract
        """Ollama's content type; nothing of the engine's head is for the client."""
        return [STREAM_HEAD if self._call.stream else WHOLE_HEAD]

    def feed(self, data: bytes) -> bytes:
        """Records that are complete with these bytes; of a whole answer nothing until its end.

        Raises:
            EngineError: the engine reported an error inside its stream, or sent what cannot be read or held.
        """
        if not self._call.stream:
            self._size += len(data)
            check_held(self._size)
        out: list[bytes] = []
        for event in self._events.feed(data):
            try:
                piece = self._read(event)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EngineError(f"unreadable record: {error}") from None
            if piece is None or self._done:
                continue
            if piece.error:
                raise EngineError(piece.error)
            self._take(piece, out)
        return b"".join(out)

    def finish(self) -> bytes:
        """The whole answer, if it is not streamed; the last record of a stream went out with the engine's.

        Raises:
            TruncatedReply: the engine's last record never came.
        """
        if not self._done:
            raise TruncatedReply("the engine's stream ended without its last record")
        return self._whole

    def _take(self, piece: Piece, out: list[bytes]) -> None:
        thinking = piece.thinking if self._think else ""
        logprobs = [self._logprob(item) for item in piece.logprobs]
        for tool in piece.tools:
            self._add_tool(tool)
        if piece.finish:
            self._close_tools()
        if not self._call.stream:
            self._content.append(piece.content)
            self._thinking.append(thinking)
            self._logprobs += logprobs
        else:
            calls, self._calls = self._calls, []
            # Text that was left of an unfinished tool call comes out with the rest.
            content = piece.content + "".join(self._content)
            self._content.clear()
            if content or thinking or logprobs or calls:
                out.append(self._record(content, thinking, calls, logprobs) + b"\n")
        if piece.finish:
            self._done = True
            last = self._last(piece.finish, piece.timings or Timings())
            if self._call.stream:
                out.append(last)
            else:
                self._whole = last

    def _add_tool(self, delta: ToolDelta) -> None:
        tool = self._tools.get(delta.index)
        if tool is None:
            self._close_tools()
            self._tools[delta.index] = ToolDelta(delta.index, delta.id, delta.name, delta.arguments)
        else:
            tool.name += delta.name
            tool.arguments += delta.arguments

    def _close_tools(self) -> None:
        """Calls whose arguments are whole: Ollama never sends a call in pieces."""
        for index, tool in self._tools.items():
            arguments = tool.arguments.strip() or "{}"
            try:
                whole = isinstance(msgspec.json.decode(arguments), dict)
            except msgspec.DecodeError:
                whole = False
            if whole:
                # Through Go the arguments come out compact.
                raw = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(arguments)))
                self._calls.append(ToolCall(tool.id, ToolFunction(index, tool.name, raw)))
            else:
                self._content.append(f'{{"name": "{tool.name}", "arguments": {tool.arguments}')
        self._tools.clear()

    def _logprob(self, item: dict[str, Any]) -> dict[str, Any]:
        keys = ("token", "logprob", "bytes")
        kept: dict[str, Any] = {key: item[key] for key in keys if key in item}
        if self._tops:
            kept["top_logprobs"] = [
                {key: top[key] for key in keys if key in top} for top in item.get("top_logprobs", [])[: self._tops]
            ]
        return kept

    def _record(self, content: str, thinking: str, calls: list[ToolCall], logprobs: list[Any]) -> bytes:
        model, now = self._call.model or "", rfc3339_nano(self._clock_ns())
        if self._is_chat:
            message = Message("assistant", content, thinking, calls)
            return encode(ChatRecord(model, now, message, done=False, logprobs=logprobs))
        return encode(
            GenerateRecord(
                model=model, created_at=now, response=content, thinking=thinking, done=False, logprobs=logprobs
            )
        )

    def _last(self, reason: str, timings: Timings) -> bytes:
        now_ns = self._clock_ns()
        model, now = self._call.model or "", rfc3339_nano(now_ns)
        content, thinking = "".join(self._content), "".join(self._thinking)
        metrics: dict[str, Any] = {
            "done_reason": reason,
            "logprobs": self._logprobs,
            "total_duration": max(0, now_ns - self._call.arrived_ns),
            # In Ollama too this is the time until an engine was at hand: the wait in the line is in it.
            "load_duration": max(0, self._opened_ns - self._call.arrived_ns),
            "prompt_eval_count": timings.cache_n + timings.prompt_n,
            "prompt_eval_duration": duration_ns(timings.prompt_ms),
            "eval_count": timings.predicted_n,
            "eval_duration": duration_ns(timings.predicted_ms),
        }
        if self._is_chat:
            message = Message("assistant", content, thinking, self._calls)
            record = encode(ChatRecord(model, now, message, done=True, **metrics))
        else:
            record = encode(
                GenerateRecord(model=model, created_at=now, response=content, thinking=thinking, done=True, **metrics)
            )
        return record + b"\n" if self._call.stream else record


class EmbedReply:
    """A `ReplyTransform` from /v1/embeddings to Ollama's two. The engine's numbers keep their digits."""

    def __init__(self, call: Call, clock_ns: Callable[[], int]) -> None:
        self._call = call
        self._clock_ns = clock_ns
        self._opened_ns = clock_ns()
        self._body = bytearray()

    @property
    def passthrough(self) -> bool:
        """Never."""
        return False

    def head(self, status: int, headers: Headers) -> Headers:  # noqa: ARG002 - the relay's contract
        """Ollama's content type."""
        return [WHOLE_HEAD]

    def feed(self, data: bytes) -> bytes:
        """Nothing until the end.

        Raises:
            EngineError: it does not end in time.
        """
        self._body += data
        check_held(len(self._body))
        return b""

    def finish(self) -> bytes:
        """The whole answer.

        Raises:
            TruncatedReply: the engine's answer is no whole JSON document.
        """
        try:
            answer = _embeddings(self._body)
        except msgspec.DecodeError as error:
            raise TruncatedReply(f"unreadable embeddings from the engine: {error}") from None
        vectors = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        if self._call.route.path == "/api/embeddings":
            return encode({"embedding": vectors[0] if vectors else []})
        size = self._call.fields.get("dimensions") or 0
        shown = [_shortened(vector, size) for vector in vectors] if size > 0 else vectors
        record = {
            "model": self._call.model or "",
            "embeddings": shown,
            "total_duration": max(0, self._clock_ns() - self._call.arrived_ns),
            "load_duration": max(0, self._opened_ns - self._call.arrived_ns),
            "prompt_eval_count": answer.usage.prompt_tokens if answer.usage else 0,
        }
        return encode({key: value for key, value in record.items() if value != 0})


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw
    index: int = 0


class _EmbedUsage(msgspec.Struct):
    prompt_tokens: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    usage: _EmbedUsage | None = None


_embeddings = msgspec.json.Decoder(_Embeddings).decode
_floats = msgspec.json.Decoder(list[float]).decode


def _shortened(vector: msgspec.Raw, size: int) -> list[float] | msgspec.Raw:
    """The first numbers of a vector, brought to length 1 again."""
    numbers = _floats(vector)
    if len(numbers) <= size:
        return vector
    numbers = numbers[:size]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers] if length else numbers
