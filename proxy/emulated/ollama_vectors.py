"""Embeddings of Ollama, by its three routes. Must not know its other routes.

Every text takes a slot while it is computed.
"""

import base64
import math
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from proxy.emulated.answers import WholeAnswer
from proxy.emulated.faults import Fault
from proxy.emulated.go_values import duration_s, read_object, read_options
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.ollama_catalog import must_find
from proxy.emulated.ollama_heads import PLAIN_JSON, OllamaError, go_json, send, send_error
from proxy.emulated.ollama_models import Models, Use
from proxy.emulated.ollama_store import StoredModel
from proxy.emulated.text import embedding, tokenize
from proxy.emulated.wire import Exchange

_NO_EMBEDDINGS = "This server does not support embeddings. Start it with `--embeddings`"
Hold = Callable[[Exchange, StoredModel, dict[str, Any], float | None], Awaitable[Use | None]]


class OllamaVectors:
    """The routes that answer with vectors."""

    def __init__(self, models: Models, hold: Hold) -> None:
        self._models = models
        self._use = hold

    async def embed(self, exchange: Exchange, fault: Fault | None) -> None:
        """/api/embed: one vector per text."""
        begin_s = time.monotonic()
        body = read_object(exchange.body, "api.EmbedRequest")
        inputs = body.get("input")
        # Of a list every text counts, an empty one too.
        texts = inputs if isinstance(inputs, list) else [inputs] if inputs else []
        if not all(isinstance(text, str) for text in texts):
            raise OllamaError(400, "invalid input type")

        def reply(use: Use, prompts: list[list[int]], vectors: list[list[float]]) -> None:
            value: dict[str, Any] = {"model": body.get("model"), "embeddings": vectors}
            if vectors:
                value["total_duration"] = int((time.monotonic() - begin_s) * 1e9)
                value["load_duration"] = max(1, int(use.waited_s * 1e9))
                value["prompt_eval_count"] = sum(map(len, prompts))
            send(exchange, go_json(value))

        await self._vectors(exchange, fault, body, texts, 501, reply)

    async def embeddings(self, exchange: Exchange, fault: Fault | None) -> None:
        """/api/embeddings: the old route, one text."""
        body = read_object(exchange.body, "api.EmbeddingRequest")
        texts = [body["prompt"]] if body.get("prompt") else []

        def reply(use: Use, prompts: list[list[int]], vectors: list[list[float]]) -> None:  # noqa: ARG001
            send(exchange, go_json({"embedding": vectors[0] if vectors else []}))

        await self._vectors(exchange, fault, body, texts, 500, reply)

    async def openai(self, exchange: Exchange, fault: Fault | None) -> None:
        """/v1/embeddings."""
        body = read_object(exchange.body, "openai.EmbedRequest")
        inputs = body.get("input")
        texts = list(inputs) if isinstance(inputs, list) else [str(inputs)]
        if not inputs:
            raise OllamaError(400, "invalid input")

        def reply(use: Use, prompts: list[list[int]], vectors: list[list[float]]) -> None:  # noqa: ARG001
            packed = body.get("encoding_format") == "base64"
            data = [
                {"object": "embedding", "embedding": _packed(vector) if packed else vector, "index": index}
                for index, vector in enumerate(vectors)
            ]
            count = sum(map(len, prompts))
            usage = {"prompt_tokens": count, "total_tokens": count}
            value = {"object": "list", "data": data, "model": body.get("model"), "usage": usage}
            send(exchange, go_json(value) + b"\n", headers=PLAIN_JSON)

        await self._vectors(exchange, fault, body, texts, 501, reply)

    async def _vectors(
        self,
        exchange: Exchange,
        fault: Fault | None,
        body: dict[str, Any],
        texts: list[str],
        refusal: int,
        reply: Callable[[Use, list[list[int]], list[list[float]]], None],
    ) -> None:
        model = must_find(self._models.store, body.get("model"))
        options = read_options(body.get("options"))
        use = await self._use(exchange, model, options, duration_s(body.get("keep_alive")))
        if use is None:
            return
        exchange.on_ended.append(use.release)
        if not texts:
            reply(use, [], [])
            return
        if "embedding" not in model.facts.capabilities:
            raise OllamaError(refusal, _NO_EMBEDDINGS)
        prompts = [tokenize(str(text)) for text in texts]
        most = use.loaded.context - 2
        if body.get("truncate") is False and any(len(prompt) > most for prompt in prompts):
            raise OllamaError(400, "the input length exceeds the context length")
        prompts = [prompt[:most] for prompt in prompts]
        size = min(int(body.get("dimensions") or model.facts.embedding_length), model.facts.embedding_length)

        def done(jobs: list[Job]) -> None:
            vectors = [_shortened(embedding(job.prompt, model.facts.embedding_length), size) for job in jobs]
            reply(use, prompts, vectors)

        def refuse(problem: Problem) -> None:
            send_error(exchange, OllamaError(problem.status, problem.message))

        answer = WholeAnswer(exchange, use.loaded.engine, fault, reply=done, refuse=refuse)
        answer.let_go = use.release
        answer.run([Job(prompt, None, answer, reuse=False, leaves_queue_at_once=True) for prompt in prompts])


def _shortened(vector: list[float], size: int) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector[:size])) or 1.0
    return vector if size == len(vector) else [value / length for value in vector[:size]]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
