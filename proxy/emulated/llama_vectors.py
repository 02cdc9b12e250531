"""Embeddings and reranking of llama-server. Must not know its other routes.

Every text takes a slot while it is computed, as in the real engine.
"""

import base64
import struct
from collections.abc import Callable
from typing import Any

from proxy.emulated.answers import WholeAnswer
from proxy.emulated.engine import SlotEngine
from proxy.emulated.faults import Fault
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.llama_heads import send_json, send_problem
from proxy.emulated.llama_requests import read_inputs, read_json, refuse
from proxy.emulated.options import Options
from proxy.emulated.text import embedding, tokenize
from proxy.emulated.wire import Exchange


class LlamaVectors:
    """The routes that answer with numbers."""

    def __init__(self, options: Options, engine: SlotEngine) -> None:
        self.options = options
        self.engine = engine
        self._model = options.models[0].name

    def _compute(
        self, exchange: Exchange, fault: Fault | None, prompts: list[list[int]], reply: Callable[[list[Job]], None]
    ) -> None:
        answer = WholeAnswer(
            exchange, self.engine, fault, reply=reply, refuse=lambda problem: send_problem(exchange, problem)
        )
        jobs = [Job(prompt, None, answer, reuse=False, choice=index) for index, prompt in enumerate(prompts)]
        answer.run(jobs)

    async def openai(self, exchange: Exchange, fault: Fault | None) -> None:
        """/v1/embeddings: one vector per text, as numbers or as base64 of floats."""
        body = read_json(exchange.body)
        if "input" not in body:
            await self.native(exchange, fault)
            return
        packed = body.get("encoding_format") == "base64"
        size = self.options.models[0].embedding_length

        def reply(jobs: list[Job]) -> None:
            count = sum(len(job.prompt) for job in jobs)
            data: list[dict[str, Any]] = []
            for job in jobs:
                vector = embedding(job.prompt, size)
                if packed:
                    text = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
                    entry: dict[str, Any] = {"embedding": text, "index": job.choice, "object": "embedding"}
                    data.append(entry | {"encoding_format": "base64"})
                else:
                    data.append({"embedding": vector, "index": job.choice, "object": "embedding"})
            usage = {"prompt_tokens": count, "total_tokens": count}
            send_json(exchange, {"model": self._model, "object": "list", "usage": usage, "data": data})

        self._compute(exchange, fault, read_inputs(body, self.options), reply)

    async def native(self, exchange: Exchange, fault: Fault | None) -> None:
        """/embedding: one vector per text, each in a list of its own."""
        prompts = read_inputs(read_json(exchange.body), self.options)
        size = self.options.models[0].embedding_length

        def reply(jobs: list[Job]) -> None:
            send_json(exchange, [{"index": job.choice, "embedding": [embedding(job.prompt, size)]} for job in jobs])

        self._compute(exchange, fault, prompts, reply)

    async def rerank(self, exchange: Exchange, fault: Fault | None) -> None:
        """/rerank: how near each document is to the query, the nearest first."""
        body = read_json(exchange.body)
        texts, bare = _texts(body), "texts" in body
        if not isinstance(body.get("query"), str):
            raise refuse('"query" must be provided')
        if not texts:
            raise refuse('"documents" must be a non-empty string array')
        wanted = embedding(tokenize(body["query"]), 64)
        prompts = [tokenize(f"{body['query']}\n{document}") for document in texts]
        top = body.get("top_n")
        most = _int32(top) if isinstance(top, int | float) else len(texts)

        def reply(jobs: list[Job]) -> None:
            if most < 0:  # found out only when the list is cut
                send_problem(exchange, Problem(500, "server_error", "vector::_M_default_append"))
                return
            count = sum(len(job.prompt) for job in jobs)
            results: list[dict[str, Any]] = []
            for job in jobs:
                vector = embedding(tokenize(texts[job.choice]), 64)
                score = sum(one * other for one, other in zip(wanted, vector, strict=True))
                results.append({"index": job.choice, "score" if bare else "relevance_score": score})
                if bare and body.get("return_text"):
                    results[-1]["text"] = texts[job.choice]
            results.sort(key=lambda result: -result["score" if bare else "relevance_score"])
            if bare:
                send_json(exchange, results[:most])
                return
            usage = {"prompt_tokens": count, "total_tokens": count}
            shown = {"model": self._model, "object": "list", "usage": usage, "results": results[:most]}
            send_json(exchange, shown)

        self._compute(exchange, fault, prompts, reply)


def _int32(value: float) -> int:
    """A number as the engine casts it: whole ones of 64 bits lose the upper half, floats that do not fit are least."""
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return (value + 2**31) % 2**32 - 2**31
    return int(value) if -(2**31) - 1 < value < 2**31 else -(2**31)


def _texts(body: dict[str, Any]) -> list[str]:
    """What to rank: the first of both fields that is a list of texts."""
    for name in ("documents", "texts"):
        value = body.get(name)
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return value
    return []
