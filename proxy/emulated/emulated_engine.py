"""A whole emulated engine: its socket, its API, its faults, what tests can see of it. Must not know any slot rule."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import orjson
import structlog

from proxy.emulated.engine import SlotEngine
from proxy.emulated.faults import Fault, Faults, Kind
from proxy.emulated.jobs import Job
from proxy.emulated.llama_api import LlamaApi
from proxy.emulated.llama_heads import llama_manners
from proxy.emulated.ollama_api import OllamaApi
from proxy.emulated.ollama_children import ChildProcess
from proxy.emulated.ollama_files import DirectoryFiles, MemoryFiles
from proxy.emulated.ollama_heads import ollama_manners
from proxy.emulated.ollama_loaded import LoadCounts, Loaded
from proxy.emulated.ollama_store import Store
from proxy.emulated.options import EmulatedModel, Options
from proxy.emulated.wire import Exchange, Listener

log = structlog.get_logger("slotgate.emulated")

_KEPT_REQUESTS = 10_000


class Api(Protocol):
    """An HTTP API in front of slot engines."""

    inference: frozenset[str]
    """Paths that take slots."""

    async def respond(self, exchange: Exchange, fault: Fault | None) -> None:
        """Answer one request."""

    async def start(self) -> None:
        """Begin to load."""

    async def close(self) -> None:
        """Stop computing."""

    def orphan(self) -> None:
        """Leave processes of its own behind, as the death of this one does."""

    def engines(self) -> list[SlotEngine]:
        """The slot engines that run now."""

    def loading(self, exchange: Exchange) -> None:
        """Answer that the model is loading."""

    def broken(self, exchange: Exchange, message: str) -> None:
        """Answer with an internal error."""


class Seen(msgspec.Struct):
    """One request as the engine saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    """Loop time of its arrival."""
    status: int = 0
    """0: not answered (yet)."""
    over: bool = False
    client_left: bool = False
    jobs: list[Job] = []
    """Its sequences: slot, cached and computed tokens."""

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON body; empty if it is no object."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


class EmulatedEngine:
    """An engine without a model: `async with EmulatedEngine(api="ollama", slots=2) as engine: ... engine.url`.

    Args:
        api: `llama-server` or `ollama`.
        listen: `HOST:PORT` (port 0: any free one) or `unix:/PATH`.
        models: names, or `EmulatedModel`s; llama-server has the first only.
        registry: the same, of what an Ollama can pull.
        values: every other field of `Options`, by name.
    """

    def __init__(
        self,
        api: str = "llama-server",
        *,
        listen: str = "127.0.0.1:0",
        models: Sequence[str | EmulatedModel] = ("emulated",),
        registry: Sequence[str | EmulatedModel] = (),
        **values: Any,
    ) -> None:
        self.options = Options(api=api, models=_models(models), registry=_models(registry), **values)
        self.loads = LoadCounts()
        """What happened to an Ollama's runners, over all its lives."""
        self._store: Store | None = None
        self.faults = Faults(self._apply)
        self.requests: deque[Seen] = deque(maxlen=_KEPT_REQUESTS)
        self.max_concurrent_seen = 0
        """Most inference requests that were open here at the same time, running or waiting."""
        self.dies_for_real = False
        """Whether the fault `kill` ends this process; else it cuts every connection and the port."""
        self._listen = listen
        self._listener: Listener | None = None
        self._api: Api | None = None
        self._open: set[int] = set()
        self._dead: list[tuple[Listener, Api]] = []
        """Killed, and not yet cleared away."""

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    async def start(self) -> None:
        """Listen and begin to load; after `kill` or `stop` on the same port again, with empty slots.

        Raises:
            OSError: the address cannot be had.
            ValueError: the address cannot be read.
        """
        if self.options.api == "ollama":
            api: Api = OllamaApi(self.options, self._open_store(), self.loads, self.faults)
            manners = ollama_manners()
        else:
            api = LlamaApi(self.options)
            manners = llama_manners(self.options.idle_timeout_s)
        self._api = api
        self._listener = Listener(manners, self._respond)
        patience_s = 1.0 if self._dead else 0.0
        if self._listen.startswith("unix:"):
            await self._listener.start(unix_path=self._listen.removeprefix("unix:"), patience_s=patience_s)
        else:
            host, _, port = self._listen.rpartition(":")
            await self._listener.start(host=host.strip("[]"), port=int(port), patience_s=patience_s)
            if port == "0":  # the same one after a restart
                self._listen = self._listener.url.removeprefix("http://")
        await api.start()
        self._apply(self.faults.faults)

    async def stop(self) -> None:
        """Close the port, cut every connection, end all work."""
        self._end(reset=False)
        while self._dead:
            listener, api = self._dead.pop()
            await listener.close()
            await api.close()

    def kill(self) -> None:
        """Die as by SIGKILL: connections break where they are; an Ollama's children live on. `start` brings it back."""
        if self._api is not None:
            self._api.orphan()
        self._end(reset=True)

    def _open_store(self) -> Store:
        """An Ollama's models; in memory they outlive its process, as on a disk."""
        if self._store is None:
            directory = self.options.models_dir
            self._store = Store(DirectoryFiles(Path(directory)) if directory else MemoryFiles())
            for model in reversed(self.options.models):
                self._store.provide(model)
        if self.options.prunes:
            self._store.prune()
        return self._store

    def _end(self, *, reset: bool) -> None:
        listener, self._listener = self._listener, None
        api, self._api = self._api, None
        if listener is None or api is None:
            return
        listener.refuse()
        listener.cut_all(reset=reset)
        for engine in api.engines():
            engine.stop()
        self._open.clear()
        self._dead.append((listener, api))

    @property
    def url(self) -> str:
        """`http://host:port` or `unix:/path`; the same after a restart."""
        return self._listen if self._listen.startswith("unix:") else f"http://{self._listen}"

    @property
    def engines(self) -> list[SlotEngine]:
        """The slot engines that run now: one, or one per loaded model (Ollama)."""
        return self._api.engines() if self._api is not None else []

    @property
    def residents(self) -> list[Loaded]:
        """What an Ollama holds loaded now."""
        return list(self._api.models.loaded.values()) if isinstance(self._api, OllamaApi) else []

    @property
    def children(self) -> list[ChildProcess]:
        """The processes of an Ollama's runners, those that still load among them."""
        children = self._api.children if isinstance(self._api, OllamaApi) else None
        return [child for child in children.started if child.process.poll() is None] if children is not None else []

    @property
    def open_requests(self) -> int:
        """Inference requests that are open now, running or waiting."""
        return len(self._open)

    @property
    def busy_slots(self) -> int:
        """Slots that compute now."""
        return sum(len(engine.running) for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot now."""
        return sum(engine.waiting_jobs for engine in self.engines)

    @property
    def deferred_max(self) -> int:
        """Most jobs that ever waited for a slot at the same time."""
        return max((engine.deferred_max for engine in self.engines), default=0)

    @property
    def connections_accepted(self) -> int:
        """Connections since the start."""
        return self._listener.accepted if self._listener is not None else 0

    @property
    def connections_open(self) -> int:
        """Connections now."""
        return len(self._listener.connections) if self._listener is not None else 0

    def state(self) -> dict[str, Any]:
        """What /emulated/state tells."""
        models = self._api.models if isinstance(self._api, OllamaApi) else None
        counts: dict[str, Any] = msgspec.to_builtins(self.loads)
        return counts | {
            "pending_loads": 0 if models is None else models.pending,
            "events": [] if models is None else msgspec.to_builtins(list(models.turns)),
            "resident": [loaded.view() for loaded in self.residents],
            "open_requests": self.open_requests,
            "max_concurrent_seen": self.max_concurrent_seen,
            "requests": len(self.requests),
        }

    # -- requests

    async def _respond(self, exchange: Exchange) -> None:
        api = self._api
        if api is None:
            exchange.abort()
            return
        if self.options.fault_route and exchange.path == "/emulated/faults":
            self._fault_route(exchange)
            return
        if self.options.fault_route and exchange.path == "/emulated/state":
            exchange.whole(200, [("Content-Type", "application/json")], orjson.dumps(self.state()))
            return
        inference = exchange.method == "POST" and exchange.path in api.inference
        self._note(exchange, inference=inference)
        fault = self.faults.take(exchange.path, inference=inference)
        if fault is not None and await self._befall(exchange, fault, api):
            return
        await api.respond(exchange, fault)

    def _note(self, exchange: Exchange, *, inference: bool) -> None:
        seen = Seen(exchange.method, exchange.path, exchange.headers, exchange.body, asyncio.get_running_loop().time())
        seen.jobs = exchange.jobs
        self.requests.append(seen)
        if inference:
            self._open.add(id(exchange))
            self.max_concurrent_seen = max(self.max_concurrent_seen, self.open_requests)

        def ended() -> None:
            seen.status, seen.over, seen.client_left = exchange.status, True, exchange.gone
            self._open.discard(id(exchange))

        exchange.on_ended.append(ended)

    async def _befall(self, exchange: Exchange, fault: Fault, api: Api) -> bool:
        """Do what a fault does before any answer; whether that was all."""
        if fault.extra_s:
            await asyncio.sleep(fault.extra_s)
        match fault.kind:
            case Kind.RESET:
                exchange.abort(reset=True)
            case Kind.HANG:
                exchange.on_gone = exchange.abort
                if exchange.gone:
                    exchange.abort()
            case Kind.LOADING:
                api.loading(exchange)
            case Kind.ERROR:
                api.broken(exchange, fault.message)
            case _:
                return False
        return True

    # -- faults

    def _apply(self, faults: list[Fault]) -> None:
        slow = self.faults.active(Kind.SLOW)
        for engine in self.engines:
            engine.slow_factor = slow.factor if slow else 1.0
            engine.extra_step_s = slow.extra_s if slow else 0.0
            engine.freeze(self.faults.active(Kind.FREEZE) is not None)
        if self._listener is None:
            return
        self._listener.reset_new = self.faults.active(Kind.RESET_NEW) is not None
        if self.faults.active(Kind.KILL):
            faults[:] = [fault for fault in faults if fault.kind is not Kind.KILL]
            if self.dies_for_real:
                os.kill(os.getpid(), signal.SIGKILL)
            self.kill()
        elif self.faults.active(Kind.REFUSE):
            self._listener.refuse()
        else:
            self._listener.reopen()

    def _fault_route(self, exchange: Exchange) -> None:
        """GET shows, POST adds one, DELETE clears all."""
        status, problem = 200, ""
        if exchange.method == "POST":
            try:
                fields = orjson.loads(exchange.body)
                self.faults.add(fields.pop("kind"), **fields)
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                status, problem = 400, f"no such fault: {error}"
        elif exchange.method == "DELETE":
            self.faults.clear()
        view = {
            "faults": [msgspec.to_builtins(fault) for fault in self.faults.faults],
            "max_concurrent_seen": self.max_concurrent_seen,
            "deferred_max": self.deferred_max,
            "open_requests": self.open_requests,
            "connections_accepted": self.connections_accepted,
            **({"error": problem} if problem else {}),
        }
        exchange.whole(status, [("Content-Type", "application/json")], orjson.dumps(view))


def _models(given: Sequence[str | EmulatedModel]) -> tuple[EmulatedModel, ...]:
    return tuple(EmulatedModel(model) if isinstance(model, str) else model for model in given)
