"""The emulated engines answer recorded requests as the real engines did: status, heads, error texts, keys in order."""

from pathlib import Path

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.contract.http_files import Golden, frames_of, goldens
from tests.contract.shapes import shape

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
    "156-ps-two-models": [("/api/generate", {"model": "smoltools"}), ("/api/embed", {"model": "embed"})],
    "061-slot-restore": [("/slots/0?action=save", {"filename": "p.bin"})],
}
# The real model answered these with fewer or other words than ours does; the kinds of values are compared.
OTHER_TEXT = {"050-bad-json"}


async def replay(engine: EmulatedEngine, golden: Golden) -> httpx.Response:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        for path, body in FIRST.get(golden.name, []):
            assert (await client.post(path, json=body)).status_code == 200
        headers = {
            name: value for name, value in golden.headers.items() if name not in {"Content-Length", "Connection"}
        }
        return await client.request(golden.method, golden.path, content=golden.body.encode(), headers=headers)


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
    elif "json" not in kind:
        assert found.text.splitlines()[:2] == golden.answer.splitlines()[:2] or golden.name == "006-metrics"
    elif golden.status >= 400 and golden.name not in OTHER_TEXT and "request_id" not in golden.answer:
        assert found.json() == golden.json
    else:
        assert shape(found.json()) == shape(golden.json)


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
