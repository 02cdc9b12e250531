"""All backends together: real engines under real keepers, external ones, and what survives whose death."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.backends import orphans
from proxy.backends.fleet import Fleet
from proxy.backends.launch import LaunchError
from proxy.backends.member import MemberStatus
from proxy.backends.statedir import StateDirError, free_port
from proxy.backends.supervisor import Timing
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig, RestartConfig
from proxy.endpoint import identity
from scheduler.domain import Operation
from scheduler.events import BackendChanged, BackendLeft, BackendReported, BackendSignalled, Event, GpuReported
from scheduler.health import Signal
from tests.proxy.backends.answers import Answers
from tests.proxy.backends.fake_nvml import FakeNvml
from tests.proxy.backends.fake_ollama import write_fake_ollama
from tests.real_engine import embedded_config
from tests.wait import until, until_sync

CADENCE = Cadence(busy_s=0.05, idle_s=0.05, spacing_s=0.05, describe_s=0.2)
TIMING = Timing(grace_s=5, ask_every_s=0.02)
QUICK = RestartConfig(backoff_s=0.01, backoff_max_s=0.05, budget=5)


class Scene:
    """Fleets of one test, stopped at its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.flushed: list[str] = []
        self.fleets: list[Fleet] = []

    async def start(
        self, *configs: BackendConfig, cadence: Cadence = CADENCE, timing: Timing = TIMING, **extra: Any
    ) -> Fleet:
        fleet = Fleet(
            configs,
            state_dir=self.directory / "state",
            emit=self.events.append,
            cadence=cadence,
            timing=timing,
            **extra,
        )
        fleet.on_endpoint_changed = self.flushed.append
        await fleet.start()
        self.fleets.append(fleet)
        return fleet

    def ollama(self, **fields: object) -> BackendConfig:
        base = {
            "engine": "ollama",
            "binary": write_fake_ollama(self.directory),
            "first_port": 23000 + os.getpid() % 10000,
            "gpus": "none",
            "env": {"CHILD_FILE": str(self.directory / "child")},
            "restart": QUICK,
        }
        return BackendConfig.model_validate(base | fields)

    def llama_server(self, **fields: object) -> BackendConfig:
        """One that never comes to run: its program is none."""
        base = {"binary": "/bin/false", "gpus": "none", "model": "/models/none.gguf", "restart": QUICK}
        return BackendConfig.model_validate(base | fields)

    def memory(self, name: str) -> list[GpuReported]:
        return [event for event in self.events if isinstance(event, GpuReported) and event.backend_id == name]

    def signals(self, name: str) -> list[Signal]:
        return [e.signal for e in self.events if isinstance(e, BackendSignalled) and e.backend_id == name]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for fleet in made.fleets:
        await fleet.stop(2)


def status(fleet: Fleet, name: str) -> MemberStatus:
    return next(one for one in fleet.status() if one.name == name)


def ready(fleet: Fleet) -> Callable[[], bool]:
    return lambda: all(one.state == "ready" for one in fleet.status())


async def test_nothing_configured(scene: Scene) -> None:
    fleet = await scene.start()
    assert fleet.status() == []
    assert fleet.facts("none") is None
    fleet.look("none", 0.0)
    with pytest.raises(LookupError):
        fleet.endpoint("none")


async def test_external_backends_beside_each_other(scene: Scene) -> None:
    async with Answers.llama_server() as llama, Answers.ollama() as ollama:
        fleet = await scene.start(BackendConfig(url=llama.url), BackendConfig(url=ollama.url, name="box"))
        await until(ready(fleet), "both answer")
        assert [(one.name, one.engine) for one in fleet.status()] == [
            (llama.url.removeprefix("http://"), "llama-server"),
            ("box", "ollama"),
        ]
        assert str(fleet.endpoint("box")) == ollama.url
        facts = fleet.facts("box")
        assert facts is not None
        assert facts.version == "0.33.0"
        looks = ollama.count("/api/ps")
        fleet.look("box", 0.0)
        await until(lambda: ollama.count("/api/ps") > looks, "the asked look")
        assert not (scene.directory / "state").exists()  # nothing managed needs it


@pytest.mark.real
async def test_a_real_engine_from_start_to_stop(scene: Scene) -> None:
    fleet = await scene.start(embedded_config(name="real", slots=2, restart=QUICK))
    await until(ready(fleet), "it is ready", timeout_s=60)
    first = status(fleet, "real")
    assert (first.slots, first.running_limit, first.slot_context_tokens) == (2, 2, 2048)
    assert (first.models, first.warnings, first.slot_source) == (("smollm2",), (), "slots")
    assert first.endpoint.startswith("unix:")
    assert "--no-kv-unified" in first.wanted
    assert first.log_path is not None
    assert "model loaded" in Path(first.log_path).read_text()
    kinds = [type(event) for event in scene.events[:5]]
    assert kinds == [BackendChanged, BackendSignalled] * 2 + [BackendChanged]
    changes = [event.backend for event in scene.events if isinstance(event, BackendChanged)]
    assert [change.models for change in changes] == [{"smollm2:latest"}] * 3
    # before it runs, while it loads, once it told what it can do
    assert [Operation.EMBED in change.capabilities for change in changes] == [True, True, False]
    await until(lambda: any(isinstance(event, BackendReported) for event in scene.events), "a report")

    assert first.pid is not None
    flushed = len(scene.flushed)
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: status(fleet, "real").epoch > first.epoch, "it is started again")
    await until(ready(fleet), "it is ready again", timeout_s=60)
    second = status(fleet, "real")
    assert second.restarts == 1
    assert second.last_error == "killed by SIGKILL"
    assert scene.flushed[flushed:].count("real") >= 2  # when it died, and when it was started anew
    signals = [one for one in scene.signals("real") if one not in {Signal.ANSWERED, Signal.MISSED}]
    assert signals == [Signal.STARTED, Signal.STARTED, Signal.EXITED, Signal.STARTED]
    again = [e.backend for e in scene.events if isinstance(e, BackendChanged) and e.backend.epoch == second.epoch]
    assert Operation.EMBED not in again[0].capabilities  # what it can do did not go with its process

    await fleet.restart("real", 5)
    await until(lambda: status(fleet, "real").epoch > second.epoch, "the operator restarted it")
    await until(ready(fleet), "it is ready again", timeout_s=60)
    assert status(fleet, "real").restarts == 1
    pid = status(fleet, "real").pid
    await fleet.stop(5)
    assert pid is not None
    assert orphans.start_ticks(pid) is None
    assert scene.events[-1] == BackendLeft("real")


@pytest.mark.real
async def test_a_model_that_is_missing_is_in_the_status(scene: Scene, tmp_path: Path) -> None:
    config = embedded_config(name="real", model=tmp_path / "none.gguf", restart=RestartConfig(backoff_s=100, budget=1))
    fleet = await scene.start(config)
    await until(lambda: status(fleet, "real").state == "backoff", "it waits")
    error = status(fleet, "real").last_error
    assert error == f"exited with status 1: cannot read the model {tmp_path / 'none.gguf'}: No such file or directory"


async def test_one_ollama_per_gpu(scene: Scene) -> None:
    fleet = await scene.start(scene.ollama(gpus="auto", slots=3, keep_alive="1h30m"), nvml=FakeNvml())
    await until(ready(fleet), "both are ready")
    one, two = fleet.status()
    assert (one.name, one.gpu, two.name, two.gpu) == ("ollama-0", "GPU-aaaa", "ollama-1", "GPU-bbbb")
    assert one.endpoint != two.endpoint
    assert one.slots == 3
    assert [fleet.keep_alive_s(name) for name in ("ollama-0", "ollama-1", "of-another-box")] == [5400, 5400, 300]
    environment = Path(f"/proc/{two.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=GPU-bbbb" in environment
    assert f"OLLAMA_HOST={two.endpoint.removeprefix('http://')}".encode() in environment
    assert "OLLAMA_NUM_PARALLEL=3" in two.wanted
    changed = next(event.backend for event in scene.events if isinstance(event, BackendChanged))
    assert changed.gpu is not None
    assert changed.gpu.memory_bytes > 0


async def test_the_memory_of_its_card_is_told_with_each_backend(scene: Scene) -> None:
    nvml = FakeNvml()
    fleet = await scene.start(scene.ollama(gpus="auto"), scene.ollama(gpus="none", name="cpu"), nvml=nvml)
    await until(ready(fleet), "all are ready")
    nvml.processes["GPU-bbbb"] = [(status(fleet, "ollama-1").pid or 0, 2**30)]
    await until(
        lambda: any(event.memory and event.memory.used_by_engine_bytes == 2**30 for event in scene.memory("ollama-1")),
        "its process is known by its environment",
    )
    assert {event.memory.used_by_engine_bytes for event in scene.memory("ollama-0") if event.memory} == {None}
    assert scene.memory("cpu") == []
    await fleet.stop(5)
    assert nvml.open_sessions == 0
    assert isinstance(scene.events[-1], BackendLeft)


async def test_kill_9_of_ollama_ends_its_child_and_starts_it_again(scene: Scene) -> None:
    fleet = await scene.start(scene.ollama())
    await until(ready(fleet), "it is ready")
    first, child = status(fleet, "ollama"), int((scene.directory / "child").read_text())
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: status(fleet, "ollama").epoch > first.epoch, "it is started again")
    assert orphans.start_ticks(child) is None
    again = [e.backend for e in scene.events if isinstance(e, BackendChanged) and e.backend.epoch > first.epoch]
    assert again[0].models == {"smol:latest"}  # its models did not go with its process
    await until(ready(fleet), "it is ready again")


async def test_an_engine_that_hangs_is_started_again(scene: Scene) -> None:
    """A stopped process neither answers nor ends, and takes no notice of SIGTERM."""
    quick = Cadence(busy_s=0.05, idle_s=0.05, spacing_s=0.05, slow_timeout_s=0.1, hung_after_s=0.3)
    fleet = await scene.start(scene.ollama(), cadence=quick, timing=Timing(grace_s=0.1, ask_every_s=0.02))
    await until(ready(fleet), "it is ready")
    first, child = status(fleet, "ollama"), int((scene.directory / "child").read_text())
    assert first.pid is not None
    with capture_logs() as lines:
        os.kill(first.pid, signal.SIGSTOP)
        await until(lambda: status(fleet, "ollama").epoch > first.epoch, "it is started again")
    assert orphans.start_ticks(first.pid) is None
    assert orphans.start_ticks(child) is None
    await until(ready(fleet), "it is ready again")
    again = status(fleet, "ollama")
    assert (again.restarts, again.last_error[:14]) == (1, "no answer for ")
    [line] = [line for line in lines if line["event"] == "engine hangs"]
    assert (line["backend"], line["reason"], line["pid"]) == ("ollama", again.last_error, first.pid)


@pytest.mark.real
async def test_directories_that_were_removed_are_back_with_the_next_start(scene: Scene) -> None:
    fleet = await scene.start(embedded_config(name="real", slots=2, restart=QUICK))
    await until(ready(fleet), "it is ready", timeout_s=60)
    first = status(fleet, "real")
    for name in ("run", "keys", "logs", "slots"):
        shutil.rmtree(scene.directory / "state" / name)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: status(fleet, "real").epoch > first.epoch, "it is started again")
    await until(ready(fleet), "it is ready again", timeout_s=60)
    assert status(fleet, "real").restarts == 1


@pytest.mark.parametrize("kind", ["llama-server", "ollama"])
async def test_a_managed_engine_has_its_address_before_it_runs(scene: Scene, kind: str) -> None:
    """The store knows a backend by its address: a drain must not be lost when the engine comes up."""
    config = scene.ollama() if kind == "ollama" else scene.llama_server()
    fleet = await scene.start(config)
    early, signals = fleet.endpoint(kind), len(scene.events)
    assert scene.signals(kind) == [Signal.STARTED]
    await until(lambda: len(scene.events) > signals, "it was started")
    assert identity(fleet.endpoint(kind), "box") == identity(early, "box")


async def test_an_address_that_cannot_be_foreseen_keeps_nothing_from_starting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise StateDirError("no free port on 127.0.0.1")

    with monkeypatch.context() as patch:
        patch.setattr("proxy.backends.statedir.free_port", none)
        fleet = await scene.start(scene.ollama())
        with pytest.raises(LookupError, match="ollama has no address yet"):
            fleet.endpoint("ollama")
        await until(lambda: "no free port" in status(fleet, "ollama").last_error, "it says why")
    await until(ready(fleet), "it is ready")


async def test_a_gpu_that_is_not_there(scene: Scene) -> None:
    with pytest.raises(LaunchError, match="there is no GPU '9'"):
        await scene.start(scene.ollama(gpus=["9"]), nvml=FakeNvml())
    fleet = await scene.start(scene.ollama(gpus=["1"]), nvml=FakeNvml())  # the state directory is free again
    assert [one.gpu for one in fleet.status()] == ["GPU-bbbb"]


@pytest.mark.real
async def test_an_embedded_engine_for_the_cpu_leaves_gpus_alone(scene: Scene) -> None:
    fleet = await scene.start(embedded_config(gpus="auto"), nvml=FakeNvml())
    assert [(one.name, one.gpu) for one in fleet.status()] == [("llama-server", None)]
    assert "built for the CPU" in fleet.discovery.problem


async def test_two_slotgates_on_one_state_directory(scene: Scene) -> None:
    await scene.start(scene.ollama())
    with pytest.raises(StateDirError, match="another slotgate uses the state directory"):
        await scene.start(scene.ollama())


SLOTGATE = """
import asyncio, sys
from pathlib import Path
import structlog
from proxy.backends.fleet import Fleet
from proxy.config import BackendConfig

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    config = BackendConfig.model_validate_json(sys.argv[1])
    fleet = Fleet([config], state_dir=Path(sys.argv[2]), emit=lambda _: None)
    await fleet.start()
    while fleet.status()[0].state != "ready":
        await asyncio.sleep(0.02)
    status = fleet.status()[0]
    print(status.pid, status.keeper_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start_slotgate(config: BackendConfig, directory: Path) -> tuple[subprocess.Popen[str], int, int]:
    """A slotgate of its own with one backend: the process, and the pids of the engine and of its keeper."""
    command = [sys.executable, "-c", SLOTGATE, config.model_dump_json(), str(directory / "state")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        engine, keeper = (int(word) for word in process.stdout.readline().split())
    except ValueError:
        process.kill()
        raise
    return process, engine, keeper


def test_kill_9_of_slotgate_leaves_no_engine(tmp_path: Path) -> None:
    slotgate, engine, keeper = start_slotgate(Scene(tmp_path).ollama(), tmp_path)
    child = int((tmp_path / "child").read_text())
    slotgate.kill()
    slotgate.wait()
    until_sync(
        lambda: not any(orphans.start_ticks(pid) for pid in (engine, keeper, child)), "engine, child, keeper are gone"
    )
    assert slotgate.stdout is not None
    slotgate.stdout.close()


async def test_what_outlives_slotgate_and_keeper_is_ended_by_the_next_run(scene: Scene) -> None:
    """The worst case: slotgate, the keeper and `ollama serve` are all killed hard; the child lives on with the VRAM."""
    slotgate, engine, keeper = await asyncio.to_thread(start_slotgate, scene.ollama(), scene.directory)
    child = int((scene.directory / "child").read_text())
    os.kill(keeper, signal.SIGSTOP)  # it must not see what follows
    os.kill(engine, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    slotgate.kill()
    slotgate.wait()
    assert slotgate.stdout is not None
    slotgate.stdout.close()
    await until(lambda: orphans.start_ticks(engine) is None, "the engine is dead")
    assert orphans.start_ticks(child) is not None
    fleet = await scene.start(scene.ollama())
    assert orphans.start_ticks(child) is None
    await until(ready(fleet), "the next run serves")


async def test_a_port_that_is_taken_is_skipped(scene: Scene) -> None:
    async with Answers.ollama() as stranger:
        fleet = await scene.start(scene.ollama(first_port=stranger.port))
        await until(ready(fleet), "it is ready")
        port = fleet.endpoint("ollama").port
        assert port > stranger.port
        assert free_port(port) > port
