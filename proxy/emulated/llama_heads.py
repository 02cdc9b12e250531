"""Heads and errors as llama-server lays them out. Must not know what is answered."""

from http import HTTPStatus
from typing import Any

import orjson

from proxy.emulated.jobs import Problem
from proxy.emulated.wire import Exchange, Headers, Manners

JSON = [("Content-Type", "application/json; charset=utf-8")]
STREAM = [("X-Accel-Buffering", "no"), ("Content-Type", "text/event-stream")]


def llama_head(exchange: Exchange, status: int, headers: Headers, length: int | None, keep: bool) -> bytes:
    """The head as llama-server writes it: no Date, an Access-Control header always, Keep-Alive instead of nothing."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Server: llama.cpp",
        f"Access-Control-Allow-Origin: {exchange.headers.get('origin', '')}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    ending = "Keep-Alive: timeout=5, max=100" if keep else "Connection: close"
    # An empty body gets its length last, for httplib adds that one when it writes.
    lines += [ending, framing] if length == 0 else [framing, ending]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def llama_manners(idle_timeout_s: float) -> Manners:
    """How llama-server treats connections: idle ones end after 5 s, all end after 100 requests or an error."""
    return Manners(llama_head, idle_timeout_s=idle_timeout_s, requests_per_connection=100, closes_after_errors=True)


def send_json(exchange: Exchange, value: Any, status: int = 200) -> None:
    """Answer with JSON."""
    exchange.whole(status, JSON, orjson.dumps(value))


def problem_body(problem: Problem) -> dict[str, Any]:
    """An error as the API routes render it."""
    return {"code": problem.status, "message": problem.message, "type": problem.kind, **problem.extra}


def send_problem(exchange: Exchange, problem: Problem) -> None:
    """Answer with an error."""
    send_json(exchange, {"error": problem_body(problem)}, problem.status)


def send_early(exchange: Exchange, status: int, kind: str, message: str) -> None:
    """Errors from before the routes (loading, key, unknown path) put the code last."""
    send_json(exchange, {"error": {"message": message, "type": kind, "code": status}}, status)
