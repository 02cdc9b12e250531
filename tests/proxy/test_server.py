"""The front door: what is refused before anything is done, and in which words."""

import asyncio
from pathlib import Path

import pytest

from tests.proxy.box import MODEL, Box, box, emulated


async def raw(running: Box, request: bytes) -> bytes:
    """Send bytes as they are and read until the proxy closes."""
    reader, writer = await asyncio.open_connection(*running.address)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/%73lots", "/v1%2fmodels", "//api/tags", "/api/../slots", "/api/./tags", "/api/tags%2f",
        "/slots/0?action=save", "/metrics", "/lora-adapters", "/v1/stream?conv_id=x", "/models/load", "/api\\tags",
        "/api/tags;x", "/api/tags//",
    ],
)  # fmt: skip
async def test_nothing_off_the_list_reaches_an_engine(tmp_path: Path, path: str) -> None:
    engine = emulated()
    async with box(tmp_path, [engine]) as running:
        probes = len(engine.requests)
        answers = [
            await raw(running, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            for method in ("GET", "POST", "DELETE")
        ]
        seen = [request.path for request in list(engine.requests)[probes:]]

    assert all(answer.split()[1] in (b"404", b"405", b"403", b"400") for answer in answers)
    assert set(seen) <= {"/slots", "/metrics", "/health", "/props", "/v1/models"}, "only slotgate's own probes"


@pytest.mark.parametrize(
    "request_",
    [
        b"CONNECT evil:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"NONSENSE\r\n\r\n",
    ],
)
async def test_malformed_requests_are_refused_and_closed(tmp_path: Path, request_: bytes) -> None:
    async with box(tmp_path, [emulated()]) as running:
        answer = await raw(running, request_)

    assert answer.split()[1] in (b"400", b"501")


async def test_a_body_that_is_too_large(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()], limits={"max_body_bytes": 1000}) as running:
        answer = await running.client.post("/api/chat", json={"model": MODEL, "messages": [], "x": "y" * 1000})
        after = await running.generate()

    assert answer.status_code == 413
    assert "1000 bytes" in answer.json()["error"]
    assert after.status_code == 200


async def test_pages_of_strangers_and_foreign_hosts(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()], origins=["https://chat.example"]) as running:
        get = running.client.get
        stranger = await get("/api/tags", headers={"Origin": "http://evil.example"})
        rebound = await get("/api/tags", headers={"Host": "evil.example"})
        local = await get("/api/tags", headers={"Origin": "http://localhost:3000"})
        configured = await get("/api/tags", headers={"Origin": "https://chat.example"})
        asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
        preflight = await running.client.options("/api/chat", headers=asked)

    assert [stranger.status_code, rebound.status_code] == [403, 403]
    assert local.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert configured.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert preflight.status_code == 204
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]


async def test_every_request_leaves_a_record(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        await running.client.get("/nothing")
        await running.client.post("/api/chat", content=b'{"model": ')
        await running.client.get("/api/version")
        ended = await running.ended(3)

    assert [(request.status, request.termination) for request in ended] == [(404, "SR"), (400, "SR"), (200, "--")]


async def test_keep_alive_after_answers_of_every_kind(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated()]) as running:
        before = len(running.app.frontend.clients)
        for _ in range(3):
            await running.generate()
            await running.client.get("/api/tags")
            async with running.client.stream("POST", "/api/generate", json={"model": MODEL, "prompt": "x"}) as answer:
                await answer.aread()
            await running.client.get("/nothing")

        assert len(running.app.frontend.clients) - before == 1


async def test_a_failure_of_our_own_is_told_in_the_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("broken")

    async with box(tmp_path, [emulated()]) as running:
        monkeypatch.setattr("proxy.dialects.plan", broken)
        ollama = await running.generate()
        openai = await running.client.post("/v1/chat/completions", json={"model": MODEL, "messages": []})
        monkeypatch.undo()
        after = await running.generate()
        await running.idle()

    assert (ollama.status_code, ollama.json()) == (500, {"error": "slotgate failed inside; its log says how"})
    assert openai.json()["error"]["type"] == "api_error"
    assert after.status_code == 200
