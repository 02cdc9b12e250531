"""The answers of Ollama's OpenAI and Anthropic routes: stream frames and whole bodies.

Must not know sockets, slots or loads. Key order is Ollama's.
"""

import secrets
import time
from typing import Any

from proxy.emulated.jobs import Job
from proxy.emulated.ollama_frames import Told, call_id, called, done_reason
from proxy.emulated.ollama_heads import go_json
from proxy.emulated.replies import Stop

_FINGERPRINT = "fp_ollama"


def _sse(value: Any) -> bytes:
    return b"data: " + go_json(value) + b"\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %b\n%b" % (value["type"].encode(), _sse(value))


def _openai_calls(job: Job) -> list[dict[str, Any]]:
    if (tool := called(job)) is None:
        return []
    function = {"name": tool.name, "arguments": go_json(tool.arguments).decode()}
    return [{"id": call_id(), "index": 0, "type": "function", "function": function}]


def _usage(job: Job) -> dict[str, int]:
    prompt = len(job.prompt)
    return {"prompt_tokens": prompt, "completion_tokens": job.decoded, "total_tokens": prompt + job.decoded}


class OpenAiChatForm:
    """`/v1/chat/completions`."""

    def __init__(self, told: Told, *, usage: bool) -> None:
        self._told, self._usage = told, usage
        self._id = f"chatcmpl-{secrets.randbelow(999)}"
        self._opened = False

    def _chunk(self, choices: list[Any], model: str | None = None, **more: Any) -> bytes:
        return _sse(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": self._told.model if model is None else model,
                "system_fingerprint": _FINGERPRINT,
                "choices": choices,
                **more,
            }
        )

    def _delta(self, delta: dict[str, Any], reason: str | None = None) -> list[dict[str, Any]]:
        role = {} if self._opened or reason else {"role": "assistant"}
        self._opened = True
        return [{"index": 0, "delta": role | delta, "finish_reason": reason}]

    def progressed(self, job: Job) -> bytes:  # noqa: ARG002 - Ollama tells no progress
        """Nothing."""
        return b""

    def said(self, job: Job, piece: str) -> bytes:
        """A delta."""
        if not piece or (job.reply is not None and job.reply.tool is not None):
            return b""
        return self._chunk(self._delta({"content": piece}))

    def finished(self, job: Job) -> bytes:
        """The tool call, the finish reason, the usage if asked for."""
        calls = _openai_calls(job)
        frames = self._chunk(self._delta({"content": "", "tool_calls": calls})) if calls else b""
        frames += self._chunk(self._delta({}, "tool_calls" if calls else done_reason(job)))
        return frames + (self._chunk([], usage=_usage(job)) if self._usage else b"")

    def closing(self) -> bytes:
        """The end mark."""
        return b"data: [DONE]\n\n"

    def broken(self) -> bytes:
        """What comes of an error in mid-stream: an empty delta of no model, and no end mark."""
        return self._chunk([{"index": 0, "delta": {"content": ""}, "finish_reason": None}], model="")

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""
        calls = _openai_calls(job)
        message = {"role": "assistant", "content": "" if calls else job.text}
        reason = "tool_calls" if calls else done_reason(job)
        choice = {"index": 0, "message": message | ({"tool_calls": calls} if calls else {}), "finish_reason": reason}
        return go_json(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self._told.model,
                "system_fingerprint": _FINGERPRINT,
                "choices": [choice],
                "usage": _usage(job),
            }
        )


class OpenAiCompletionForm:
    """`/v1/completions`."""

    def __init__(self, told: Told, *, usage: bool) -> None:
        self._told, self._usage = told, usage
        self._id = f"cmpl-{secrets.randbelow(999)}"

    def _object(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._told.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": choices,
            **more,
        }

    def progressed(self, job: Job) -> bytes:  # noqa: ARG002 - Ollama tells no progress
        """Nothing."""
        return b""

    def said(self, job: Job, piece: str) -> bytes:  # noqa: ARG002 - one form for all
        """A piece of text."""
        return _sse(self._object([{"text": piece, "index": 0, "finish_reason": None}])) if piece else b""

    def finished(self, job: Job) -> bytes:
        """The finish reason, the usage if asked for."""
        frames = _sse(self._object([{"text": "", "index": 0, "finish_reason": done_reason(job)}]))
        return frames + (_sse(self._object([], usage=_usage(job))) if self._usage else b"")

    def closing(self) -> bytes:
        """The end mark."""
        return b"data: [DONE]\n\n"

    def broken(self) -> bytes:
        """Nothing: the stream just ends."""
        return b""

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""
        choice = {"text": job.text, "index": 0, "finish_reason": done_reason(job)}
        return go_json(self._object([choice], usage=_usage(job)))


class AnthropicForm:
    """`/v1/messages`."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._id = f"msg_{secrets.token_hex(12)}"
        self._opened = False
        self._block = False

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._told.model,
            "content": [],
            "usage": {"input_tokens": self._told.estimate, "output_tokens": 0},
        }
        return _event({"type": "message_start", "message": message})

    def _reason(self, job: Job) -> str:
        if job.ended is Stop.LIMIT:
            return "max_tokens"
        return "tool_use" if called(job) else "end_turn"

    def progressed(self, job: Job) -> bytes:  # noqa: ARG002 - Ollama tells no progress
        """Nothing."""
        return b""

    def said(self, job: Job, piece: str) -> bytes:
        """The opening before the first piece, then a delta each."""
        if not piece or (job.reply is not None and job.reply.tool is not None):
            return b""
        frames = self._open()
        if not self._block:
            self._block = True
            start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            frames += _event(start)
        delta = {"type": "text_delta", "text": piece}
        return frames + _event({"type": "content_block_delta", "index": 0, "delta": delta})

    def finished(self, job: Job) -> bytes:
        """The tool use as one block, the block's end, why it ended."""
        frames = self._open()
        if tool := called(job):
            self._block = True
            block = {"type": "tool_use", "id": call_id(), "name": tool.name, "input": {}}
            frames += _event({"type": "content_block_start", "index": 0, "content_block": block})
            delta = {"type": "input_json_delta", "partial_json": go_json(tool.arguments).decode()}
            frames += _event({"type": "content_block_delta", "index": 0, "delta": delta})
        if self._block:
            frames += _event({"type": "content_block_stop", "index": 0})
        usage = {"input_tokens": len(job.prompt), "output_tokens": job.decoded}
        frames += _event({"type": "message_delta", "delta": {"stop_reason": self._reason(job)}, "usage": usage})
        return frames + _event({"type": "message_stop"})

    def closing(self) -> bytes:
        """Nothing."""
        return b""

    def broken(self) -> bytes:
        """Nothing: the stream just ends."""
        return b""

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""
        content: list[dict[str, Any]] = [{"type": "text", "text": job.text}] if job.text else []
        if tool := called(job):
            content = [{"type": "tool_use", "id": call_id(), "name": tool.name, "input": tool.arguments}]
        return go_json(
            {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "model": self._told.model,
                "content": content,
                "stop_reason": self._reason(job),
                "usage": {"input_tokens": len(job.prompt), "output_tokens": job.decoded},
            }
        )
