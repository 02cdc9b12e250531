"""The answers of Ollama's `/v1/responses`. Must not know sockets, slots or loads.

The whole answer has Ollama's own key order; the streamed ones are sorted, as Go sorts the keys of a map.
"""

import secrets
import time
from typing import Any

from proxy.emulated.jobs import Job
from proxy.emulated.ollama_frames import Told, call_id, called
from proxy.emulated.ollama_heads import go_json


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


class ResponsesForm:
    """`/v1/responses`."""

    def __init__(self, told: Told, most: int | None, instructions: str | None) -> None:
        self._told, self._most, self._instructions = told, most, instructions
        self._id = f"resp_{secrets.randbelow(1_000_000)}"
        self._item = f"msg_{secrets.randbelow(1_000_000)}"
        self._number = 0
        self._opened = False
        self._message_open = False

    def _frame(self, kind: str, **values: Any) -> bytes:
        value = _sorted(values | {"type": kind, "sequence_number": self._number})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + go_json(value) + b"\n\n"

    def _response(self, status: str, output: list[Any], job: Job | None) -> dict[str, Any]:
        now = int(time.time())
        usage = None
        if job is not None:
            usage = {
                "input_tokens": len(job.prompt),
                "output_tokens": job.decoded,
                "total_tokens": len(job.prompt) + job.decoded,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": now,
            "completed_at": now if job is not None else None,
            "status": status,
            "incomplete_details": None,
            "model": self._told.model,
            "previous_response_id": None,
            "instructions": self._instructions,
            "output": output,
            "error": None,
            "tools": [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": {"type": "text"}},
            "top_p": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": 1,
            "reasoning": None,
            "usage": usage,
            "max_output_tokens": self._most,
            "max_tool_calls": None,
            "store": False,
            "background": False,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }

    def _output(self, job: Job) -> dict[str, Any]:
        if tool := called(job):
            return {
                "id": f"fc_{secrets.randbelow(1_000_000)}",
                "type": "function_call",
                "status": "completed",
                "call_id": call_id(),
                "name": tool.name,
                "arguments": go_json(tool.arguments).decode(),
            }
        return {
            "id": self._item,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [self._part(job.text)],
        }

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        response = self._response("in_progress", [], None)
        return self._frame("response.created", response=response) + self._frame(
            "response.in_progress", response=response
        )

    def progressed(self, job: Job) -> bytes:  # noqa: ARG002 - Ollama tells no progress
        """Nothing."""
        return b""

    def said(self, job: Job, piece: str) -> bytes:
        """The opening and the item before the first piece, then a delta each."""
        if not piece or (job.reply is not None and job.reply.tool is not None):
            return b""
        frames = self._open()
        if not self._message_open:
            self._message_open = True
            item = {"id": self._item, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            frames += self._frame("response.output_item.added", output_index=0, item=item)
            place = {"item_id": self._item, "output_index": 0, "content_index": 0}
            frames += self._frame("response.content_part.added", **place, part=self._part(""))
        return frames + self._frame(
            "response.output_text.delta",
            item_id=self._item,
            output_index=0,
            content_index=0,
            delta=piece,
            logprobs=[],
        )

    def finished(self, job: Job) -> bytes:
        """The item's end and the whole response."""
        frames = self._open()
        item = self._output(job)
        place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        if called(job):
            started = item | {"status": "in_progress", "arguments": ""}
            frames += self._frame("response.output_item.added", output_index=0, item=started)
            kinds = ("response.function_call_arguments.delta", "response.function_call_arguments.done")
            of_item = {"item_id": item["id"], "output_index": 0}
            frames += self._frame(kinds[0], **of_item, delta=item["arguments"])
            frames += self._frame(kinds[1], **of_item, arguments=item["arguments"])
        elif self._message_open:
            frames += self._frame("response.output_text.done", **place, text=job.text, logprobs=[])
            frames += self._frame("response.content_part.done", **place, part=self._part(job.text))
        frames += self._frame("response.output_item.done", output_index=0, item=item)
        return frames + self._frame("response.completed", response=self._response("completed", [item], job))

    def closing(self) -> bytes:
        """Nothing."""
        return b""

    def broken(self) -> bytes:
        """Nothing: the stream just ends."""
        return b""

    def whole(self, job: Job) -> bytes:
        """The answer in one piece."""
        return go_json(self._response("completed", [self._output(job)], job))
