"""One backend of the fleet: what it says of itself."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from proxy.backends.launch import Program
from proxy.backends.member import Member, Surroundings
from proxy.backends.placement import Placement
from proxy.backends.statedir import StateDir
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig, RestartConfig
from scheduler.core import Scheduler
from scheduler.domain import Dialect, Engine, Gpu, Operation, Request
from scheduler.effects import Reject
from scheduler.events import BackendChanged, BackendLeft, BackendReported, BackendSignalled, Event, RequestArrived
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.proxy.backends.answers import LOADING, PROPS, TAG, UNAUTHORIZED, Answers
from tests.proxy.backends.played_ollama import SMOL, PlayedOllama
from tests.wait import until

GPU = Gpu("GPU-aaaa", 0, "NVIDIA GeForce RTX 4090", 24 * 2**30)
CADENCE = Cadence(busy_s=0.02, idle_s=0.02, spacing_s=0.02, describe_s=0.02, child_spacing_s=0.02)


class Scene:
    """External members and what they tell."""

    def __init__(self, directory: Path) -> None:
        self.events: list[Event] = []
        self.flushed: list[str] = []
        self.state_dir = StateDir(directory / "state")
        self.state_dir.open()
        self.around = Surroundings(self.state_dir, self.events.append, self.flushed.append, CADENCE)
        self.members: list[Member] = []

    def external(self, url: str, **fields: object) -> Member:
        config = BackendConfig.model_validate({"url": url} | fields)
        self.members.append(Member(Placement("one", config), self.around))
        self.members[-1].start()
        return self.members[-1]

    def managed(self, **fields: object) -> Member:
        """A llama-server that never comes to run: its program is none."""
        base = {"model": "/models/smol-q4.gguf", "restart": RestartConfig(backoff_s=1000, backoff_max_s=1000)}
        config = BackendConfig.model_validate(base | fields)
        program = Program(Engine.OLLAMA if config.engine == "ollama" else Engine.LLAMA_SERVER, ("/no/such/engine",))
        self.members.append(Member(Placement("one", config, program, GPU), self.around))
        self.members[-1].start()
        return self.members[-1]

    def signals(self) -> list[Signal]:
        return [event.signal for event in self.events if isinstance(event, BackendSignalled)]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for member in made.members:
        await member.stop(0)
    made.state_dir.close()


def asked(operation: Operation, model: str = "smol-q4:latest") -> Request:
    return Request("r", operation, Dialect.OPENAI, model, arrived_s=1.0, wait_until_s=1000.0)


@pytest.mark.parametrize("engine", ["llama-server", "ollama"])
async def test_requests_wait_for_a_managed_engine_from_the_first_moment(scene: Scene, engine: str) -> None:
    """Whatever they ask for: what it can do is known only once it runs."""
    member = scene.managed(engine=engine)
    assert scene.signals() == [Signal.STARTED]
    [known] = [event.backend for event in scene.events if isinstance(event, BackendChanged)]
    assert known.models == ({"smol-q4:latest"} if engine == "llama-server" else frozenset())
    assert (known.managed, known.gpu) == (True, GPU)
    await until(lambda: member.status().state == "backoff", "it was started and ended")
    assert scene.signals() == [Signal.STARTED, Signal.STARTED, Signal.EXITED]

    scheduler = Scheduler(Policy())
    for number, event in enumerate(scene.events):
        scheduler.handle(event, 0.0)
        for operation in Operation:
            request = msgspec.structs.replace(asked(operation), id=f"{number} {operation}")
            effects = scheduler.handle(RequestArrived(request), 1.0)
            assert [effect for effect in effects if isinstance(effect, Reject)] == []
    assert len(scheduler.waiting()) == len(scene.events) * len(Operation)


async def test_what_cannot_even_be_prepared_is_shown_and_comes_back(scene: Scene) -> None:
    (scene.state_dir.path / "keys").rmdir()
    (scene.state_dir.path / "keys").write_text("in the way")
    member = scene.managed()
    await until(lambda: member.status().state == "backoff", "it waits")
    assert scene.signals() == [Signal.STARTED, Signal.EXITED]
    assert f"cannot use the state directory {scene.state_dir.path}: File exists" in member.status().last_error
    (scene.state_dir.path / "keys").unlink()
    await member.restart(0)
    await until(lambda: "exited with status 127" in member.status().last_error, "it was started")
    assert scene.signals() == [Signal.STARTED, Signal.EXITED, Signal.STARTED, Signal.EXITED]


async def test_no_secret_is_in_the_status(scene: Scene) -> None:
    member = scene.managed(flags=["--api-key", "sekrit", "--hf-token=sekrit"], env={"LLAMA_ARG_TOKEN": "sekrit"})
    await until(lambda: member.status().wanted, "it was started")
    wanted = " ".join(member.status().wanted)
    assert "sekrit" not in wanted
    assert "CUDA_VISIBLE_DEVICES=GPU-aaaa" in wanted
    assert f"--api-key-file {scene.state_dir.path}/keys/one.key" in wanted
    assert "LLAMA_ARG_TOKEN=********" in wanted


async def test_an_external_llama_server_is_detected(scene: Scene) -> None:
    async with Answers.llama_server() as engine:
        member = scene.external(engine.url, running_limit=1)
        assert member.status().engine == "unknown"
        await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
        status = member.status()
        assert (status.engine, status.state, status.managed) == ("llama-server", "ready", False)
        assert (status.slots, status.running_limit, status.slot_context_tokens) == (2, 1, 4096)
        assert (status.slot_source, status.busy_slots, status.deferred) == ("slots", 0, 0)
        assert (status.models, status.version, status.endpoint) == (("smol", "tiny"), "b11434-abc", engine.url)
        assert status.taken["slots"] == 2
        assert status.looked_s_ago is not None
        assert member.facts is not None
        assert member.facts.engine is Engine.LLAMA_SERVER
        engine.set_metrics(deferred=2)
        await until(lambda: member.status().deferred == 2, "requests wait inside the engine")
        assert member.status().warnings == ("2 requests wait inside the engine: somebody goes around slotgate",)


async def test_an_external_ollama_is_detected_and_its_pulls_are_seen(scene: Scene) -> None:
    async with Answers.ollama() as engine:
        member = scene.external(engine.url, slots=3)
        await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
        status = member.status()
        assert (status.engine, status.slots, status.slot_source) == ("ollama", 3, "leases")
        assert status.slot_context_tokens is None
        assert status.models == ("smol:latest",)
        report = next(event.report for event in scene.events if isinstance(event, BackendReported))
        assert [residency.model for residency in report.residencies] == ["smol:latest"]
        engine.set("/api/tags", 200, {"models": [TAG, TAG | {"name": "other:latest"}]})
        await until(lambda: member.status().models == ("smol:latest", "other:latest"), "the new model is seen")


async def test_where_the_occupancy_of_an_ollama_comes_from_and_why(scene: Scene, tmp_path: Path) -> None:
    async with Answers.ollama() as hidden, PlayedOllama(tmp_path, OLLAMA_NUM_PARALLEL="2") as seen:
        member = scene.external(hidden.url)
        await until(lambda: member.status().state == "ready", "it answered")
        status = member.status()
        assert (status.slot_source, status.busy_slots, status.slots) == ("leases", None, 1)
        assert "is no Ollama" in status.slot_source_why
        assert [warning[:8] for warning in status.warnings] == ["what it ", "slots = "]

        member = scene.external(seen.url)
        await until(lambda: member.status().slot_source == "children", "its process is found")
        await until(lambda: member.status().busy_slots == 0, "it is looked at")
        status = member.status()
        assert (status.slots, status.slot_source_why) == (2, "no model is loaded")
        assert not any("assumed" in warning for warning in status.warnings)
        child = await seen.load("smol:latest", SMOL)
        await child.be(busy=[0])
        await until(lambda: member.status().busy_slots == 1, "its llama-server is asked")
        assert (
            member.status().slot_source_why
            == f"the llama-server of each loaded model is asked, as PID {seen.pid} runs it"
        )
        member.loaded_by_default("smol")
        await until(lambda: member.facts and member.facts.models[0].default_context == 4096, "its default is learned")


async def test_a_key_that_is_missing_is_told(scene: Scene) -> None:
    engine = Answers.llama_server()
    engine.set_all(401, UNAUTHORIZED)
    async with engine:
        member = scene.external(engine.url)
        await until(lambda: member.status().last_error, "a look was missed")
        assert "set api_key of this backend" in member.status().last_error
        assert member.status().state == "not-answering"


async def test_the_configured_key_is_sent(scene: Scene) -> None:
    async with Answers.llama_server() as engine:
        scene.external(engine.url, api_key="sekrit")
        await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
        assert set(engine.authorizations) == {"Bearer sekrit"}


async def test_a_named_engine_is_known_before_it_answers(scene: Scene) -> None:
    engine = Answers.llama_server()
    engine.set_all(503, LOADING)
    async with engine:
        member = scene.external(engine.url, engine="llama-server")
        assert [type(event) for event in scene.events] == [BackendChanged, BackendSignalled]
        await until(lambda: "loads its model" in member.status().last_error, "it is asked while it loads")
        assert Signal.ANSWERED not in scene.signals()


async def test_another_process_at_the_same_address_flushes_the_pool(scene: Scene) -> None:
    async with Answers.llama_server() as engine:
        member = scene.external(engine.url)
        await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
        before = member.status().epoch
        flushed = len(scene.flushed)
        engine.set("/props", 200, PROPS | {"media_marker": "<__media_other__>"})
        await until(lambda: member.status().epoch > before, "the restart is seen")
        assert scene.flushed[flushed:] == ["one"]


async def test_gone_and_back_as_another_engine(scene: Scene) -> None:
    engine = Answers.llama_server()
    await engine.start()
    member = scene.external(engine.url)
    await until(lambda: member.status().state == "ready", "it answered")
    await engine.stop()
    await until(lambda: member.status().state == "not-answering", "it is gone")
    assert "cannot connect" in member.status().last_error
    other = Answers.ollama()
    other.port = engine.port
    await other.start()
    await until(lambda: member.status().engine == "ollama" and member.status().state == "ready", "it is an Ollama now")
    await other.stop()


async def test_leaving_is_told_and_an_external_engine_cannot_be_restarted(scene: Scene) -> None:
    async with Answers.ollama() as engine:
        member = scene.external(engine.url)
        await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
        with pytest.raises(ValueError, match="one is external: slotgate cannot restart it"):
            await member.restart(1)
        await member.stop(0)
        assert scene.events[-1] == BackendLeft("one")
        assert member.status().state == "stopped"
        assert member.facts is not None
