"""Looking at an engine and telling what was seen."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from proxy.backends.control import ProbeError
from proxy.backends.probes import Description, Look, Probe
from proxy.backends.watcher import Cadence, Subject, Watcher
from proxy.config import BackendConfig
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.tasks import Tasks
from scheduler.domain import Engine, Operation
from scheduler.events import BackendChanged, BackendReported, BackendSignalled, Event
from scheduler.health import Signal
from tests.wait import until


class Scripted:
    """A probe that says what it is told to say."""

    engine = Engine.LLAMA_SERVER

    def __init__(self) -> None:
        self.describe_every_s = math.inf
        self.spacing_s = 0.0
        self.models = ["smol"]
        self.slots = 2
        self.epoch_hint = 0
        self.now = Look(started="a", identity="x", busy_slots=0, deferred=0)
        self.problem: str | None = None
        self.surprise: Exception | None = None
        """What describing it, and closing its connections, fails with."""
        self.looks = self.descriptions = self.closed = 0

        self.loading = False
        self.fail_once: str | None = None
        self.asked = 0

    def _check(self) -> None:
        self.asked += 1
        problem, self.fail_once = self.problem or self.fail_once, None
        if problem:
            raise ProbeError(problem, loading=self.loading)

    async def ready(self) -> bool:
        return True

    async def describe(self) -> Description:
        self._check()
        if self.surprise:
            raise self.surprise
        self.descriptions += 1
        models = tuple(ModelFacts(name) for name in self.models)
        facts = EngineFacts(self.engine, models=models, slots=self.slots, slot_context_tokens=4096)
        return Description(facts, frozenset({Operation.CHAT}), "slots", (), self.epoch_hint)

    async def look(self) -> Look:
        self._check()
        self.looks += 1
        return self.now

    async def close(self) -> None:
        self.closed += 1
        if self.surprise:
            raise self.surprise


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Scene:
    """A watcher on a scripted probe, looking as fast as it can."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.probe = Scripted()
        self.opened = 0
        self.open_problem: str | None = None
        self.tasks = Tasks()
        self.watcher: Watcher | None = None
        self.deaf_to: set[type[Event] | Signal] = set()
        """Events that whoever is told cannot take."""

    def told(self, event: Event) -> None:
        if isinstance(event, BackendSignalled):
            if event.signal in self.deaf_to:
                raise RuntimeError(event.signal)
        elif type(event) in self.deaf_to:
            raise RuntimeError(repr(event))
        self.events.append(event)

    async def open(self) -> Probe:
        self.opened += 1
        if self.open_problem:
            raise ProbeError(self.open_problem)
        return self.probe

    def start(
        self,
        *,
        url: str | None = "http://box:1",
        epoch: int = 0,
        cadence: Cadence | None = None,
        clock: Any = None,
        on_hung: Callable[[str], None] | None = None,
    ) -> Watcher:
        config = BackendConfig.model_validate({"url": url} if url else {"model": "/m/a.gguf"})
        quick = Cadence(busy_s=0.01, idle_s=0.01, spacing_s=0.01, describe_s=0.01)
        extra = {"clock": clock} if clock else {}
        extra["on_hung"] = on_hung
        self.watcher = Watcher(Subject("one", config, epoch), self.open, self.told, cadence=cadence or quick, **extra)
        self.tasks.start(self.watcher.run(), "watcher")
        return self.watcher

    def signals(self) -> list[Signal]:
        return [event.signal for event in self.events if isinstance(event, BackendSignalled)]

    def changes(self) -> list[BackendChanged]:
        return [event for event in self.events if isinstance(event, BackendChanged)]

    def reports(self) -> list[BackendReported]:
        return [event for event in self.events if isinstance(event, BackendReported)]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.tasks.close()
    assert made.probe.closed or not made.watcher or made.watcher.engine is None


async def test_facts_first_then_a_report_then_ready(scene: Scene) -> None:
    watcher = scene.start()
    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
    kinds = [type(event).__name__ for event in scene.events[:4]]
    assert kinds == ["BackendChanged", "BackendSignalled", "BackendReported", "BackendSignalled"]
    assert scene.signals()[:2] == [Signal.STARTED, Signal.ANSWERED]
    backend = scene.changes()[0].backend
    assert (backend.id, backend.slots, backend.slot_source) == ("one", 2, "slots")
    assert backend.models == {"smol:latest"}
    report = scene.reports()[0].report
    assert (report.epoch, report.busy_slots, report.deferred) == (0, 0, 0)
    assert watcher.answered


async def test_an_unchanged_engine_is_announced_once(scene: Scene) -> None:
    scene.probe.describe_every_s = 0
    scene.start()
    await until(lambda: scene.probe.descriptions >= 4, "it was described several times")
    assert len(scene.changes()) == 1


async def test_models_are_listed_at_once_where_somebody_knows_that_they_changed(scene: Scene) -> None:
    never = Cadence(busy_s=3600, idle_s=3600, spacing_s=3600, describe_s=3600)
    watcher = scene.start(cadence=never)
    await until(lambda: watcher.answered, "it answered")
    scene.probe.models = ["smol", "other"]
    await watcher.list_models()
    assert scene.changes()[-1].backend.models == {"smol:latest", "other:latest"}
    scene.probe.problem = "busy"
    await watcher.list_models()  # left alone
    assert watcher.answered


async def test_pulled_models_are_seen(scene: Scene) -> None:
    scene.probe.describe_every_s = 0
    scene.start()
    await until(scene.changes, "it is known")
    scene.probe.models = ["smol", "other"]
    await until(lambda: len(scene.changes()) == 2, "the new model is told")
    assert scene.changes()[1].backend.models == {"smol:latest", "other:latest"}
    assert scene.signals().count(Signal.STARTED) == 1


async def test_other_slots_are_seen(scene: Scene) -> None:
    scene.start()
    await until(scene.changes, "it is known")
    scene.probe.slots, scene.probe.now = 8, Look(started="a", identity="y", busy_slots=0)
    await until(lambda: len(scene.changes()) == 2, "the change is told")
    assert scene.changes()[1].backend.slots == 8
    assert scene.changes()[1].backend.epoch == 0


@pytest.mark.parametrize(("hint", "epoch"), [(0, 1), (7, 7)])
async def test_another_start_mark_is_a_new_epoch(scene: Scene, hint: int, epoch: int) -> None:
    scene.start()
    await until(scene.reports, "it is known")
    scene.probe.epoch_hint = hint
    scene.probe.now = Look(started="b", identity="x", busy_slots=0)
    await until(lambda: len(scene.changes()) == 2, "the restart is told")
    assert scene.changes()[1].backend.epoch == epoch
    assert scene.signals().count(Signal.STARTED) == 2
    await until(lambda: scene.reports()[-1].report.epoch == epoch, "reports are of the new epoch")


async def test_a_managed_engine_keeps_the_epoch_of_its_process(scene: Scene) -> None:
    scene.probe.epoch_hint = 99
    scene.start(url=None, epoch=5)
    await until(scene.changes, "it is known")
    assert scene.changes()[0].backend.epoch == 5


async def test_no_answer_is_told_with_its_reason_and_so_is_the_return(scene: Scene) -> None:
    watcher = scene.start()
    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
    scene.probe.problem = "no answer within 5 s"
    await until(lambda: Signal.MISSED in scene.signals(), "a look was missed")
    assert watcher.last_error == "no answer within 5 s"
    scene.probe.problem = None
    scene.events.clear()
    await until(lambda: Signal.ANSWERED in scene.signals(), "it is back")
    assert watcher.last_error == ""


async def test_an_answer_that_nobody_foresaw_does_not_end_the_watching(scene: Scene) -> None:
    watcher = scene.start()
    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
    good, scene.probe.now = scene.probe.now, None  # type: ignore[assignment]
    await until(lambda: Signal.MISSED in scene.signals(), "a look was missed")
    assert watcher.last_error.startswith("its answers make no sense: AttributeError")
    scene.probe.now = good
    await until(lambda: watcher.answered, "it is back")


async def test_a_description_that_nobody_foresaw_does_not_end_the_watching(scene: Scene) -> None:
    """It is read again beside a look that was answered."""
    watcher = scene.start()
    await until(lambda: watcher.answered, "it answered")
    scene.probe.describe_every_s = 0
    scene.probe.surprise = TypeError("'int' object is not iterable")
    looks = scene.probe.looks
    await until(lambda: scene.probe.looks > looks + 3, "it is looked at all the same")
    assert Signal.MISSED not in scene.signals()  # it just answered a look
    scene.probe.surprise, scene.probe.models = None, ["smol", "other"]
    await until(lambda: len(scene.changes()) == 2, "the new model is told")


@pytest.mark.parametrize("deaf_to", [BackendChanged, BackendReported, Signal.STARTED, Signal.ANSWERED])
async def test_a_listener_that_fails_does_not_end_the_watching(scene: Scene, deaf_to: type[Event] | Signal) -> None:
    scene.deaf_to.add(deaf_to)
    watcher = scene.start()
    await until(lambda: scene.probe.looks > 3 or scene.probe.descriptions > 3, "it is looked at all the same")
    scene.deaf_to.clear()
    await until(lambda: watcher.answered and Signal.ANSWERED in scene.signals(), "it is heard again")


async def test_a_listener_that_fails_on_bad_news_does_not_end_the_watching(scene: Scene) -> None:
    watcher = scene.start()
    await until(lambda: watcher.answered, "it answered")
    scene.deaf_to.add(Signal.MISSED)
    scene.probe.problem = "no answer within 5 s"
    await until(lambda: not watcher.answered, "a look was missed")
    scene.probe.problem = None
    await until(lambda: watcher.answered, "it is back")


async def test_a_probe_that_cannot_be_closed_does_not_end_the_watching(scene: Scene) -> None:
    watcher = scene.start()
    await until(lambda: watcher.answered, "it answered")
    scene.probe.problem, scene.probe.surprise = "no answer within 5 s", RuntimeError("the loop is gone")
    await until(lambda: scene.opened == 2, "it is detected again")
    scene.probe.problem = scene.probe.surprise = None
    await until(lambda: watcher.answered, "it is back")


async def test_an_engine_that_never_answered_is_unknown_to_the_scheduler(scene: Scene) -> None:
    scene.open_problem = "cannot connect to http://box:1"
    watcher = scene.start()
    await until(lambda: watcher.last_error, "a look was missed")
    assert scene.events == []
    scene.open_problem = None
    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")


async def test_after_some_missed_looks_it_may_be_another_engine(scene: Scene) -> None:
    scene.start()
    await until(scene.reports, "it is known")
    scene.probe.problem = "the answer is not what the engine should say"
    await until(lambda: scene.opened == 2, "it is detected again")
    assert scene.probe.closed >= 1


async def test_a_slow_engine_is_alive_but_reports_nothing(scene: Scene) -> None:
    scene.probe.now = Look(alive_only=True)
    scene.start()
    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
    assert scene.reports() == []


async def test_no_progress_while_working_counts_as_no_answer(scene: Scene) -> None:
    clock = Clock()
    working = Look(started="a", identity="x", busy_slots=1, working=True, progress="100")
    scene.probe.now = working
    cadence = Cadence(busy_s=0, idle_s=0, spacing_s=0, stall_s=60)
    watcher = scene.start(cadence=cadence, clock=clock)

    async def looked_again() -> None:
        seen = scene.probe.looks
        await until(lambda: scene.probe.looks > seen + 1, "it was looked at again")

    await until(lambda: Signal.ANSWERED in scene.signals(), "it answered")
    clock.now_s += 59
    await looked_again()
    assert Signal.MISSED not in scene.signals()
    clock.now_s += 1
    await until(lambda: Signal.MISSED in scene.signals(), "it stands still")
    assert watcher.last_error == "says that it works but made no progress for 60 s"
    scene.probe.now = Look(started="a", identity="x", busy_slots=1, working=True, progress="101")
    await until(lambda: watcher.answered, "it goes on")
    assert watcher.last_error == ""


async def test_looks_that_are_asked_for_are_merged_and_spaced(scene: Scene) -> None:
    cadence = Cadence(busy_s=1000, idle_s=1000, spacing_s=0.05)
    watcher = scene.start(cadence=cadence)
    await until(lambda: scene.probe.looks == 1, "the first look")
    first_s = watcher.looked_at_s
    for _ in range(10):
        watcher.look(first_s)
    await until(lambda: scene.probe.looks == 2, "the asked look")
    assert watcher.looked_at_s >= first_s + cadence.spacing_s
    watcher.look(watcher.looked_at_s + 3600)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3 * cadence.spacing_s):
            await asyncio.Event().wait()
    assert scene.probe.looks == 2  # ten wishes were one look, and the one in an hour is still to come


async def test_what_is_described_wrongly_is_described_again_after_the_look(scene: Scene) -> None:
    scene.start(cadence=Cadence(busy_s=0.01, idle_s=0.01, spacing_s=0.01, describe_s=1000))
    await until(lambda: scene.probe.looks == 1, "the first look")
    scene.probe.models, scene.probe.now = ["other"], msgspec.structs.replace(scene.probe.now, outdated=True)
    await until(lambda: scene.changes()[-1].backend.models == {"other:latest"}, "it is described again")
    assert scene.probe.descriptions <= scene.probe.looks  # no second look for that
    assert [change.backend.epoch for change in scene.changes()] == [0, 0]


async def test_an_engine_may_need_longer_pauses(scene: Scene) -> None:
    scene.probe.spacing_s = 0.05
    watcher = scene.start(cadence=Cadence(busy_s=0.0, idle_s=0.0, spacing_s=0.0))
    await until(lambda: scene.probe.looks == 1, "the first look")
    first_s = watcher.looked_at_s
    watcher.look(first_s)
    await until(lambda: scene.probe.looks == 2, "the next look")
    assert watcher.looked_at_s >= first_s + 0.05
