"""Loading, unloading and pinning by the admin API, at emulated Ollamas behind a whole proxy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from proxy.admin_api import ModelsAnswer, PsAnswer
from proxy.admin_client import AdminClient, AdminError
from proxy.emulated.faults import Kind
from proxy.residency_api import LoadAnswer, ModelWish, PinnedPlace
from tests.proxy.box import Box, box, emulated
from tests.wait import until

Answer = TypeVar("Answer")
MODELS = ["a", "b"]


class Operator:
    """Somebody at the admin socket."""

    def __init__(self, running: Box, socket: Path) -> None:
        self.running = running
        self._socket = socket

    async def ask(self, question: Callable[[AdminClient], Answer]) -> Answer:
        def asked() -> Answer:
            with AdminClient(self._socket) as client:
                return question(client)

        return await asyncio.to_thread(asked)

    async def load(self, *wish: Any) -> LoadAnswer:
        """Load, and wait until that is over."""
        answer = await self.ask(lambda client: client.load(ModelWish(*wish)))
        load_id = answer.id
        async with asyncio.timeout(20):
            while answer.state in ("loading", "waiting"):
                answer = await self.ask(lambda client: client.load_state(load_id))
        return answer

    async def refusal(self, question: Callable[[AdminClient], object]) -> str:
        with pytest.raises(AdminError) as caught:
            await self.ask(question)
        return str(caught.value)


@contextlib.asynccontextmanager
async def operated(tmp_path: Path, engines: list[Any], **config: Any) -> AsyncIterator[Operator]:
    socket = tmp_path / "admin.sock"
    async with box(tmp_path, engines, admin_socket=socket, **config) as running:
        yield Operator(running, socket)


def ollama(**values: Any) -> Any:
    return emulated("ollama", **({"models": MODELS, "context": 2048, "max_loaded": 2} | values))


async def test_a_model_is_loaded_where_it_shall_be(tmp_path: Path) -> None:
    engines = [ollama(), ollama(load_s=0.3, speed=1.0)]
    async with operated(tmp_path, engines) as operator:
        answer = await operator.load("A", "gpu1", 8192)

        assert (answer.model, answer.state, answer.backend, answer.detail) == ("a", "loaded", "gpu1", "")
        assert answer.took_ms is not None
        assert answer.took_ms >= 300
        assert [each.context for each in engines[1].residents] == [8192]
        assert engines[0].residents == []
        again = await operator.load("a", "gpu1", 8192)
        assert (again.state, again.took_ms, engines[1].loads.loads) == ("loaded", None, 1)


async def test_a_load_that_fails_is_told_in_the_engines_words(tmp_path: Path) -> None:
    engine = ollama()
    async with operated(tmp_path, [engine]) as operator:
        engine.faults.add(Kind.LOAD_FAILS, message="CUDA error: out of memory")
        answer = await operator.load("a")

    assert (answer.state, answer.backend, answer.detail) == ("failed", "gpu0", "CUDA error: out of memory")


async def test_what_cannot_be_is_told_with_what_is_there(tmp_path: Path) -> None:
    engines = [ollama(models=["llama3:8b"]), emulated()]
    async with operated(tmp_path, engines) as operator:
        told = await operator.refusal(lambda client: client.load(ModelWish("llama3:9b")))
        assert told == "no Ollama has a model 'llama3:9b'\ndid you mean llama3:8b?"
        told = await operator.refusal(lambda client: client.load(ModelWish("x", "gpu7")))
        assert told == "no backend 'gpu7'\nknown: gpu0"
        told = await operator.refusal(lambda client: client.unload(ModelWish("llama3:8b", "gpu1")))
        assert told == "gpu1 is a llama-server: its one model is always loaded"
        told = await operator.refusal(lambda client: client.pin(ModelWish("y", "gpu0")))
        assert told == "gpu0 has no model 'y'\nknown: llama3:8b"
        told = await operator.refusal(lambda client: client.load(ModelWish("llama3:8b", num_ctx=0)))
        assert "1 or more" in told
        assert "no such load" in await operator.refusal(lambda client: client.load_state("x"))
        await engines[0].stop()
        await until(lambda: operator.running.health(0) == "down", "it is down")
        told = await operator.refusal(lambda client: client.load(ModelWish("llama3:8b", "gpu0")))
        assert told == "gpu0 is down: `slotgate status` says why"


async def test_unloading_tells_from_where(tmp_path: Path) -> None:
    engines = [ollama(), ollama()]
    async with operated(tmp_path, engines) as operator:
        for name in ("gpu0", "gpu1"):
            await operator.load("a", name)
        one = await operator.ask(lambda client: client.unload(ModelWish("a", "gpu1")))
        await until(lambda: not engines[1].residents, "one is unloaded")
        rest = await operator.ask(lambda client: client.unload(ModelWish("a")))
        await until(lambda: not engines[0].residents, "the other too")

        async def nowhere() -> bool:
            return (await operator.ask(lambda client: client.unload(ModelWish("a")))).backends == []

        assert one.backends == ["gpu1"]
        assert "gpu0" in rest.backends
        await until(nowhere, "it is known to be gone")


async def test_a_pinned_model_is_loaded_stays_and_is_shown(tmp_path: Path) -> None:
    engine = ollama(keep_alive_s=300)
    async with operated(tmp_path, [engine]) as operator:
        answer = await operator.ask(lambda client: client.pin(ModelWish("a", num_ctx=4096)))
        assert answer.pins == [PinnedPlace("a", None, 4096)]
        await until(lambda: engine.residents and engine.residents[0].keep_alive_s < 0, "it is loaded for ever")
        assert engine.residents[0].context == 4096
        body = {"model": "a", "prompt": "x", "stream": False, "keep_alive": 0}
        assert (await operator.running.client.post("/api/generate", json=body)).status_code == 200
        assert engine.residents[0].keep_alive_s < 0

        async def shown() -> bool:
            ps: PsAnswer = await operator.ask(lambda client: client.ps())
            return [(each.name, each.context_tokens, each.pinned) for each in ps.models] == [("a", 4096, True)]

        await until(shown, "it is shown")
        ps = await operator.ask(lambda client: client.ps())
        assert ps.pins == answer.pins
        models: ModelsAnswer = await operator.ask(lambda client: client.models())
        assert {each.name: each.pinned for each in models.models} == {"a": True, "b": False}
        [backend] = (await operator.running.status()).backends
        assert [(each.name, each.state, each.pinned) for each in backend.resident] == [("a", "loaded", True)]

        told = await operator.refusal(lambda client: client.unload(ModelWish("a")))
        assert told == "a is pinned on gpu0: `slotgate unpin a` on the box lets it be unloaded"
        told = await operator.refusal(lambda client: client.unpin(ModelWish("b")))
        assert told == "b is not pinned; what is pinned: a"
        removed = await operator.ask(lambda client: client.unpin(ModelWish("a")))
        assert (removed.removed, removed.pins, removed.loaded_on) == ([PinnedPlace("a")], [], ["gpu0"])
        told = await operator.refusal(lambda client: client.unpin(ModelWish("a")))
        assert told == "a is not pinned"
        await until(lambda: engine.residents[0].keep_alive_s == 300, "it stays no longer than others")
        assert (engine.loads.loads, engine.residents[0].context) == (1, 4096)

        async def is_told() -> bool:
            return all(each.expires_at_unix_s for each in (await operator.ask(lambda client: client.ps())).models)

        await until(is_told, "it is seen")
        await operator.ask(lambda client: client.pin(ModelWish("a", num_ctx=4096)))
        await until(lambda: engine.residents[0].keep_alive_s < 0, "it is loaded for ever again")


async def test_only_what_the_pin_wants_is_shown_as_pinned_and_kept(tmp_path: Path) -> None:
    engines = [ollama(), ollama()]
    async with operated(tmp_path, engines) as operator:
        await operator.load("a", "gpu1", 4096)
        pinned = await operator.ask(lambda client: client.pin(ModelWish("a", num_ctx=8192)))
        assert pinned.loaded_on == []
        await until(lambda: [each.context for each in engines[0].residents] == [8192], "it is loaded elsewhere")

        async def shown() -> bool:
            ps: PsAnswer = await operator.ask(lambda client: client.ps())
            found = {(each.backend, each.context_tokens, each.state, each.pinned) for each in ps.models}
            return found == {("gpu0", 8192, "loaded", True), ("gpu1", 4096, "loaded", False)}

        await until(shown, "one of them is shown as pinned")
        again = await operator.ask(lambda client: client.pin(ModelWish("a", num_ctx=8192)))
        assert again.loaded_on == ["gpu0"]
        body = {"model": "a", "prompt": "x", "stream": False, "options": {"num_ctx": 2048}, "keep_alive": 600}
        for _ in range(4):
            assert (await operator.running.client.post("/api/generate", json=body)).status_code == 200
        assert [each.keep_alive_s for each in engines[0].residents] == [-1]
        assert engines[1].residents[0].keep_alive_s > 0
        told = await operator.refusal(lambda client: client.unload(ModelWish("a")))
        assert told == "a is pinned on gpu0: `slotgate unpin a` on the box lets it be unloaded"
        unloaded = await operator.ask(lambda client: client.unload(ModelWish("a", "gpu1")))
        assert unloaded.backends == ["gpu1"]
        await until(lambda: not engines[1].residents, "the other is unloaded")


async def test_a_pin_of_one_backend_is_kept_there_with_its_context(tmp_path: Path) -> None:
    engines = [ollama(), ollama()]
    async with operated(tmp_path, engines) as operator:
        await operator.load("a", "gpu0", 4096)
        await operator.load("a", "gpu1", 4096)
        answer = await operator.ask(lambda client: client.pin(ModelWish("a", "gpu1", 16384)))
        assert answer.loaded_on == []
        await until(lambda: [each.context for each in engines[1].residents] == [16384], "it is loaded so")


async def test_pins_of_the_configuration(tmp_path: Path) -> None:
    engine = ollama()
    residency = {"models": {"b": {"num_ctx": 4096, "pin": True}}}
    async with operated(tmp_path, [engine], residency=residency) as operator:
        await until(lambda: [each.context for each in engine.residents] == [4096], "it is loaded")
        told = await operator.refusal(lambda client: client.unpin(ModelWish("b")))
        assert told == 'b is pinned by the configuration: taking pin = true out of residency.models."b" ends that'

        async def shown() -> bool:
            [backend] = (await operator.running.status()).backends
            return [(each.name, each.state) for each in backend.resident] == [("b", "loaded")]

        await until(shown, "it is shown")
        told = await operator.refusal(lambda client: client.unload(ModelWish("b")))
        assert told == 'b is pinned on gpu0: taking pin = true out of residency.models."b" lets it be unloaded'
        await operator.ask(lambda client: client.pin(ModelWish("b", "gpu0")))
        told = await operator.refusal(lambda client: client.unpin(ModelWish("b", "gpu1")))
        assert told == "b is not pinned on gpu1, but on gpu0 and on one backend at least"


async def test_a_load_that_waits_says_why(tmp_path: Path) -> None:
    async with ollama(max_loaded=1) as engine, ollama() as drained:
        backends = [
            {"url": engine.url, "name": "gpu0", "engine": "ollama", "max_loaded_models": 1},
            {"url": drained.url, "name": "gpu1", "engine": "ollama"},
        ]
        async with operated(tmp_path, [], backends=backends) as operator:
            await operator.ask(lambda client: client.drain("gpu1"))
            await operator.ask(lambda client: client.pin(ModelWish("b")))
            await until(lambda: engine.residents, "it is loaded")
            asked = await operator.ask(lambda client: client.load(ModelWish("a")))

            async def is_told() -> bool:
                answer = await operator.ask(lambda client: client.load_state(asked.id))
                assert answer.waited_s == round(answer.waited_s, 3)
                return (answer.state, answer.detail) == ("waiting", "gpu0: b is pinned; gpu1: it is drained")

            await until(is_told, "it says why")


async def test_nothing_is_loaded_at_a_drained_backend(tmp_path: Path) -> None:
    async with operated(tmp_path, [ollama()]) as operator:
        await operator.ask(lambda client: client.drain("gpu0"))
        told = await operator.refusal(lambda client: client.load(ModelWish("a", "gpu0")))
        assert told == "gpu0 is drained and loads nothing: `slotgate undrain gpu0` first"


async def test_a_load_is_shown_while_it_goes_on(tmp_path: Path) -> None:
    engine = ollama(load_s=30.0, speed=1.0)
    async with operated(tmp_path, [engine]) as operator:
        begun = await operator.ask(lambda client: client.load(ModelWish("a", "gpu0", 4096)))
        assert (begun.state, begun.backend) == ("loading", "gpu0")
        [backend] = (await operator.running.status()).backends
        assert [(each.name, each.state, each.context_tokens) for each in backend.resident] == [("a", "loading", 4096)]
        ps = await operator.ask(lambda client: client.ps())
        assert [(each.name, each.state) for each in ps.models] == [("a", "loading")]
