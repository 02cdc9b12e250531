"""A small HTTP server that answers as it is told, with what real engines answered."""

import asyncio
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Reply = tuple[int, dict[str, str], bytes]

CAPS = {"supports_tool_calls": False, "supports_tools": False, "supports_typed_content": False}
PROPS: dict[str, Any] = {
    "default_generation_settings": {"params": {"seed": 4294967295}, "n_ctx": 4096},
    "total_slots": 2,
    "model_alias": "smol",
    "model_ftype": "Q4_1",
    "model_path": "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    "modalities": {"vision": False, "video": False, "audio": False},
    "media_marker": "<__media_F1cO369JG3EnM7tRK8UECZ3TUm7KUD9t__>",
    "endpoint_slots": True,
    "endpoint_props": False,
    "endpoint_metrics": True,
    "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    "chat_template_caps": CAPS,
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "build_info": "b11434-abc",
    "is_sleeping": False,
}
META = {
    "vocab_type": 2,
    "n_vocab": 49152,
    "n_ctx": 4096,
    "n_ctx_train": 8192,
    "n_embd": 576,
    "n_params": 134515008,
    "size": 96576768,
    "ftype": "Q4_1",
}
MODELS = {
    "models": [{"name": "smol", "model": "smol", "capabilities": ["completion"]}],
    "object": "list",
    "data": [{"id": "smol", "aliases": ["smol", "tiny"], "object": "model", "created": 1795980039, "meta": META}],
}
IDLE_SLOTS = [{"id": index, "n_ctx": 4096, "speculative": False, "is_processing": False} for index in range(2)]
BUSY_SLOTS = [
    {
        "id": 0,
        "n_ctx": 4096,
        "speculative": False,
        "is_processing": True,
        "id_task": 2,
        "n_prompt_tokens": 50,
        "n_prompt_tokens_processed": 17,
        "n_prompt_tokens_cache": 0,
        "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": 117, "n_decoded": 33}],
    },
    IDLE_SLOTS[1],
]
NOT_SUPPORTED = {"error": {"code": 501, "message": "This server does not support it", "type": "not_supported_error"}}
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
UNAUTHORIZED = {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}

TAG = {
    "name": "smol:latest",
    "model": "smol:latest",
    "modified_at": "2026-11-29T19:05:42.218736371Z",
    "size": 98362861,
    "digest": "e56e912d9f4104355ddcc0167bd5664f5e031da8759cbcefbc4a6ef00d30c601",
    "details": {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "134.52M",
        "quantization_level": "Q4_1",
        "context_length": 8192,
        "embedding_length": 576,
    },
    "capabilities": ["completion", "tools"],
}
LOADED = {
    "name": "smol:latest",
    "model": "smol:latest",
    "size": 324817386,
    "digest": TAG["digest"],
    "expires_at": "2026-11-29T19:23:13.662247966Z",
    "size_vram": 1000,
    "context_length": 4096,
}


def metrics(processing: int = 0, deferred: int = 0, decodes: int = 0) -> bytes:
    return (
        "# HELP llamacpp:n_decode_total Total number of llama_decode() calls\n"
        f"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {decodes}\n"
        f"llamacpp:requests_processing {processing}\nllamacpp:requests_deferred {deferred}\n"
    ).encode()


class Answers:
    """`async with Answers.llama_server(...) as engine`: change `engine.replies[path]` at any time."""

    def __init__(self, replies: dict[str, Reply], headers: dict[str, str] | None = None) -> None:
        self.replies = replies
        self.headers = headers or {}
        self.asked: list[tuple[str, float]] = []
        self.authorizations: list[str] = []
        self.delay_s: dict[str, float] = {}
        self._runner: web.ServerRunner | None = None
        self.port = 0

    @classmethod
    def llama_server(cls) -> Self:
        made = cls({}, {"Server": "llama.cpp"})
        made.set("/", 404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})
        made.set("/health", 200, {"status": "ok"})
        made.set("/props", 200, PROPS)
        made.set("/v1/models", 200, MODELS)
        made.set("/slots", 200, IDLE_SLOTS)
        made.set_metrics()
        made.set("/v1/chat/completions", 400, {"error": {"code": 400, "message": "'messages' is required"}})
        for path in ("/v1/embeddings", "/v1/rerank", "/infill"):
            made.set(path, 501, NOT_SUPPORTED)
        return made

    @classmethod
    def ollama(cls) -> Self:
        made = cls({"/": (200, {"Content-Type": "text/plain"}, b"Ollama is running")})
        made.set("/api/version", 200, {"version": "0.33.0"})
        made.set("/api/tags", 200, {"models": [TAG]})
        made.set("/api/ps", 200, {"models": [LOADED]})
        return made

    def set(self, path: str, status: int, content: Any) -> None:
        self.replies[path] = (status, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def set_metrics(self, processing: int = 0, deferred: int = 0, decodes: int = 0, started: int = 1541702596) -> None:
        headers = {"Content-Type": "text/plain", "Process-Start-Time-Unix": str(started)}
        self.replies["/metrics"] = (200, headers, metrics(processing, deferred, decodes))

    def set_all(self, status: int, content: Any) -> None:
        for path in self.replies:
            self.set(path, status, content)

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append((request.path, time.monotonic()))
        self.authorizations.append(request.headers.get("Authorization", ""))
        if delay_s := self.delay_s.get(request.path):
            await asyncio.sleep(delay_s)
        status, headers, body = self.replies.get(request.path, (404, {}, b"404 page not found"))
        return web.Response(status=status, headers={**self.headers, **headers}, body=body)

    async def start(self, unix_path: Path | None = None) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await self._runner.setup()
        if unix_path is not None:
            await web.UnixSite(self._runner, str(unix_path)).start()
            return
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
