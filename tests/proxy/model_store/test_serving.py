"""Ollama's routes that change models, over HTTP, in front of emulated Ollamas."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.proxy.model_store.rig import ADMIN, fleet, has, lines, names, ollama
from tests.wait import until


async def test_a_pull_is_streamed_as_by_an_ollama(tmp_path: Path) -> None:
    engine = ollama()
    async with fleet(tmp_path, [engine]) as running:
        through = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        listed = await names(running)
        async with httpx.AsyncClient() as client:
            direct = await client.post(f"{engine.url}/api/pull", json={"model": "tiny"})
        again = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)

    assert through.status_code == 200
    assert through.headers["Content-Type"] == "application/x-ndjson"
    records = lines(through.text)
    assert records[0] == {"status": "pulling manifest"}
    assert records[-1] == {"status": "success"}
    assert listed == ["smol", "tiny"]
    assert again.content == direct.content


async def test_separate_stores_all_get_it_with_one_progress(tmp_path: Path) -> None:
    engines = [ollama(), ollama()]
    async with fleet(tmp_path, engines) as running:
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        here = [await has(engine) for engine in engines]

    records = lines(answer.text)
    assert here == [["smol", "tiny"], ["smol", "tiny"]]
    assert [each["status"] for each in records if "digest" not in each] == [
        "pulling manifest",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    bars = [each for each in records if "digest" in each]
    for digest in {each["digest"] for each in bars}:
        mine = [each for each in bars if each["digest"] == digest]
        assert len({each["total"] for each in mine}) == 1
        assert mine[-1]["completed"] == mine[-1]["total"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/pull", {"model": "tiny"}),
        ("POST", "/api/push", {"model": "smol"}),
        ("POST", "/api/create", {"model": "x", "from": "smol"}),
        ("POST", "/api/copy", {"source": "smol", "destination": "x"}),
        ("DELETE", "/api/delete", {"model": "smol"}),
        ("POST", f"/api/blobs/sha256:{'0' * 64}", {}),
        ("HEAD", f"/api/blobs/sha256:{'0' * 64}", {}),
    ],
)
async def test_closed_by_default(tmp_path: Path, method: str, path: str, body: dict[str, str]) -> None:
    """CVE-2025-63389: an Ollama has no authentication at all."""
    async with fleet(tmp_path, [ollama()]) as running:
        nobody = await running.client.request(method, path, json=body)
        somebody = await running.client.request(method, path, json=body, headers={"Authorization": "Bearer anybody"})
        assert await names(running) == ["smol"]

    assert (nobody.status_code, somebody.status_code) == (403, 403)
    if method != "HEAD":
        assert "admin" in nobody.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/api//pull",
        "/api/pull/",
        "/api/%70ull",
        "/api/./pull",
        "/API/pull",
        "/api/pull;x",
        "/api/blobs/../pull",
        "/x/../api/pull",
    ],
)
async def test_no_other_spelling_of_a_path_gets_in(tmp_path: Path, path: str) -> None:
    engine = ollama()
    async with fleet(tmp_path, [engine]) as running:
        host, port = running.address
        reader, writer = await asyncio.open_connection(host, port)
        body = b'{"model":"tiny"}'
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{_header(ADMIN)}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = (await reader.readline()).split()[1]
        writer.close()
        assert await has(engine) == ["smol"]

    assert status in {b"404", b"307"}


async def test_everyone_may_where_that_is_set_but_not_reach_other_registries(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama()], model_store={"allow": "everyone"}) as running:
        pulled = await running.client.post("/api/pull", json={"model": "tiny", "stream": False})
        foreign = await running.client.post("/api/pull", json={"model": "evil.example/a/b"})

    assert (pulled.status_code, pulled.json()) == (200, {"status": "success"})
    assert foreign.status_code == 403


async def test_errors_are_ollamas_words(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama(), ollama()]) as running:
        post = running.client.post
        stream = await post("/api/pull", json={"model": "nope"}, headers=ADMIN)
        whole = await post("/api/pull", json={"model": "nope", "stream": False}, headers=ADMIN)
        missing = await post("/api/copy", json={"source": "nope", "destination": "x"}, headers=ADMIN)
        gone = await running.client.request("DELETE", "/api/delete", json={"model": "nope"}, headers=ADMIN)

    assert lines(stream.text) == [{"status": "pulling manifest"}, {"error": "pull model manifest: file does not exist"}]
    assert (whole.status_code, whole.json()["error"]) == (500, "pull model manifest: file does not exist")
    assert (missing.status_code, missing.json()) == (404, {"error": 'model "nope" not found'})
    assert (gone.status_code, gone.json()) == (404, {"error": "model 'nope' not found"})


async def test_one_of_two_that_fails_is_named(tmp_path: Path) -> None:
    engines = [ollama(), ollama(registry=[])]
    async with fleet(tmp_path, engines) as running:
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        here = [await has(engine) for engine in engines]

    error = lines(answer.text)[-1]["error"]
    assert error.startswith("gpu1: pull model manifest: Get ")
    assert "done on 1 of 2" in error
    assert here == [["smol", "tiny"], ["smol"]]


async def test_copy_and_delete_on_all_and_seen_at_once(tmp_path: Path) -> None:
    engines = [ollama(), ollama(models=["other"])]
    async with fleet(tmp_path, engines) as running:
        copied = await running.client.post("/api/copy", json={"source": "smol", "destination": "smol2"}, headers=ADMIN)
        after_copy = await names(running)
        deleted = await running.client.request("DELETE", "/api/delete", json={"model": "smol2"}, headers=ADMIN)
        after_delete = await names(running)

    assert (copied.status_code, copied.content, copied.headers["Content-Length"]) == (200, b"", "0")
    assert (deleted.status_code, deleted.content) == (200, b"")
    assert after_copy == ["other", "smol", "smol2"]
    assert after_delete == ["other", "smol"]


async def test_create_from_an_uploaded_blob(tmp_path: Path) -> None:
    engines = [ollama(), ollama()]
    blob = b"GGUF" + bytes(200_000)
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(blob), 10_000):
            yield blob[start : start + 10_000]

    async with fleet(tmp_path, engines) as running:
        client = running.client
        before = await client.head(f"/api/blobs/{digest}", headers=ADMIN)
        chunked = await client.post(f"/api/blobs/{digest}", content=pieces(), headers=ADMIN)
        after = await client.head(f"/api/blobs/{digest}", headers=ADMIN)
        sized = await client.post(f"/api/blobs/{digest}", content=blob, headers=ADMIN)
        body = {"model": "made", "files": {"model.gguf": digest}, "system": "Be brief."}
        created = await client.post("/api/create", json=body, headers=ADMIN)
        here = [await has(engine) for engine in engines]

    assert (before.status_code, before.headers["Content-Length"]) == (404, "102")  # as captured
    assert (chunked.status_code, after.status_code, sized.status_code) == (201, 200, 200)
    assert lines(created.text)[-1] == {"status": "success"}
    assert here == [["made", "smol"], ["made", "smol"]]


async def test_a_blob_that_is_another(tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    async with fleet(tmp_path, [ollama()]) as running:
        wrong = await running.client.post(f"/api/blobs/{digest}", content=b"x" * 100, headers=ADMIN)
        none = await running.client.post("/api/blobs/sha256:zz", content=b"x", headers=ADMIN)

    assert wrong.status_code == 400
    assert wrong.json()["error"].startswith(f'digest mismatch, expected "{digest}"')
    assert (none.status_code, none.json()) == (400, {"error": "invalid digest format"})


async def test_push_runs_at_one_of_those_that_have_it(tmp_path: Path) -> None:
    engines = [ollama(), ollama(models=["mine", "smol"])]
    async with fleet(tmp_path, engines) as running:
        answer = await running.client.post("/api/push", json={"model": "mine"}, headers=ADMIN)
        [ended] = await running.ended(1)

    assert (ended.tenant, ended.operation, ended.model) == ("admin", "push", "mine")
    records = lines(answer.text)
    assert records[0] == {"status": "retrieving manifest"}
    assert records[-1] == {"status": "success"}


async def test_an_upload_of_a_client_that_leaves_is_given_up(tmp_path: Path) -> None:
    engine = ollama()
    digest = f"sha256:{'0' * 64}"
    async with fleet(tmp_path, [engine]) as running:
        host, port = running.address
        _, writer = await asyncio.open_connection(host, port)
        head = f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: {host}\r\n{_header(ADMIN)}Content-Length: 1000000\r\n\r\n"
        writer.write(head.encode() + b"x" * 1000)
        await writer.drain()
        await until(lambda: running.app.frontend.clients, "the request is there")
        writer.close()
        await until(lambda: len(running.recent()) == 1, "its record is closed")

    assert running.recent()[0].outcome == "client-left"


def _header(headers: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
