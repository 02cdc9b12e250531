"""The answers of llama-server's completion routes: whole bodies and stream frames. Must not know sockets or slots.

Key order is the real engine's; the contract tests compare it.
"""

import secrets
import string
import time
from typing import Any

import orjson

from proxy.emulated.jobs import Job
from proxy.emulated.llama_requests import Asked
from proxy.emulated.llama_state import BUILD, sampling
from proxy.emulated.replies import Stop, ToolUse

_LETTERS = string.ascii_letters + string.digits
DONE = b"data: [DONE]\n\n"


def random_id(prefix: str = "") -> str:
    """An id as llama-server makes them: 32 letters and digits."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(32))


def sse(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % orjson.dumps(value)


def event(value: dict[str, Any]) -> bytes:
    """One named event; its name is its type."""
    return b"event: %b\n%b" % (value["type"].encode(), sse(value))


def timings(job: Job) -> dict[str, Any]:
    """Token counts and times of a job so far."""
    steps = max(0, job.decoded - 1)
    prompt_each = job.prompt_ms / job.processed if job.processed else 0.0
    output_each = job.output_ms / steps if steps else 0.0
    return {
        "cache_n": job.cached,
        "prompt_n": job.processed,
        "prompt_ms": job.prompt_ms,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": 1000 / prompt_each if prompt_each else 0.0,
        "predicted_n": job.decoded,
        "predicted_ms": job.output_ms,
        "predicted_per_token_ms": output_each,
        "predicted_per_second": 1000 / output_each if output_each else 0.0,
    }


def usage(jobs: list[Job]) -> dict[str, Any]:
    """OpenAI's usage; of several choices the first, as the real engine counts."""
    job = jobs[0]
    return {
        "completion_tokens": job.decoded,
        "prompt_tokens": len(job.prompt),
        "total_tokens": len(job.prompt) + job.decoded,
        "prompt_tokens_details": {"cached_tokens": job.cached},
    }


def called(job: Job) -> ToolUse | None:
    """The tool that a finished job called; None while the call is cut off by a limit."""
    return job.reply.tool if job.reply is not None and job.ended is not Stop.LIMIT else None


def finish_reason(job: Job) -> str:
    """OpenAI's word for why it ended."""
    if job.ended is Stop.LIMIT:
        return "length"
    return "tool_calls" if called(job) else "stop"


def progress(job: Job) -> dict[str, Any]:
    """How far a prompt is."""
    return {
        "total": len(job.prompt),
        "cache": job.cached,
        "processed": job.evaluated,
        "time_ms": int((job.now_s - job.started_s) * 1000),
    }


class ChatFrames:
    """Frames of /v1/chat/completions."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked, self._model = asked, model
        self._id = random_id("chatcmpl-")
        self._opened: set[int] = set()
        self._each = bool(asked.body.get("timings_per_token"))
        options = asked.body.get("stream_options")
        self._usage = isinstance(options, dict) and bool(options.get("include_usage"))

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        return sse(
            {
                "choices": choices,
                "created": int(time.time()),
                "id": self._id,
                "model": self._model,
                "system_fingerprint": BUILD,
                "object": "chat.completion.chunk",
                **more,
            }
        )

    def _opening(self, job: Job, **more: Any) -> bytes:
        delta = {"role": "assistant", "content": None}
        return self._chunk([{"finish_reason": None, "index": job.choice, "delta": delta}], **more)

    def progressed(self, job: Job) -> bytes:
        """An opening delta that carries the progress."""
        times = {"timings": timings(job)} if self._each else {}
        return self._opening(job, **times, prompt_progress=progress(job))

    def said(self, job: Job, piece: str) -> bytes:
        """A delta with content or with a part of a tool call."""
        frames = b""
        if job.choice not in self._opened:
            self._opened.add(job.choice)
            frames = self._opening(job)
        if not piece:
            return frames
        times = {"timings": timings(job)} if self._each else {}
        delta = self._delta(job, piece)
        return frames + self._chunk([{"finish_reason": None, "index": job.choice, "delta": delta}], **times)

    @staticmethod
    def _delta(job: Job, piece: str) -> dict[str, Any]:
        if job.reply is None or job.reply.tool is None:
            return {"content": piece}
        if job.text != piece:
            return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        function = {"name": job.reply.tool.name, "arguments": piece}
        return {"tool_calls": [{"index": 0, "id": random_id(), "type": "function", "function": function}]}

    def finished(self, job: Job) -> bytes:
        """The finish reason, then the usage if asked for; the timings ride on the last of them."""
        choices = [{"finish_reason": finish_reason(job), "index": job.choice, "delta": {}}]
        if not self._usage:
            return self._chunk(choices, timings=timings(job))
        return self._chunk(choices) + self._chunk([], usage=usage([job]), timings=timings(job))

    def closing(self) -> bytes:
        """The end mark."""
        return DONE


class CompletionFrames:
    """Frames of /v1/completions."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._model = model
        self._id = random_id("chatcmpl-")
        self._each = bool(asked.body.get("timings_per_token"))

    def _chunk(self, job: Job, text: str, reason: str | None, **more: Any) -> bytes:
        usages = {"usage": more.pop("usage")} if "usage" in more else {}
        return sse(
            {
                "choices": [{"text": text, "index": job.choice, "logprobs": None, "finish_reason": reason}],
                "created": int(time.time()),
                "model": self._model,
                "system_fingerprint": BUILD,
                "object": "text_completion",
                **usages,
                "id": self._id,
                **more,
            }
        )

    def progressed(self, job: Job) -> bytes:
        """An empty text that carries the progress."""
        times = {"timings": timings(job)} if self._each else {}
        return self._chunk(job, "", None, **times, prompt_progress=progress(job))

    def said(self, job: Job, piece: str) -> bytes:
        """A piece of text."""
        times = {"timings": timings(job)} if self._each else {}
        return self._chunk(job, piece, None, **times) if piece else b""

    def finished(self, job: Job) -> bytes:
        """An empty text with the usage."""
        reason = "length" if job.ended is Stop.LIMIT else "stop"
        return self._chunk(job, "", reason, usage=usage([job]), timings=timings(job))

    def closing(self) -> bytes:
        """The end mark."""
        return DONE


class NativeFrames:
    """Frames of /completion: no end mark, the last one says `stop`."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked, self._model = asked, model
        self._each = bool(asked.body.get("timings_per_token"))

    def _partial(self, job: Job, piece: str, tokens: list[int]) -> dict[str, Any]:
        return {
            "index": job.choice,
            "content": piece,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": job.decoded,
            "tokens_evaluated": len(job.prompt),
            **({"timings": timings(job)} if self._each else {}),
        }

    def progressed(self, job: Job) -> bytes:
        """An empty piece that carries the progress."""
        return sse(self._partial(job, "", [0]) | {"prompt_progress": progress(job)})

    def said(self, job: Job, piece: str) -> bytes:
        """A piece with its token."""
        token = job.reply.tokens[job.decoded - 1] if job.reply is not None else 0
        return sse(self._partial(job, piece, [token])) if piece else b""

    def finished(self, job: Job) -> bytes:
        """Everything about the answer but its text."""
        return sse(native_whole(job, self._asked, self._model, content=""))

    def closing(self) -> bytes:
        """Nothing."""
        return b""


def native_whole(job: Job, asked: Asked, model: str, content: str | None = None) -> dict[str, Any]:
    """The whole answer of /completion."""
    reply = job.reply
    texts = asked.texts or [""]
    ids = reply.tokens[: job.decoded] if reply is not None and asked.body.get("return_tokens") else []
    value = {
        "index": job.choice,
        "content": job.text if content is None else content,
        "tokens": ids if content is None else [],
        "id_slot": job.slot.id if job.slot is not None else -1,
        "stop": True,
        "model": model,
        "tokens_predicted": job.decoded,
        "tokens_evaluated": len(job.prompt),
        "generation_settings": sampling(asked.params, full=True),
        "prompt": texts[min(job.choice, len(texts) - 1)],
        "has_new_line": "\n" in job.text,
        "truncated": job.truncated,
        "stop_type": job.ended.value,
        "stopping_word": reply.stopping_word if reply is not None and job.ended is Stop.WORD else "",
        "tokens_cached": job.held,
        "timings": timings(job),
    }
    fields = asked.body.get("response_fields")
    if not fields or not isinstance(fields, list):
        return value
    return {name: value[name] for name in fields if isinstance(name, str) and name in value}


def chat_whole(jobs: list[Job], asked: Asked, model: str) -> dict[str, Any]:
    """The whole answer of /v1/chat/completions."""
    choices = []
    for job in jobs:
        message: dict[str, Any] = {"role": "assistant", "content": job.text}
        if tool := called(job):
            function = {"name": tool.name, "arguments": job.text}
            calls = [{"type": "function", "function": function, "id": random_id()}]
            message = {"role": "assistant", "content": "", "tool_calls": calls}
        choices.append({"finish_reason": finish_reason(job), "index": job.choice, "message": message})
    verbose = {"__verbose": native_whole(jobs[0], asked, model)} if asked.body.get("verbose") else {}
    return {
        "choices": choices,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": BUILD,
        "object": "chat.completion",
        "usage": usage(jobs),
        "id": random_id("chatcmpl-"),
        **verbose,
        "timings": timings(jobs[0]),
    }


def completion_whole(jobs: list[Job], asked: Asked, model: str) -> dict[str, Any]:  # noqa: ARG001 - one form for all
    """The whole answer of /v1/completions."""
    return {
        "choices": [
            {
                "text": job.text,
                "index": job.choice,
                "logprobs": None,
                "finish_reason": "length" if job.ended is Stop.LIMIT else "stop",
            }
            for job in jobs
        ],
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": BUILD,
        "object": "text_completion",
        "usage": usage(jobs),
        "id": random_id("chatcmpl-"),
        "timings": timings(jobs[0]),
    }
