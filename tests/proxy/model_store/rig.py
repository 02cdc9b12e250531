"""A whole proxy in front of emulated Ollamas with models on disk, for tests of what changes these."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy.emulated.emulated_engine import EmulatedEngine
from proxy.emulated.options import EmulatedModel
from tests.proxy.box import Box, box

ADMIN = {"Authorization": "Bearer let-me-change-models"}
KEYS = {"keys": {"let-me-change-models": {"name": "admin", "admin": True}, "anybody": {"name": "somebody"}}}
SMALL = 4_000_000
"""Bytes of a model of the pretended registry."""
TINY = EmulatedModel("tiny", size_bytes=SMALL)


def ollama(**values: Any) -> EmulatedEngine:
    """An Ollama that pulls at once, unless told otherwise."""
    settings: dict[str, Any] = {"models": ["smol"], "registry": [TINY, EmulatedModel("other", size_bytes=SMALL)]}
    return EmulatedEngine("ollama", **(settings | {"speed": float("inf"), "fault_route": True} | values))


@contextlib.asynccontextmanager
async def fleet(
    tmp_path: Path, engines: Sequence[EmulatedEngine], stores: Sequence[str] = (), **config: Any
) -> AsyncIterator[Box]:
    """A proxy in front of them; `stores` names their model stores, one each, or one for all; none: each has its own."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        backends: list[dict[str, Any]] = [
            {"url": engine.url, "name": f"gpu{number}", "engine": "ollama"} for number, engine in enumerate(engines)
        ]
        for backend, name in zip(backends, stores, strict=False):
            backend["store"] = name
        settings: dict[str, Any] = {"backends": backends, "tenancy": KEYS} | config
        yield await stack.enter_async_context(box(tmp_path, [], **settings))


def lines(text: str) -> list[dict[str, Any]]:
    """The records of a stream."""
    return [msgspec.json.decode(line) for line in text.splitlines() if line]


async def names(running: Box) -> list[str]:
    """What `ollama list` shows."""
    listed = (await running.client.get("/api/tags")).json()["models"]
    return sorted(each["name"].removesuffix(":latest") for each in listed)


async def has(engine: EmulatedEngine) -> list[str]:
    """What one Ollama itself has."""
    import httpx

    async with httpx.AsyncClient() as client:
        listed = (await client.get(f"{engine.url}/api/tags")).json()["models"]
    return sorted(each["name"].removesuffix(":latest") for each in listed)
