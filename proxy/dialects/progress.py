"""Owns taking llama-server's progress frames out of a stream that never asked for them. Must not know the relay.

A llama-server notices that a client has left only when it sends something. With `return_progress` it sends a frame
per prompt batch, so an abandoned prefill stops; without, it runs to its end while any other stream is busy. What this
filter lets through is what the engine would have sent without `return_progress`, byte for byte.
"""

import re

import msgspec

from proxy.dialects.contract import Headers
from proxy.dialects.sse import Events, data_of

_PROGRESS = re.compile(rb',"prompt_progress":\{[^{}]*\}')


class _Frame(msgspec.Struct):
    type: str = ""
    prompt_progress: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Frame).decode


class ProgressFilter:
    """A `ReplyTransform` that drops progress frames up to the first real one, or to the end."""

    def __init__(self, *, to_end: bool = False) -> None:
        """`to_end`: several prompts share the stream, so progress of one may follow output of another."""
        self._events = Events()
        self._to_end = to_end
        self._open = True
        self._in_progress_sent = False

    def head(self, status: int, headers: Headers) -> Headers:  # noqa: ARG002 - the relay's contract
        """The engine's own."""
        return headers

    def feed(self, data: bytes) -> bytes:
        """The frames that are not progress."""
        if not self._open:
            return data
        out: list[bytes] = []
        events = self._events.feed(data)
        for position, event in enumerate(events):
            kept, real = self._look(event)
            out.append(kept)
            if real and not self._to_end:
                self._open = False
                out += events[position + 1 :]
                out.append(self._events.rest())
                break
        return b"".join(out)

    def finish(self) -> bytes:
        """What the engine left unfinished; whether the stream was complete is for the `Watch` to say."""
        return self._events.rest()

    @property
    def passthrough(self) -> bool:
        """The first real frame has gone by."""
        return not self._open

    def _look(self, event: bytes) -> tuple[bytes, bool]:
        """What remains of an event, and whether it is one after which no progress can come."""
        data = data_of(event)
        if data is None:
            return event, False
        try:
            frame = _decode(data)
        except msgspec.DecodeError:
            return event, True
        if frame.type == "response.created":
            return event, False
        if not frame.prompt_progress:
            self._in_progress_sent = self._in_progress_sent or frame.type == "response.in_progress"
            return event, frame.type != "response.in_progress"
        # /v1/responses puts its progress into `response.in_progress`, which it sends once in any case.
        if frame.type == "response.in_progress" and not self._in_progress_sent:
            self._in_progress_sent = True
            return _PROGRESS.sub(b"", event, count=1), False
        return b"", False
