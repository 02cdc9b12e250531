"""What the dialect tests share: captured exchanges, a fixed clock, and running a plan against a real engine."""

import http.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from proxy.dialects import Call, Plan, Route, find, plan, read_call
from proxy.dialects.contract import ReplyTransform
from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Backend, Engine
from tests.real_engine import RealEngine, connect

GOLDEN = Path(__file__).parent / "golden"
NOW_NS = 1_795_979_616_284_853_331  # 2026-11-29T19:13:36.284853331Z

LLAMA = Backend(id="gpu0", engine=Engine.LLAMA_SERVER, slots=4, running_limit=4)
OLLAMA = Backend(id="gpu1", engine=Engine.OLLAMA, slots=4, running_limit=4)
FACTS = EngineFacts(
    engine=Engine.LLAMA_SERVER,
    version="b11434",
    models=(ModelFacts(name="smol", parameters=134_515_008, family="llama", quantization="Q4_1"),),
    slots=4,
    slot_context_tokens=4096,
    chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    props={"modalities": {"vision": False}},
)


@dataclass
class Exchange:
    """One captured exchange."""

    method: str
    path: str
    body: bytes
    status: int
    headers: dict[str, str]
    answer: bytes


def captured(name: str) -> Exchange:
    """Read a capture by `ollama/030` or the like: the only file whose name begins so."""
    folder, _, number = name.partition("/")
    (path,) = (GOLDEN / folder).glob(f"{number}-*.http")
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("# ")) + "\n"
    request, answer = text.split("\n--- answer", 1)
    head, _, body = request.partition("\n\n")
    method, target, _ = head.split("\n")[0].split(" ")
    answer_head, _, answer_body = answer.partition("\n\n")[2].partition("\n\n")
    status, *fields = answer_head.split("\n")
    pairs = (line.partition(": ") for line in fields)
    return Exchange(
        method=method,
        path=target,
        body=body.rstrip("\n").encode(),
        status=int(status.split()[1]),
        headers={name.lower(): value for name, _, value in pairs},
        answer=answer_body.rstrip("\n").encode(),
    )


def fixed_clock() -> int:
    """A clock that stands still."""
    return NOW_NS


def route_of(path: str, method: str = "POST") -> Route:
    """The route of a path that has one."""
    route = find(method, path)
    assert isinstance(route, Route), path
    return route


def call_of(path: str, body: dict[str, Any] | bytes, headers: list[tuple[str, str]] | None = None) -> Call:
    """A call as it would be read."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return read_call(route_of(path), raw, headers or [], fixed_clock)


def ask(engine: RealEngine, path: str, body: bytes) -> tuple[int, bytes]:
    """POST to an engine; status and whole body."""
    status, chunks = ask_in_chunks(engine, path, body)
    return status, b"".join(chunks)


def ask_in_chunks(engine: RealEngine, path: str, body: bytes) -> tuple[int, list[bytes]]:
    """POST to an engine; status and the body in the pieces in which it came."""
    connection: http.client.HTTPConnection = connect(engine.endpoint)
    try:
        headers = {"Content-Type": "application/json", **dict(engine.endpoint.headers)}
        connection.request("POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        chunks = []
        while chunk := answer.read1(65536):
            chunks.append(chunk)
        return answer.status, chunks
    finally:
        connection.close()


def carried_out(engine: RealEngine, made: Plan) -> tuple[int, bytes]:
    """What a client would get for a plan at this engine."""
    status, chunks = ask_in_chunks(engine, made.outgoing.path, made.outgoing.body)
    if status >= 400:
        if made.error_body is None:
            return status, b"".join(chunks)
        status, _, body = made.error_body(status, b"".join(chunks))
        return status, body
    for chunk in chunks:
        made.watch.see(chunk)
    assert made.watch.complete()
    return status, through(made.transform, chunks)


def through(transform: ReplyTransform | None, chunks: list[bytes]) -> bytes:
    """The client's bytes for an engine's, as the relay produces them."""
    out = b""
    for position, chunk in enumerate(chunks):
        if transform is None or transform.passthrough:
            return out + b"".join(chunks[position:])
        out += transform.feed(chunk)
    if transform is not None and not transform.passthrough:
        out += transform.finish()
    return out


def real_facts(engine: RealEngine) -> EngineFacts:
    """The facts of a real engine, as far as plans use them."""
    connection = connect(engine.endpoint)
    try:
        connection.request("GET", "/props", headers=dict(engine.endpoint.headers))
        props = msgspec.json.decode(connection.getresponse().read())
    finally:
        connection.close()
    models = (ModelFacts(name=engine.model_name),)
    return EngineFacts(engine=Engine.LLAMA_SERVER, models=models, chat_template=props["chat_template"], props=props)


def answered(engine: RealEngine, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """What a client gets that asks slotgate in front of this engine."""
    call = call_of(path, body)
    return carried_out(engine, plan(call, LLAMA, real_facts(engine)))
