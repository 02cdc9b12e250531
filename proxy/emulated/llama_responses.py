"""The answers of llama-server's /v1/responses (OpenAI's Responses API). Must not know sockets or slots."""

import time
from typing import Any

from proxy.emulated.jobs import Job
from proxy.emulated.llama_frames import called, event, progress, random_id, timings
from proxy.emulated.llama_requests import Asked


def _usage(job: Job) -> dict[str, Any]:
    return {
        "input_tokens": len(job.prompt),
        "output_tokens": job.decoded,
        "total_tokens": len(job.prompt) + job.decoded,
        "input_tokens_details": {"cached_tokens": job.cached},
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


class ResponsesFrames:
    """Frames of a streamed response; there is no end mark but `response.completed`."""

    def __init__(self, asked: Asked, model: str) -> None:  # noqa: ARG002 - one form for all
        self._model = model
        self._id = random_id("resp_")
        key = random_id()
        self._message = "msg_" + key
        self._call, self._call_id = "fc_" + key, "call_" + key
        self._opened = False
        self._item = False

    def _opening(self) -> bytes:
        self._opened = True
        return event({"type": "response.created", "response": self._begun})

    @property
    def _begun(self) -> dict[str, Any]:
        return {"id": self._id, "object": "response", "status": "in_progress"}

    def progressed(self, job: Job) -> bytes:
        """One more `in_progress`, which carries the progress."""
        frames = b"" if self._opened else self._opening()
        begun = {"type": "response.in_progress", "response": self._begun}
        return frames + event(begun | {"prompt_progress": progress(job)})

    def said(self, job: Job, piece: str) -> bytes:
        """The opening and the item before the first piece, then a delta each."""
        frames = b""
        if not self._opened:
            frames = self._opening() + event({"type": "response.in_progress", "response": self._begun})
        if not piece:
            return frames
        tool = job.reply.tool if job.reply is not None else None
        if not self._item:
            self._item = True
            frames += self._item_start(tool.name if tool is not None else None)
        if tool is not None:
            kind = "response.function_call_arguments.delta"
            return frames + event({"type": kind, "delta": piece, "item_id": self._call})
        return frames + event({"type": "response.output_text.delta", "item_id": self._message, "delta": piece})

    def _item_start(self, tool: str | None) -> bytes:
        if tool is not None:
            call = {
                "id": self._call,
                "arguments": "",
                "call_id": self._call_id,
                "name": tool,
                "type": "function_call",
                "status": "in_progress",
            }
            return event({"type": "response.output_item.added", "item": call})
        item: dict[str, Any] = {
            "content": [],
            "id": self._message,
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
        }
        part = {"type": "output_text", "text": ""}
        return event({"type": "response.output_item.added", "item": item}) + event(
            {"type": "response.content_part.added", "item_id": self._message, "part": part}
        )

    def finished(self, job: Job) -> bytes:
        """The item's end and the whole response."""
        frames = b""
        if called(job):
            item = self._call_item(job)
        else:
            text = {"type": "response.output_text.done", "item_id": self._message, "text": job.text}
            part = {"type": "response.content_part.done", "item_id": self._message, "part": _part(job.text)}
            frames = event(text) + event(part)
            item = {
                "type": "message",
                "status": "completed",
                "id": self._message,
                "content": [_part(job.text)],
                "role": "assistant",
            }
        frames += event({"type": "response.output_item.done", "item": item})
        response = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "model": self._model,
            "output": [item],
            "usage": _usage(job),
        }
        return frames + event({"type": "response.completed", "response": response, "timings": timings(job)})

    def _call_item(self, job: Job) -> dict[str, Any]:
        tool = called(job)
        return {
            "id": self._call,
            "type": "function_call",
            "status": "completed",
            "arguments": job.text,
            "call_id": self._call_id,
            "name": tool.name if tool is not None else "",
        }

    def closing(self) -> bytes:
        """Nothing."""
        return b""


def responses_whole(jobs: list[Job], asked: Asked, model: str) -> dict[str, Any]:  # noqa: ARG001 - one form for all
    """The whole answer."""
    job = jobs[0]
    key = random_id()
    item: dict[str, Any] = {
        "content": [_part(job.text)],
        "id": "msg_" + key,
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }
    if tool := called(job):
        item = {
            "id": "fc_" + key,
            "type": "function_call",
            "status": "completed",
            "arguments": job.text,
            "call_id": "call_" + key,
            "name": tool.name,
        }
    now = int(time.time())
    return {
        "completed_at": now,
        "created_at": now,
        "id": random_id("resp_"),
        "model": model,
        "object": "response",
        "output": [item],
        "status": "completed",
        "usage": _usage(job),
    }
