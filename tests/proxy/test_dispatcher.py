"""The dispatcher: every claim is answered, every effect performed; safe with several proxies at one store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.endpoint import identity, parse_endpoint
from proxy.store import EmbeddedStore
from tests.proxy.box import box, emulated
from tests.wait import until


async def test_two_proxies_at_one_store_stay_under_the_limit_together(tmp_path: Path) -> None:
    engine = emulated(slots=4, speed=100.0)
    store = EmbeddedStore(tmp_path / "shared")
    await store.start()
    try:
        async with engine:
            backend = {"url": engine.url, "running_limit": 2}
            config: dict[str, Any] = {"store": {"url": store.url}, "backends": [backend]}
            async with box(tmp_path / "one", [], **config) as one, box(tmp_path / "two", [], **config) as two:
                answers = await asyncio.gather(
                    *(proxy.generate(f"story {n}") for n in range(15) for proxy in (one, two))
                )
                assert {answer.status_code for answer in answers} == {200}
                assert engine.max_concurrent_seen == 2
                await one.idle()
                await two.idle()
    finally:
        await store.stop()


async def test_draining_is_told_to_the_other_proxy(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "shared")
    await store.start()
    try:
        async with emulated() as engine:
            config: dict[str, Any] = {"store": {"url": store.url}, "backends": [{"url": engine.url, "name": "gpu0"}]}
            async with box(tmp_path / "one", [], **config) as one, box(tmp_path / "two", [], **config) as two:
                await one.app.drain("gpu0", drain=True)
                await until(lambda: two.health() == "draining", "the other proxy drains too")
                await two.app.drain("gpu0", drain=False)
                await until(lambda: one.health() == "ready", "the other proxy undrains too")
                assert (await one.generate()).status_code == 200
    finally:
        await store.stop()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8080", "box/127.0.0.1:8080"),
        ("http://localhost:8080/llm", "box/localhost:8080/llm"),
        ("http://gpu.lan:8080", "gpu.lan:8080"),
        ("unix:/run/llama.sock", "box/run/llama.sock"),
    ],
)
def test_one_name_per_engine(url: str, name: str) -> None:
    assert identity(parse_endpoint(url), "box") == name
