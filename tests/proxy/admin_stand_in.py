"""A stand-in for the running proxy: the admin API on a real unix socket, answering what a test puts there."""

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from proxy import admin_api, residency_api
from proxy.admin_api import (
    BackendStatus,
    DrainAnswer,
    ErrorAnswer,
    GpuStatus,
    KnownModel,
    LiveRequest,
    LoadedModel,
    ModelsAnswer,
    PolicyAnswer,
    PolicyChange,
    PolicyChangedAnswer,
    PolicyPreset,
    PolicySetting,
    PsAnswer,
    RecentAnswer,
    RecentRequest,
    RestartAnswer,
    StatusAnswer,
    StoreStatus,
)
from proxy.explained import ExplainAnswer, ExplainedAnswer, ExplainedCandidate, ExplainedDecision, ExplainedWait
from proxy.residency_api import LoadAnswer, PinAnswer, PinnedPlace, ResidentModel, UnloadAnswer

NOW = 1_700_000_000.0
GPU = GpuStatus(index=0, name="NVIDIA GeForce RTX 4090", uuid="GPU-0a", memory_bytes=25_757_220_864)


def status_answer() -> StatusAnswer:
    """A fleet in which something of everything happens."""
    return StatusAnswer(
        version="1.2.3",
        listen="127.0.0.1:11434",
        uptime_s=11_520.0,
        pid=4242,
        policy_version=3,
        waiting=2,
        running=5,
        store=StoreStatus(url_shown="unix:///var/lib/slotgate/valkey.sock", up=True, embedded=True, fleet="default"),
        backends=[
            BackendStatus(
                name="gpu-0",
                engine="llama-server",
                managed=True,
                endpoint="unix:/run/a",
                health="ready",
                gpu=GPU,
                slots=16,
                running_limit=8,
                running=5,
                slot_source="slots",
                epoch=1,
                pid=4243,
                models=["llama3:latest", "qwen:7b"],
                state="ready",
                version="b11434-abc",
                slot_context_tokens=8192,
                wanted=["CUDA_VISIBLE_DEVICES=GPU-0a", "llama-server", "-m", "/models/llama 3.gguf", "-np", "16"],
                taken={"slots": 16, "slot_context_tokens": 8192, "models": ["llama3", "qwen:7b"]},
                log_path="/var/lib/slotgate/logs/gpu-0.log",
                looked_s_ago=1.25,
            ),
            BackendStatus(
                name="other-box",
                engine="ollama",
                managed=False,
                endpoint="http://10.0.0.2:11434",
                health="suspect",
                slots=4,
                running_limit=4,
                elsewhere=2,
                foreign_busy=1,
                deferred=1,
                epoch=2,
                restarts=1,
                last_error="connection\nreset",
                warnings=["the host prompt cache is on"],
                state="not-answering",
                taken={"version": "0.33.0\x1b[31m"},
                resident=[
                    ResidentModel("qwen:7b", context_tokens=4096, pinned=True),
                    ResidentModel("old\x1b", "leaving", 8192),
                    ResidentModel("phi", "loading"),
                ],
                context_exceeded=3,
            ),
        ],
    )


def ps_answer() -> PsAnswer:
    """Models of every kind of expiry and place."""
    return PsAnswer(
        models=[
            LoadedModel(
                name="llama3:latest",
                backend="gpu-0",
                digest=f"sha256:365c0bd3c000{'a' * 52}",
                size_bytes=6_700_000_000,
                gpu_bytes=6_700_000_000,
                context_tokens=8192,
                expires_at_unix_s=NOW + 290,
                gpu=GPU,
                slots_busy=5,
                slots=16,
            ),
            LoadedModel(
                name="qwen:7b",
                backend="other-box",
                size_bytes=40_000_000_000,
                gpu_bytes=30_000_000_000,
                context_tokens=4096,
                slots_busy=0,
                slots=4,
                pinned=True,
            ),
            LoadedModel(
                name="old", backend="other-box", expires_at_unix_s=NOW + 290, slots_busy=1, slots=4, state="leaving"
            ),
            LoadedModel(name="phi", backend="other-box", context_tokens=16384, state="loading"),
        ],
        pins=[PinnedPlace("qwen:7b", "other-box", 4096)],
        requests=[
            LiveRequest(
                id="r-2",
                state="waiting",
                dialect="openai",
                operation="chat",
                model="llama3:latest",
                age_s=75.0,
                priority="high",
                position=1,
                expected_wait_s=12.5,
            ),
            LiveRequest(
                id="r-1",
                state="running",
                dialect="ollama",
                operation="generate",
                model="llama3:latest",
                age_s=3.25,
                backend="gpu-0",
                tenant="alice",
            ),
        ],
    )


def models_answer() -> ModelsAnswer:
    """Two models, one of them loaded."""
    return ModelsAnswer(
        models=[
            KnownModel(
                name="llama3:latest",
                backends=["gpu-0", "gpu-1"],
                loaded_on=["gpu-0"],
                digest="sha256:365c0bd3c000a25d28dd",
                size_bytes=4_661_224_676,
                modified_at_unix_s=NOW - 3 * 86400,
                digests={"gpu-0": "sha256:365c0bd3c000a25d28dd", "gpu-1": "sha256:00aa11bb22cc33dd44ee"},
            ),
            KnownModel(name="qwen:7b", backends=["other-box"], pinned=True),
        ]
    )


def policy_answer() -> PolicyAnswer:
    """A few keys, one of each origin and type."""
    return PolicyAnswer(
        version=4,
        preset="lmetric",
        preset_origin="config",
        settings=[
            PolicySetting("active_ms", 0.001, 20.0, "preset", "a number from 0 to 1000000000", "Cost of a seat. More."),
            PolicySetting("window", 64, 64, "default", "a whole number from 0 to 1000000", "Requests compared."),
            PolicySetting("hold_s", 0.5, 1.0, "set", "a number from 0 to 1000000000", "Longest wait; 0: never."),
            PolicySetting("choose_slot", False, True, "preset", "true or false", "Name the slot."),
            PolicySetting("order", "fcfs", "cost", "config", "cost or fcfs", "Which goes next."),
        ],
        presets=[
            PolicyPreset("balanced", "the defaults", {}),
            PolicyPreset("lmetric", "the product", {"active_ms": 0.001, "choose_slot": False}),
        ],
        file="/var/lib/slotgate/policy.toml",
    )


def explain_answer() -> ExplainAnswer:
    """Two attempts: the first backend failed, the second answered."""
    first = ExplainedDecision(
        at_unix_s=NOW - 75,
        policy_version=3,
        ranking=[
            ExplainedCandidate("gpu-0", 61.5, {"prefill": 21.5, "active": 40.0, "load": 0.0}, 3, 600, 76),
            ExplainedCandidate("gpu-1", 184.25, {"prefill": 164.25, "active": 20.0, "load": 0.0}, 0, 0, 676),
        ],
        rejections={"gpu-2": "no-memory", "other-box": "unknown-model"},
        slot=3,
        predicted_cached_tokens=600,
        details={"gpu-2": "needs 5.1 GB, 3.0 GB are free"},
    )
    second = ExplainedDecision(
        at_unix_s=NOW - 74,
        policy_version=4,
        ranking=[ExplainedCandidate("gpu-1", 184.25, {"prefill": 164.25, "active": 20.0, "load": 0.0}, 0, 12, 664)],
        rejections={"gpu-0": "already-tried", "gpu-2": "no-room", "other-box": "unknown-model"},
        slot=0,
        predicted_cached_tokens=12,
    )
    return ExplainAnswer(
        id="r-0",
        decisions=[first, second],
        outcome="done",
        ended_at_unix_s=NOW - 70,
        answer=ExplainedAnswer(676, 10, 220, 62.25, 1810.0, 71.5, 0),
        request=RecentRequest(
            id="r-0",
            ended_at_unix_s=NOW - 70,
            status=200,
            outcome="done",
            termination="--",
            total_ms=1903.5,
            dialect="ollama",
            operation="chat",
            model="llama3:latest",
            backend="gpu-1",
            queue_ms=412.0,
            tenant="alice",
            priority="high",
            position=2,
            expected_wait_s=0.5,
            context="prompt about 676 tokens, answer up to 512, context 1024",
        ),
        wait=ExplainedWait(waits=False, waited_s=0.412, position=2, expected_wait_s=0.5),
    )


def waiting_answer() -> ExplainAnswer:
    """A request that waits for a better backend, after one that failed it; its first decision let it wait too."""
    ranking = [ExplainedCandidate("gpu-0", 61.5, {"prefill": 41.5, "active": 20.0}, 3, 0, 676)]
    full = {"gpu-1": "8 of 8 seats taken, 2 by other proxies"}
    return ExplainAnswer(
        id="r-2",
        decisions=[
            ExplainedDecision(
                NOW - 9, 3, [], {"gpu-0": "no-room", "gpu-1": "no-room"}, details={"gpu-0": "kept for r-1"}, waits=True
            ),
            ExplainedDecision(
                NOW, 3, ranking, {"gpu-1": "no-room", "gpu-2": "cooling"}, details=full, waits=True, holds_s=0.7
            ),
        ],
        live=LiveRequest(
            "r-2", "waiting", "openai", "chat", "llama3", 9.0, tenant="bob", position=1, expected_wait_s=2.5
        ),
        wait=ExplainedWait(
            waits=True,
            waited_s=8.75,
            since_unix_s=NOW - 8.75,
            until_unix_s=NOW + 591,
            position=1,
            expected_wait_s=2.5,
            held_until_unix_s=NOW + 0.7,
            held_for="gpu-1",
            held_for_tokens=983,
        ),
    )


class AdminStandIn:
    """Serves the admin API from a thread of its own. Every drain lets one request of that backend finish."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = status_answer()
        self.policy = policy_answer()
        self.explained: ExplainAnswer = explain_answer()
        self.policy_after: PolicyAnswer | None = None
        """If set, the policy after the next change."""
        self.changed = PolicyChangedAnswer(5, "lmetric", [PolicyChange("hold_s", 0.5, 0.25, "set")])
        """The answer to every change of the policy."""
        self.refusal = ""
        """If set, why changes are refused."""
        self.residency: dict[str, msgspec.Struct] = {
            residency_api.LOAD: LoadAnswer("1", "qwen:7b", "loading", "other-box"),
            residency_api.UNLOAD: UnloadAnswer("qwen:7b", ["other-box"]),
            residency_api.PIN: PinAnswer("qwen:7b", [PinnedPlace("qwen:7b", "other-box", 4096)]),
            residency_api.UNPIN: PinAnswer("qwen:7b", [], [PinnedPlace("qwen:7b")]),
        }
        """What is answered to the commands about loaded models, by path."""
        self.loading: list[LoadAnswer] = []
        """What is answered one after the other to who asks how far a load is."""
        self.bodies: list[object] = []
        """Of the POSTs that had one."""
        self.asked: list[str] = []
        self.progress: list[dict[str, object]] = []
        """What is told of a change of models."""
        self.raw: bytes | None = None
        """If set, the answer to everything."""
        self.hang = False
        self._released = asyncio.Event()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._released.set)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.UnixSite(runner, str(self.path)).start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if body := await request.read():
            self.bodies.append(msgspec.json.decode(body))
        if self.hang:
            await self._released.wait()
        if self.raw is not None:
            return web.Response(body=self.raw, content_type="application/json")
        if request.method == "POST" and request.path.startswith("/models/") and not self.refusal:
            body = b"".join(msgspec.json.encode(told) + b"\n" for told in self.progress)
            return web.Response(body=body, content_type="application/x-ndjson")
        status, answer = self._reply(request)
        return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")

    def _reply(self, request: web.Request) -> tuple[int, msgspec.Struct]:
        recent = RecentRequest(
            id="r-0", ended_at_unix_s=NOW, status=200, outcome="done", termination="--", total_ms=12.5, cached_tokens=80
        )
        fixed: dict[str, msgspec.Struct] = {
            admin_api.STATUS: self.status,
            admin_api.PS: ps_answer(),
            admin_api.MODELS: models_answer(),
            admin_api.RECENT: RecentAnswer(requests=[recent]),
            admin_api.POLICY: self.policy,
            admin_api.explain_path(self.explained.id): self.explained,
        }
        if request.method == "POST" and request.path in self.residency:
            if self.refusal:
                return 404, ErrorAnswer(self.refusal, ["qwen:7b"], "qwem:7b")
            return 200, self.residency[request.path]
        if request.method == "GET" and self.loading and request.path.startswith("/load/"):
            return 200, self.loading.pop(0)
        if request.path.startswith("/models/"):
            return 400, ErrorAnswer(error=self.refusal)
        if request.path in {admin_api.POLICY_SET, admin_api.POLICY_PRESET, admin_api.POLICY_RESET}:
            self.policy = self.policy_after or self.policy
            return (400, ErrorAnswer(error=self.refusal)) if self.refusal else (200, self.changed)
        if request.method == "GET" and request.path in fixed:
            return 200, fixed[request.path]
        for backend in self.status.backends:
            for path, draining in ((admin_api.drain_path, True), (admin_api.undrain_path, False)):
                if request.method == "POST" and request.path == path(backend.name):
                    backend.draining = draining
                    answer = DrainAnswer(name=backend.name, draining=draining, running=backend.running)
                    backend.running = max(0, backend.running - 1)
                    return 200, answer
            if request.method == "POST" and request.path == admin_api.restart_path(backend.name):
                if not backend.managed:
                    return 409, ErrorAnswer(error=f"{backend.name} is external")
                return 200, RestartAnswer(name=backend.name, was=backend.state, running=backend.running)
        known = [backend.name for backend in self.status.backends]
        return 404, ErrorAnswer(error="no such backend", known=known if request.method == "POST" else [])
