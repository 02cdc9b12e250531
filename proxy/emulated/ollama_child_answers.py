"""What Ollama's hidden child tells on its own port: /slots, /props, /metrics, /health. Must not know processes.

Ollama's own queue is before the child: what waits there is not to be seen here.
"""

from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import orjson

from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Problem
from proxy.emulated.llama_heads import problem_body
from proxy.emulated.llama_state import metrics, props, slot_view
from proxy.emulated.options import EmulatedModel, Options
from proxy.emulated.wire import Headers

_JSON: Headers = [("Content-Type", "application/json; charset=utf-8")]
_NO_METRICS = "This server does not support metrics endpoint. Start it with `--metrics`"


class ChildAnswers:
    """The answers of one child.

    Args:
        model: that it serves.
        model_path: of the blob.
        metrics_on: whether it was started with LLAMA_ARG_ENDPOINT_METRICS.
    """

    def __init__(self, model: EmulatedModel, model_path: str, *, metrics_on: bool) -> None:
        self.engine: SlotEngine | None = None
        """None: it still loads."""
        self._options = Options(models=(model,), metrics=metrics_on)
        self._path, self._metrics_on = model_path, metrics_on
        self._scraped: dict[str, float] = {}

    def answer(self, method: str, target: str, *, keep: bool) -> bytes:
        """Status line, headers and body."""
        path, _, query = target.partition("?")
        engine = self.engine
        if engine is None:
            body = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
            return _whole(503, _JSON, orjson.dumps(body), keep=False)
        if method != "GET" or path not in {"/health", "/v1/health", "/slots", "/props", "/metrics"}:
            body = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
            return _whole(404, _JSON, orjson.dumps(body), keep=False)
        if path == "/metrics" and self._metrics_on:
            engine.polled()
            text = metrics(engine, self._scraped, deferred=0).encode()
            return _whole(200, [("Content-Type", "text/plain; version=0.0.4")], text, keep=keep)
        if path == "/metrics":
            return _problem(Problem(501, "not_supported_error", _NO_METRICS))
        if path == "/slots" and parse_qs(query).get("fail_on_no_slot") and all(slot.busy for slot in engine.slots):
            engine.polled()
            return _problem(Problem(503, "unavailable_error", "no slot available"))
        return _whole(200, _JSON, orjson.dumps(self._value(path, engine)), keep=keep)

    def _value(self, path: str, engine: SlotEngine) -> Any:
        if path == "/slots":
            engine.polled()
            return [slot_view(slot, engine) for slot in engine.slots]
        if path == "/props":
            told = {"model_alias": self._path, "model_path": self._path, "ui": False}
            return props(self._options, engine, "<__ollama_media_emulated__>") | told
        return {"status": "ok"}


def _problem(problem: Problem) -> bytes:
    return _whole(problem.status, _JSON, orjson.dumps({"error": problem_body(problem)}), keep=False)


def _whole(status: int, headers: Headers, body: bytes, *, keep: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Server: llama.cpp", "Access-Control-Allow-Origin: "]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"Content-Length: {len(body)}", "Keep-Alive: timeout=5, max=100" if keep else "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
