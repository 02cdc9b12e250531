"""Proxies on one real store: one looks after an engine, the others learn of it and of all that happens to it."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from proxy.backends.boxes import Box
from proxy.backends.control import Control
from proxy.backends.fleet import Fleet
from proxy.backends.member import MemberStatus
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig
from proxy.emulated import EmulatedEngine
from proxy.endpoint import Gate
from proxy.store import Store
from proxy.tasks import Tasks
from scheduler.domain import Report
from scheduler.events import BackendLeft, BackendReported, BackendSignalled, Event
from scheduler.news import BackendGone, BackendMoved, BackendSeen, BackendTold, Hello, LookWanted, MemorySeen, News
from tests.proxy.store.store_process import StoreProcess
from tests.real_engine import embedded_config
from tests.wait import until

CADENCE = Cadence(busy_s=0.05, idle_s=0.05, spacing_s=0.05, describe_s=0.2)
HERE, THERE = Box("here", "here-1"), Box("there", "there-1")
GATE = Gate("127.0.0.1", 7000, "")


class Proxy:
    """A fleet and a store, wired as in a proxy."""

    def __init__(self, url: str, fleet: str, name: str, state_dir: Path, box: Box) -> None:
        self.events: list[Event] = []
        self.flushed: list[str] = []
        self.store = Store(url, fleet=fleet, proxy_id=name, call_timeout_s=5.0)
        self.box = box
        self._state_dir = state_dir
        self._tasks = Tasks()

    async def start(
        self, *configs: BackendConfig, gate: Gate | None = None, known: list[BackendConfig] | None = None
    ) -> None:
        self.fleet = fleet = Fleet(
            configs,
            state_dir=self._state_dir,
            emit=self.events.append,
            cadence=CADENCE,
            box=self.box,
            gate=gate,
            known=known or [],
        )
        fleet.on_endpoint_changed = self.flushed.append
        fleet.announce = lambda records: void(self._tasks.start(self.store.heartbeat(records), "announce"))
        fleet.outside.tell = lambda news: self.store.tell(msgspec.msgpack.encode([news]))
        fleet.outside.want_refresh = lambda: void(self._tasks.start(self.refresh(), "refresh"))
        self.store.on_news = self._heard
        self.store.on_gap = lambda: fleet.outside.tell(Hello())
        await self.store.start()
        await self.store.follow(None)
        await fleet.start()
        fleet.outside.tell(Hello())

    async def refresh(self) -> None:
        self.fleet.refresh(await self.store.backends(), self.store.proxies, up=self.store.up)

    async def close(self) -> None:
        await self.fleet.stop(2)
        await self._tasks.close()
        await self.store.close()

    def _heard(self, owner: str, payload: bytes) -> None:
        for news in msgspec.msgpack.decode(payload, type=list[News]):
            if isinstance(
                news, BackendTold | BackendMoved | BackendSeen | BackendGone | MemorySeen | LookWanted | Hello
            ):
                self.fleet.hear(owner, news)

    def status(self, name: str) -> MemberStatus | None:
        return next((each for each in self.fleet.status() if each.name == name), None)

    async def sees(self, name: str, state: str) -> MemberStatus:
        """Wait until a backend is in a state."""

        async def is_so() -> bool:
            await self.refresh()
            found = self.status(name)
            return found is not None and found.state == state

        await until(is_so, f"{name} is {state}")
        found = self.status(name)
        assert found is not None
        return found

    def reports(self, name: str) -> list[Report]:
        return [
            each.report for each in self.events if isinstance(each, BackendReported) if each.report.backend_id == name
        ]


def void(_task: "asyncio.Task[object]") -> None:
    """It runs beside."""


Make = Callable[..., Proxy]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Proxy] = []
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess("valkey", Path(name))
        process.start()
        fleet = f"test-{uuid.uuid4().hex[:8]}"

        def proxy(name: str, box: Box = HERE) -> Proxy:
            made.append(Proxy(process.url, fleet, name, tmp_path / name, box))
            return made[-1]

        yield proxy
        for each in made:
            await each.close()
        process.stop()


async def test_a_proxy_without_backends_sees_what_the_other_one_sees(make: Make) -> None:
    async with EmulatedEngine(slots=2, models=["smol"]) as engine:
        owner, worker = make("owner"), make("worker")
        await worker.start()
        await owner.start(BackendConfig(url=engine.url, name="gpu"))
        status = await worker.sees("gpu", "ready")
        own = await owner.sees("gpu", "ready")
        assert (status.slots, status.models, status.engine) == (2, own.models, "llama-server")
        assert (status.owner, status.box, own.owner) == (owner.store.owner, "here", "")
        assert worker.fleet.endpoint("gpu") == owner.fleet.endpoint("gpu")
        assert worker.fleet.store_id("gpu") == owner.fleet.store_id("gpu")
        theirs, ours = worker.fleet.facts("gpu"), owner.fleet.facts("gpu")
        assert theirs is not None
        assert ours is not None
        assert (theirs.models, theirs.chat_template, theirs.slots) == (ours.models, ours.chat_template, ours.slots)
        reports = len(worker.reports("gpu"))
        await until(lambda: len(worker.reports("gpu")) > reports, "a look of the owner is told")
        assert [each.busy_slots for each in worker.reports("gpu")][-1] == 0

        # It asks the engine nothing, yet may wish for a look.
        told = len(owner.reports("gpu"))
        worker.fleet.look("gpu", 0.0)
        await until(lambda: len(owner.reports("gpu")) > told, "the owner looks")

        # A proxy that comes later is told at once.
        late = make("late")
        await late.start()
        await late.sees("gpu", "ready")
        with pytest.raises(ValueError, match="restart it there"):
            await late.fleet.restart("gpu")

    await worker.sees("gpu", "not-answering")
    await owner.fleet.stop(2)
    await until(lambda: BackendLeft("gpu") in worker.events, "the owner took its leave")
    await worker.refresh()
    assert worker.fleet.status() == []


async def test_an_engine_that_is_started_again_is_another_one_everywhere(make: Make) -> None:
    async with EmulatedEngine(slots=2, models=["smol"]) as engine:
        owner, worker = make("owner"), make("worker")
        await worker.start()
        config = BackendConfig(url=engine.url, name="gpu")
        await owner.start(config)
        before = await worker.sees("gpu", "ready")
        address = engine.url.removeprefix("http://")
        worker.flushed.clear()
    await owner.sees("gpu", "not-answering")
    async with EmulatedEngine(slots=4, models=["other"], listen=address):
        await until(
            lambda: (found := owner.status("gpu")) is not None and found.slots == 4, "the owner sees the new one"
        )

        async def is_heard() -> bool:
            await worker.refresh()
            found = worker.status("gpu")
            return found is not None and (found.slots, found.models, found.state) == (4, ("other",), "ready")

        await until(is_heard, "the other proxy hears of it")
        after = worker.status("gpu")
        assert after is not None
        if after.epoch != before.epoch:
            assert worker.flushed == ["gpu"]


async def test_a_box_is_reached_through_its_gate_and_its_keys_stay_there(make: Make) -> None:
    async with EmulatedEngine(slots=2, models=["smol"]) as engine:
        config = BackendConfig(url=engine.url, name="gpu", api_key="very-secret")
        owner, beside, elsewhere = make("owner"), make("beside"), make("elsewhere", THERE)
        await owner.start(config, gate=GATE)
        await beside.start(known=[config])
        await elsewhere.start()
        for proxy in (owner, beside, elsewhere):
            await proxy.sees("gpu", "ready")
        assert beside.fleet.endpoint("gpu") == owner.fleet.endpoint("gpu") == owner.fleet.own.endpoint("gpu")
        endpoint = elsewhere.fleet.endpoint("gpu")
        assert (endpoint.gate, endpoint.headers) == (Gate("127.0.0.1", 7000, "gpu"), ())
        listing = await owner.store.backends()
        assert "very-secret" not in str(listing)
        with pytest.raises(LookupError):
            elsewhere.fleet.own.endpoint("gpu")


async def test_who_has_the_engine_configured_looks_for_itself(make: Make) -> None:
    async with EmulatedEngine(slots=2, models=["smol"]) as engine:
        owner, other = make("owner"), make("other")
        await owner.start(BackendConfig(url=engine.url, name="gpu"))
        await other.start(BackendConfig(url=engine.url, name="mine"))
        await other.sees("mine", "ready")
        await owner.sees("gpu", "ready")
        await other.refresh()
        assert [each.name for each in other.fleet.status()] == ["mine"]
        assert other.fleet.local_id(owner.fleet.store_id("gpu")) == "mine"
        assert {each.backend_id for each in other.events if isinstance(each, BackendSignalled)} == {"mine"}


@pytest.mark.real
async def test_a_managed_engine_is_reached_by_other_processes_of_its_box_also_after_a_restart(make: Make) -> None:
    owner, worker, elsewhere = make("owner"), make("worker"), make("elsewhere", THERE)
    await worker.start()
    await elsewhere.start()
    await owner.start(embedded_config(name="real", slots=2), gate=GATE)
    keys = []
    for _ in range(2):
        await until(ready(owner, "real"), "it is ready", 60)
        epoch = status_of(owner, "real").epoch

        async def is_same(epoch: int = epoch) -> bool:
            return (await worker.sees("real", "ready")).epoch == epoch

        await until(is_same, "the worker sees this process")
        endpoint = worker.fleet.endpoint("real")
        assert endpoint == owner.fleet.endpoint("real")
        keys.append(endpoint.headers)
        control = Control(endpoint, 5)
        answer = await control.get("/props")
        await control.close()
        assert answer.status == 200
        worker.flushed.clear()
        await owner.fleet.restart("real", 5)
        await until(partial(is_after, owner, epoch), "another process", 60)
        await until(lambda: "real" in worker.flushed, "connections to the process before are closed")
    assert keys[0] != keys[1]
    assert elsewhere.fleet.endpoint("real").gate == Gate("127.0.0.1", 7000, "real")
    assert keys[0][0][1].removeprefix("Bearer ") not in str(await owner.store.backends())


def status_of(proxy: Proxy, name: str) -> MemberStatus:
    found = proxy.status(name)
    assert found is not None
    return found


def is_after(proxy: Proxy, epoch: int) -> bool:
    return status_of(proxy, "real").epoch > epoch


def ready(proxy: Proxy, name: str) -> Callable[[], bool]:
    return lambda: status_of(proxy, name).state == "ready"
