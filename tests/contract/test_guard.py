"""What reaches an Ollama behind slotgate, whatever a client sends: known routes, under its own name, without Origin."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects.routes import ROUTES, Kind
from tests.contract.ollama_stand_in import OllamaStandIn, listing
from tests.contract.wire_client import send
from tests.proxy.box import box

CHAT = json.dumps({"model": "smol", "messages": [{"role": "user", "content": "x"}], "stream": False}).encode()
OWN = {"/", "/api/version", "/api/tags", "/api/ps", "/api/show", "/api/generate"}
"""What slotgate asks by itself."""

PATHS = [
    "/api/%63hat", "/%61pi/chat", "/api%2fchat", "/api%2Fchat", "//api/chat", "/api//chat", "/api/./chat",
    "/api/x/../chat",
    "/api/%2e%2e/api/chat", "/api/..%2fapi/chat", "/api/chat;a", "/api/chat%3b", "/api/chat%00", "/api/chat%0a",
    "/api/chat%c0%af", "/api/%e0%80%afchat", "/api/chat%ff", "/API/chat", "/api/Chat", "/api/chat.", "/api/chat..",
    "/api/chat%20", "/api/chat%2f", "/api\\chat", "/api/chat%5c", "/api/pull%2f", "/api/%70ull", "/API/PULL",
    "/api//pull",
    "/api/experimental/../pull", "/api/me/../pull", "/api/blobs/../pull", "/api/blobs/..%2fpull",
    "/slots/0?action=erase",
    "/api/experimental/web_fetch/x", "/v1/models/..%2f..%2fapi%2fpull", "/v1/models/%2e%2e", "/metrics", "/debug/pprof",
]  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "http://127.0.0.1:11434{}", "HTTP://ollama{}"])
async def test_no_spelling_reaches_an_engine(form: str, tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    async with box(tmp_path, [stand_in]) as running:
        statuses = {
            (method, path): (await send(running.address, method, form.format(path), [], CHAT)).status
            for method in ("POST", "DELETE")
            for path in PATHS
        }
        targets = {asked.path for asked in stand_in.asked}

    assert set(statuses.values()) <= {400, 403, 404, 405}, statuses
    assert targets <= OWN


@pytest.mark.parametrize(
    "path", ["/api/experimental/web_fetch", "/api/experimental/web_search", "/api/signout", "/api/me"]
)
async def test_nothing_is_fetched_or_signed_out_through_slotgate(path: str, tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    async with box(tmp_path, [stand_in]) as running:
        await send(running.address, "POST", path, [], b'{"url":"http://169.254.169.254/"}')
        await send(running.address, "DELETE", "/api/user/keys/abc")
    assert {asked.path for asked in stand_in.asked} <= OWN


@pytest.mark.parametrize(
    ("method", "path"), sorted((route.method, route.path) for route in ROUTES.values() if route.kind is Kind.STORE)
)
async def test_the_model_store_is_closed_unless_it_is_opened(method: str, path: str, tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    target = path.replace("{digest}", "sha256:" + "0" * 64)
    async with box(tmp_path, [stand_in]) as running:
        got = await send(running.address, method, target, [], b'{"model":"smol","source":"smol","destination":"x"}')
    assert got.status == 403
    assert {asked.path for asked in stand_in.asked} <= OWN


async def test_what_an_engine_gets_to_see_of_a_request(tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    headers = [
        ("Host", "localhost:1"), ("Origin", "http://localhost:3000"), ("Referer", "http://localhost:3000/"),
        ("Authorization", "Bearer secret"), ("X-Api-Key", "secret"), ("Cookie", "a=b"), ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-Prefix", "//evil.example"), ("Accept-Encoding", "gzip"), ("TE", "trailers"), ("Via", "x"),
        ("User-Agent", "ollama-python/0.6.3"), ("Content-Type", "text/plain"), ("Connection", "close, User-Agent"),
    ]  # fmt: skip
    async with box(tmp_path, [stand_in]) as running:
        await send(running.address, "POST", "/api/chat?stream=true&api_key=x", headers, CHAT)
        [asked] = stand_in.got("/api/chat")

    assert asked.headers["host"] == stand_in.url.removeprefix("http://")
    assert asked.headers["content-type"] == "application/json"
    assert set(asked.headers) <= {"host", "content-type", "content-length", "user-agent", "accept"}
    assert "secret" not in str(asked)


async def test_a_redirect_stays_on_this_address(tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    headers = [("X-Forwarded-Prefix", "//evil.example"), ("X-Forwarded-Host", "evil.example")]
    async with box(tmp_path, [stand_in]) as running:
        got = await send(running.address, "GET", "/api/tags/?a=b", headers)
        head = await send(running.address, "HEAD", "/api/tags/", headers)
    assert (got.status, got.header("Location")) == (301, ["/api/tags?a=b"])
    assert (head.status, head.header("Location")) == (307, ["/api/tags"])
