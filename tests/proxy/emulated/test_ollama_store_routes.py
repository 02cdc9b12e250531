"""The routes that change the store, over HTTP: what recordings do not show."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from proxy.emulated.ollama_store import sha256
from tests.proxy.emulated.support import client_of, json_lines
from tests.wait import until


def ollama(**values: Any) -> EmulatedEngine:
    return EmulatedEngine("ollama", **{"models": ["a"], **values})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/api/pull", {}, 400, "invalid model name"),
        ("POST", "/api/pull", {"model": "a b"}, 400, "invalid model name"),
        ("POST", "/api/push", {"model": ""}, 400, "model is required"),
        ("POST", "/api/push", {"model": "x"}, 404, "model 'x' not found"),
        ("POST", "/api/create", {"model": "x"}, 400, "neither 'from' or 'files' was specified"),
        ("POST", "/api/create", {"model": "x", "files": {"f": "y"}}, 400, "invalid digest format"),
        ("POST", "/api/copy", {"source": "a", "destination": "x y"}, 400, 'destination "x y" is invalid'),
        ("DELETE", "/api/delete", {}, 400, "model is required"),
        ("POST", "/api/blobs/sha256:zz", {}, 400, "invalid digest format"),
        ("POST", "/api/signout", {}, 401, "you are not currently signed in"),
        ("DELETE", "/api/user/keys/k", None, 401, "you are not currently signed in"),
        ("POST", "/api/experimental/web_search", {}, 403, "ollama cloud is disabled: web search is unavailable"),
    ],
)
async def test_what_is_refused(method: str, path: str, body: Any, status: int, message: str) -> None:
    async with ollama() as engine, client_of(engine) as client:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.json()) == (status, {"error": message})


async def test_a_pull_in_one_piece_and_as_a_stream() -> None:
    async with ollama(registry=["m", "n"]) as engine, client_of(engine) as client:
        whole = await client.post("/api/pull", json={"model": "m", "stream": False})
        assert (whole.status_code, whole.json()) == (200, {"status": "success"})
        stream = await client.post("/api/pull", json={"name": "n"})
        assert stream.headers["content-type"] == "application/x-ndjson"
        assert json_lines(stream.text)[-1] == {"status": "success"}
        names = [model["name"] for model in (await client.get("/api/tags")).json()["models"]]
        assert names == ["n:latest", "m:latest", "a:latest"]
        assert (await client.post("/api/generate", json={"model": "n"})).json()["done_reason"] == "load"


async def test_a_client_that_leaves_stops_the_pull() -> None:
    model = EmulatedModel("big", size_bytes=10**9)
    async with ollama(registry=[model], registry_bytes_per_s=10**6) as engine:
        async with client_of(engine) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/api/pull", json={"model": "big", "stream": False}, timeout=0.3)
        await until(lambda: engine.requests[-1].over, "it is over")
        assert engine.requests[-1].client_left


async def test_a_failing_pull_says_so_and_a_later_one_goes_on() -> None:
    model = EmulatedModel("m", size_bytes=1000)
    async with ollama(registry=[model]) as engine, client_of(engine) as client:
        engine.faults.add("pull-fails", after_bytes=100, message="unexpected EOF", times=1)
        failed = await client.post("/api/pull", json={"model": "m"})
        assert (failed.status_code, json_lines(failed.text)[-1]) == (200, {"error": "unexpected EOF"})
        assert json_lines((await client.post("/api/pull", json={"model": "m"})).text)[-1] == {"status": "success"}


async def test_two_that_share_a_directory_see_each_others_models_and_spoil_each_others_pulls(tmp_path: Path) -> None:
    model = EmulatedModel("m", size_bytes=10**6)
    shared = {"models_dir": str(tmp_path), "registry": [model], "registry_bytes_per_s": 10**6, "models": []}
    async with ollama(**{**shared, "models": ["a"]}) as one, ollama(**shared) as other:
        async with client_of(one) as first, client_of(other) as second:
            assert [entry["name"] for entry in (await second.get("/api/tags")).json()["models"]] == ["a:latest"]
            pulls = await asyncio.gather(*(each.post("/api/pull", json={"model": "m"}) for each in (first, second)))
            last = [json_lines(answer.text)[-1] for answer in pulls]
            assert any("digest mismatch" in record.get("error", "") for record in last)
            assert (await first.post("/api/pull", json={"model": "m"})).status_code == 200
            assert (await second.post("/api/generate", json={"model": "m"})).json()["done_reason"] == "load"


async def test_uploaded_blobs_become_models() -> None:
    data = b"GGUF weights"
    digest = sha256(data)
    async with ollama() as engine, client_of(engine) as client:
        wrong = await client.post(f"/api/blobs/{digest}", content=b"other")
        assert wrong.status_code == 400
        assert wrong.json()["error"] == f'digest mismatch, expected "{digest}", got "{sha256(b"other")}"'
        missing = await client.post("/api/create", json={"model": "x", "files": {"f": digest}})
        assert "no such file or directory" in missing.json()["error"]
        assert (await client.head(f"/api/blobs/{digest}")).status_code == 404
        made = await client.post(f"/api/blobs/{digest}", content=data)
        assert (made.status_code, made.content) == (201, b"")
        assert (await client.post(f"/api/blobs/{digest.replace(':', '-')}", content=data)).status_code == 200
        assert (await client.head(f"/api/blobs/{digest}")).status_code == 200
        created = await client.post("/api/create", json={"model": "x", "files": {"f": digest}, "stream": False})
        assert created.json() == {"status": "success"}
        shown = await client.post("/api/show", json={"model": "x"})
        assert digest.replace(":", "-") in shown.json()["modelfile"]


async def test_a_base_that_is_not_there_is_pulled_first() -> None:
    async with ollama(registry=["base"]) as engine, client_of(engine) as client:
        records = json_lines((await client.post("/api/create", json={"model": "x", "from": "base"})).text)
        assert records[0] == {"status": "pulling manifest"}
        assert [record["status"] for record in records].count("success") == 1
    async with ollama() as engine, client_of(engine) as client:
        records = json_lines((await client.post("/api/create", json={"model": "x", "from": "base"})).text)
        assert "no such host" in records[-1]["error"]


async def test_what_is_deleted_stays_loaded_and_is_not_found() -> None:
    async with ollama() as engine, client_of(engine) as client:
        await client.post("/api/generate", json={"model": "a"})
        await client.request("DELETE", "/api/delete", json={"model": "a"})
        assert [entry["name"] for entry in (await client.get("/api/ps")).json()["models"]] == ["a:latest"]
        assert (await client.post("/api/generate", json={"model": "a"})).status_code == 404


async def test_who_is_signed_in_has_an_account() -> None:
    async with ollama(cloud=True) as engine, client_of(engine) as client:
        assert (await client.post("/api/me")).json()["name"] == "emulated"
        assert (await client.post("/api/experimental/web_search", json={})).json() == {"results": []}
        assert (await client.post("/api/experimental/web_fetch", json={})).status_code == 200
        assert (await client.get("/api/experimental/model-recommendations")).json() == {"recommendations": []}
        assert (await client.post("/api/signout")).status_code == 200
    async with ollama() as engine, client_of(engine) as client:
        me = await client.post("/api/me")
        assert (me.status_code, me.json()["error"]) == (401, "unauthorized")
