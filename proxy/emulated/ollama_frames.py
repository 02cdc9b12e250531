"""The answers of Ollama's own API (`/api/chat`, `/api/generate`): lines of a stream and whole bodies.

Must not know sockets, slots or loads. Key order is Ollama's; zero counts and durations are left out as Go leaves them.
"""

import secrets
import string
import time
import zlib
from typing import Any

import msgspec

from proxy.emulated.jobs import Job
from proxy.emulated.ollama_heads import go_json, now_rfc3339
from proxy.emulated.replies import Stop, ToolUse
from proxy.emulated.text import WORDS

_ID_LETTERS = string.ascii_lowercase + string.digits


class Told(msgspec.Struct):
    """What an answer says besides its text."""

    model: str
    """As the client wrote it."""
    load_s: float
    begin_s: float
    """Monotonic time of the request's arrival."""
    estimate: int = 0
    """Input tokens as estimated before the prompt is known (Anthropic's stream)."""
    logprobs: int | None = None
    """How many alternatives each token's probability is told with; None: it is not told."""


def called(job: Job) -> ToolUse | None:
    """The tool that a finished job called."""
    return job.reply.tool if job.reply is not None and job.ended is not Stop.LIMIT else None


def call_id() -> str:
    """An id of a tool call as Ollama makes them."""
    return "call_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def done_reason(job: Job) -> str:
    """Ollama's word for why it ended."""
    return "length" if job.ended is Stop.LIMIT else "stop"


def counts(told: Told, job: Job) -> dict[str, int]:
    """Counts and durations (ns) of the last record."""
    values = {
        "total_duration": int((time.monotonic() - told.begin_s) * 1e9),
        "load_duration": max(1, int(told.load_s * 1e9)),
        "prompt_eval_count": len(job.prompt),
        "prompt_eval_duration": round(job.prompt_ms * 1000) * 1000,
        "eval_count": job.decoded,
        "eval_duration": round(job.output_ms * 1000) * 1000,
    }
    return {name: value for name, value in values.items() if value}


class NativeForm:
    """Lines of `/api/chat` and `/api/generate`."""

    def __init__(self, told: Told, *, chat: bool, context: bool = False) -> None:
        self._told, self._chat, self._context = told, chat, context

    def _record(self, text: str, calls: list[dict[str, Any]] | None = None, **rest: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"model": self._told.model, "created_at": now_rfc3339()}
        if self._chat:
            record["message"] = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        else:
            record["response"] = text
        return record | rest

    def _calls(self, job: Job) -> list[dict[str, Any]]:
        tool = called(job)
        if tool is None:
            return []
        return [{"id": call_id(), "function": {"index": 0, "name": tool.name, "arguments": tool.arguments}}]

    def progressed(self, job: Job) -> bytes:  # noqa: ARG002 - Ollama tells no progress
        """Nothing."""
        return b""

    def said(self, job: Job, piece: str) -> bytes:
        """A line with the piece; of a tool call nothing until it is whole."""
        if not piece or (job.reply is not None and job.reply.tool is not None):
            return b""
        return go_json(self._record(piece, done=False) | self._probabilities([piece])) + b"\n"

    def _probabilities(self, pieces: list[str]) -> dict[str, Any]:
        top = self._told.logprobs
        return {} if top is None else {"logprobs": [logprob(piece, top) for piece in pieces if piece]}

    def finished(self, job: Job) -> bytes:
        """The tool call, if there is one, and the last record."""
        calls = self._calls(job)
        line = go_json(self._record("", calls, done=False)) + b"\n" if calls else b""
        return line + go_json(self.last(job, "")) + b"\n"

    def closing(self) -> bytes:
        """Nothing: the last record says `done`."""
        return b""

    def last(
        self, job: Job, text: str, calls: list[dict[str, Any]] | None = None, pieces: list[str] | None = None
    ) -> dict[str, Any]:
        """The last record of a stream; `pieces`: of an answer in one, whose probabilities it may tell."""
        record = self._record(text, calls, done=True, done_reason=done_reason(job))
        if self._context and job.reply is not None:
            record["context"] = job.prompt + job.reply.tokens[: job.decoded]
        return record | (self._probabilities(pieces) if pieces else {}) | counts(self._told, job)

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""
        calls = self._calls(job)
        pieces = job.reply.pieces[: job.decoded] if job.reply is not None and not calls else []
        return go_json(self.last(job, "" if calls else job.text, calls, pieces))


def logprob(piece: str, top: int) -> dict[str, Any]:
    """A token's probability, made up from its text, beside those of so many of the likeliest ones."""

    def entry(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -(zlib.crc32(text.encode()) % 3000 + 1) / 1000, "bytes": list(text.encode())}

    others = [entry(piece), *(entry(f" {word}") for word in WORDS)]
    return entry(piece) | ({"top_logprobs": others[:top]} if top else {})


def load_record(model: str, reason: str, *, chat: bool) -> bytes:
    """The answer to a request that only loads or unloads."""
    record: dict[str, Any] = {"model": model, "created_at": now_rfc3339()}
    record |= {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    return go_json(record | {"done": True, "done_reason": reason})
