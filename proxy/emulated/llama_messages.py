"""The answers of llama-server's /v1/messages (Anthropic's API). Must not know sockets or slots."""

from typing import Any

from proxy.emulated.jobs import Job
from proxy.emulated.llama_frames import called, event, random_id
from proxy.emulated.llama_requests import Asked
from proxy.emulated.replies import Stop


def stop_reason(job: Job) -> str:
    """Anthropic's word for why it ended."""
    if job.ended is Stop.LIMIT:
        return "max_tokens"
    if job.ended is Stop.WORD:
        return "stop_sequence"
    return "tool_use" if called(job) else "end_turn"


def stop_sequence(job: Job) -> str | None:
    """The stop word that ended it."""
    return job.reply.stopping_word if job.reply is not None and job.ended is Stop.WORD else None


def _usage(job: Job, output: int) -> dict[str, int]:
    return {
        "cache_read_input_tokens": job.cached,
        "input_tokens": len(job.prompt) - job.cached,
        "output_tokens": output,
    }


class MessagesFrames:
    """Frames of a streamed message; there is no end mark but `message_stop`."""

    def __init__(self, asked: Asked, model: str) -> None:  # noqa: ARG002 - one form for all
        self._model = model
        self._id = random_id("chatcmpl-")
        self._opened = False
        self._block = False

    def _opening(self, job: Job) -> bytes:
        self._opened = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(job, 0),
        }
        return event({"type": "message_start", "message": message})

    def progressed(self, job: Job) -> bytes:
        """Only the opening: the form has no progress."""
        return b"" if self._opened else self._opening(job)

    def said(self, job: Job, piece: str) -> bytes:
        """The opening and the block's start before the first piece, then a delta each."""
        frames = b"" if self._opened else self._opening(job)
        tool = job.reply.tool if job.reply is not None else None
        if not piece:
            return frames
        if not self._block:
            self._block = True
            block: dict[str, Any] = {"type": "text", "text": ""}
            if tool is not None:
                block = {"type": "tool_use", "id": random_id(), "name": tool.name}
            frames += event({"type": "content_block_start", "index": 0, "content_block": block})
        delta = {"type": "text_delta", "text": piece}
        if tool is not None:
            delta = {"type": "input_json_delta", "partial_json": piece}
        return frames + event({"type": "content_block_delta", "index": 0, "delta": delta})

    def finished(self, job: Job) -> bytes:
        """The block's end and why it ended."""
        frames = event({"type": "content_block_stop", "index": 0}) if self._block else b""
        delta = {"stop_reason": stop_reason(job), "stop_sequence": stop_sequence(job)}
        frames += event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": job.decoded}})
        return frames + event({"type": "message_stop"})

    def closing(self) -> bytes:
        """Nothing."""
        return b""


def messages_whole(jobs: list[Job], asked: Asked, model: str) -> dict[str, Any]:  # noqa: ARG001 - one form for all
    """The whole answer."""
    job = jobs[0]
    content: list[dict[str, Any]] = [{"type": "text", "text": job.text}] if job.text else []
    if tool := called(job):
        content = [{"type": "tool_use", "id": random_id(), "name": tool.name, "input": tool.arguments}]
    return {
        "id": random_id("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": stop_reason(job),
        "stop_sequence": stop_sequence(job),
        "usage": _usage(job, job.decoded),
    }
