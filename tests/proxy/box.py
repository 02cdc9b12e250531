"""A whole proxy in the test's own loop, in front of emulated engines: real sockets, a real store, no processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from proxy.admin_api import RecentRequest, StatusAnswer
from proxy.app import App
from proxy.config import Config, resolve
from proxy.config_sources import LoadedConfig
from proxy.emulated.emulated_engine import EmulatedEngine
from tests.wait import until

MODEL = "smol"


class Box:
    """One running proxy and the engines behind it."""

    def __init__(self, app: App, engines: Sequence[EmulatedEngine], client: httpx.AsyncClient) -> None:
        self.app = app
        self.engines = engines
        self.client = client

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that clients use."""
        host, _, port = self.app.listen.rpartition(":")
        return host, int(port)

    async def status(self) -> StatusAnswer:
        """What `slotgate status` would get."""
        return self.app.admin.status()

    def recent(self) -> list[RecentRequest]:
        """The requests that ended, newest last."""
        return self.app.book.recent()

    async def ended(self, count: int) -> list[RecentRequest]:
        """Wait until so many requests have ended."""
        await until(lambda: len(self.recent()) >= count, f"{count} requests ended")
        return self.recent()

    def health(self, number: int = 0) -> str:
        """The state of one backend."""
        return self.app.admin.status().backends[number].health

    async def idle(self) -> None:
        """Wait until no seat is taken and no request is open."""
        await until(lambda: self.app.seats_taken == 0 and self.app.requests == 0, "no seat is taken")

    async def generate(self, prompt: str = "Once upon a time", **more: Any) -> httpx.Response:
        """One whole answer over the Ollama API."""
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "stream": False, "options": {"num_predict": 4}}
        return await self.client.post("/api/generate", json=body | more)


def emulated(api: str = "llama-server", **values: Any) -> EmulatedEngine:
    """An engine that computes at once, unless told otherwise."""
    settings: dict[str, Any] = {"models": [MODEL], "slots": 2, "speed": float("inf")} | values
    return EmulatedEngine(api, **settings)


@contextlib.asynccontextmanager
async def box(
    tmp_path: Path, engines: Sequence[EmulatedEngine], *, ready: bool = True, **config: Any
) -> AsyncIterator[Box]:
    """Start engines and a proxy in front of them; `config` are options of the configuration file."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        backends = [{"url": engine.url, "name": f"gpu{number}"} for number, engine in enumerate(engines)]
        settings = {"listen": "127.0.0.1:0", "state_dir": tmp_path / "state", "backends": backends} | config
        made = Config.model_validate(settings)
        app = App(made, resolve(made, {}), None, lambda: LoadedConfig(made, {}))
        task = asyncio.ensure_future(app.serve())
        stack.push_async_callback(_stop, app, task)
        await until(lambda: app.serving or task.done(), "the proxy serves")
        if task.done():
            await task
        if ready:
            await until(
                lambda: all(backend.health == "ready" for backend in app.admin.status().backends),
                "all backends are ready",
            )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{app.listen}", timeout=30))
        yield Box(app, engines, client)


async def _stop(app: App, task: "asyncio.Future[None]") -> None:
    app.stop()
    app.stop()
    await task
