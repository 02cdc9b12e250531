"""The emulated engines answer recorded requests as the real engines did: status, heads, error texts, keys in order.

Every recorded exchange is replayed; of the notes beside them see test_children.
"""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.contract.http_files import Golden, frames_of, goldens
from tests.contract.shapes import shape
from tests.wait import until

LLAMA = goldens("llama-server")
OLLAMA = {name: golden for name, golden in goldens("ollama").items() if "child-killed" not in name}
SMOL = EmulatedModel("smol", ("completion",), 134_515_008, 98_362_720, train_context=8192, embedding_length=576)
MODELS = [
    SMOL,
    EmulatedModel("smoltools", ("completion", "tools")),
    EmulatedModel("embed", ("embedding",), train_context=512, embedding_length=256),
]
NOT_KEPT = {"Date", "Content-Length", "Connection", "Transfer-Encoding", "Keep-Alive", "Process-Start-Time-Unix"}

FIRST: dict[str, list[tuple[str, dict[str, object]]]] = {
    # What has to happen before, so that the engine is in the state of the recording.
    "023-ps-one": [("/api/generate", {"model": "smol"})],
    "034-ps-after-90s": [("/api/generate", {"model": "smol"})],
    "064-ps-after-num-ctx": [("/api/generate", {"model": "smol", "options": {"num_ctx": 2048}})],
    "092-delete": [("/api/copy", {"source": "smol", "destination": "smol2"})],
    "099-delete-smol3": [("/api/create", {"model": "smol3", "from": "smol", "system": "You are brief."})],
    "156-ps-two-models": [("/api/generate", {"model": "smoltools"}), ("/api/embed", {"model": "embed"})],
    "061-slot-restore": [("/slots/0?action=save", {"filename": "p.bin"})],
}
_WORDS = "word " * 9000
_OPTIONS = {"num_predict": 12, "seed": 1, "temperature": 0}
BODIES: dict[str, dict[str, object]] = {
    # The recording left out the middle of these.
    "061-prompt-over-context": {
        "model": "smol",
        "messages": [{"role": "user", "content": _WORDS}],
        "stream": False,
        "options": _OPTIONS,
    },
    "062-prompt-over-context-no-truncate": {
        "model": "smol",
        "messages": [{"role": "user", "content": _WORDS}],
        "stream": False,
        "truncate": False,
        "shift": False,
        "options": _OPTIONS,
    },
    "144-embed-too-long-truncated": {"model": "embed", "input": "word " * 2000},
    "145-embed-too-long-no-truncate": {"model": "embed", "input": "word " * 2000, "truncate": False},
}
SAME_COUNTS = {"061-prompt-over-context", "144-embed-too-long-truncated"}
"""What is left of a prompt that was cut has the recorded length, whatever the words were."""
# The real model answered these with fewer or other words than ours does; the kinds of values are compared.
OTHER_TEXT = {"050-bad-json"}


def body_of(golden: Golden) -> bytes:
    body = golden.body.encode()
    if golden.name in BODIES:
        body = json.dumps(BODIES[golden.name]).encode()
        assert len(body) == int(golden.headers["Content-Length"])
    return body


def statuses(text: str) -> list[str]:
    """What a store route tells, without digests and numbers of its own."""
    lines = [line for line in text.splitlines() if line.startswith(('{"status"', '{"error"'))]
    return [re.sub(r"[0-9a-f]{64}|\d+ tokens|\d+(?=[,}\\])", "_", line) for line in lines]


async def replay(engine: EmulatedEngine, golden: Golden) -> httpx.Response:
    async with httpx.AsyncClient(base_url=engine.url, timeout=30) as client:
        for path, body in FIRST.get(golden.name, []):
            assert (await client.post(path, json=body)).status_code == 200
        headers = {
            name: value for name, value in golden.headers.items() if name not in {"Content-Length", "Connection"}
        }
        return await client.request(golden.method, golden.path, content=body_of(golden), headers=headers)


def compare_heads(found: httpx.Response, golden: Golden, *, values: bool = True) -> None:
    wanted = [(name, value if values else "") for name, value in golden.answer_headers if name not in NOT_KEPT]
    raw = [(name.decode(), value.decode() if values else "") for name, value in found.headers.raw]
    assert found.status_code == golden.status, found.text
    assert [(name, value) for name, value in raw if name not in NOT_KEPT] == wanted


def compare_bodies(found: httpx.Response, golden: Golden) -> None:
    kind = found.headers.get("content-type", "")
    if not golden.answer:
        assert found.content == b"" or golden.method == "HEAD"
    elif golden.is_stream:
        assert frames_of(found.text) == golden.frames
        assert statuses(found.text) == statuses(golden.answer)
    elif "tokens) exceeds" in golden.answer:
        assert statuses(found.text) == statuses(golden.answer)
    elif "json" not in kind:
        assert found.text.splitlines()[:2] == golden.answer.splitlines()[:2] or golden.name == "006-metrics"
    elif golden.status >= 400 and golden.name not in OTHER_TEXT and "request_id" not in golden.answer:
        assert found.json() == golden.json
    else:
        assert shape(found.json()) == shape(golden.json)
    if golden.name in SAME_COUNTS:
        assert found.json()["prompt_eval_count"] == golden.json["prompt_eval_count"]


@pytest.mark.parametrize("name", LLAMA)
async def test_llama_server_answers_as_recorded(name: str, tmp_path: Path) -> None:
    golden = LLAMA[name]
    model = EmulatedModel("smol", ("completion", "tools") if "tools" in name else ("completion",))
    engine = EmulatedEngine(
        models=[model], slots=2, save_path=str(tmp_path), embeddings="21" in name[:2], answer_tokens=(300, 300)
    )
    async with engine:
        found = await replay(engine, golden)
    compare_heads(found, golden)
    compare_bodies(found, golden)


@pytest.mark.parametrize("name", OLLAMA)
async def test_ollama_answers_as_recorded(name: str) -> None:
    golden = OLLAMA[name]
    async with EmulatedEngine("ollama", models=MODELS, slots=2, answer_tokens=(300, 300)) as engine:
        found = await replay(engine, golden)
    compare_heads(found, golden, values=golden.method != "OPTIONS")
    if name == "006-show":  # the description of one model: only its outer form is alike
        assert list(found.json()) == list(golden.json)
        assert set(found.json()["details"]) == set(golden.json["details"])
        return
    compare_bodies(found, golden)


KILLED = {name: golden for name, golden in goldens("ollama").items() if "child-killed" in name}


@pytest.mark.parametrize("name", KILLED)
async def test_a_child_that_dies_ends_the_answer_as_recorded(name: str) -> None:
    golden = KILLED[name]
    async with EmulatedEngine("ollama", models=MODELS, slots=2, answer_tokens=(300, 300)) as engine:
        engine.faults.add("child-dies", after_tokens=5, times=1)
        found = await replay(engine, golden)
        compare_heads(found, golden)
        if golden.is_stream:  # the recording leaves out its middle
            frames = iter(frames_of(found.text))
            assert all(frame in frames for frame in golden.frames)
            assert frames_of(found.text)[-1] == golden.frames[-1]
        else:
            compare_bodies(found, golden)
        again = await replay(engine, golden)  # it is loaded again for the next request
        assert again.status_code == 200


@pytest.mark.parametrize("name", KILLED)
async def test_a_child_that_is_really_killed_ends_the_answer_as_recorded(name: str) -> None:
    golden = KILLED[name]
    options: dict[str, Any] = {"children": True, "speed": 5, "answer_tokens": (9000, 9000)}
    async with EmulatedEngine("ollama", models=MODELS, slots=2, **options) as engine:
        asked = asyncio.ensure_future(replay(engine, golden))
        await until(lambda: any(job.decoded > 5 for seen in engine.requests for job in seen.jobs), "it speaks")
        child = engine.residents[0].child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        found = await asked
        compare_heads(found, golden)
        if golden.is_stream:
            frames = iter(frames_of(found.text))
            assert all(frame in frames for frame in golden.frames)
            assert frames_of(found.text)[-1] == golden.frames[-1]
        else:
            compare_bodies(found, golden)
        async with httpx.AsyncClient(base_url=engine.url) as client:
            again = await client.post("/api/generate", json={"model": "smol"})
        assert again.json()["done_reason"] == "load"
        assert engine.residents[0].child not in {None, child}


async def test_every_line_of_a_stream_is_a_chunk_of_its_own() -> None:
    golden = OLLAMA["032-chat-stream-raw-framing"]
    async with EmulatedEngine("ollama", models=MODELS, slots=2) as engine:
        url = urlsplit(engine.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = "".join(f"{name}: {value}\r\n" for name, value in golden.headers.items())
        writer.write(f"{golden.method} {golden.path} HTTP/1.1\r\n{head}\r\n{golden.body}".encode())
        raw = (await reader.read()).decode()
        writer.close()
    chunk = r"([0-9a-f]+)\r?\n({.*}\n)\r?\n"
    for text in (raw.partition("\r\n\r\n")[2], golden.answer):
        chunks = re.findall(chunk, text)
        assert [int(size, 16) for size, _ in chunks] == [len(line) for _, line in chunks]
        assert len(chunks) == len([line for line in text.splitlines() if line.startswith("{")]) == 4
        assert re.search(r"\n0(\r\n\r\n)?$", text)
