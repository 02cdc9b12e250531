"""The emulated engine in real time does what its model does in virtual time: slots, cached tokens, order, times."""

import asyncio
from collections.abc import Callable

import httpx
import msgspec
import pytest

from proxy.emulated import EmulatedEngine
from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Job, Silent
from proxy.emulated.options import Options
from proxy.emulated.replies import Wish, plan_reply
from scheduler.simulation.contents import Tokens
from scheduler.simulation.engine import EngineModel
from scheduler.simulation.jobs import Happened, Kind
from scheduler.simulation.jobs import Job as Work

OPTIONS = Options(slots=3, context=8192, host_cache_tokens=12_000, copy_idle_slots=True, speed=2.0, batch=256)
LATE = 1e12
WISH = Wish(endless=True)


class Asked(msgspec.Struct):
    """One request: when it comes, its prompt, how many tokens it wants, and the slot that it names."""

    at_ms: float
    prompt: list[int]
    tokens: int
    named_slot: int = -1


class Ran(msgspec.Struct):
    """How it went; times in milliseconds of the model."""

    slot: int
    cached: int
    prompt_ms: float
    output_ms: float
    ended_ms: float


def ids(number: int, count: int) -> list[int]:
    return [number * 100_000 + place for place in range(count)]


def workload() -> list[Asked]:
    """Three chats of two turns on three slots, two strangers that displace them, a fast follower, a named slot."""
    firsts = [Asked(number * 400.0, ids(number + 1, 900 + 150 * number), 50 + 25 * number) for number in range(3)]
    turns = [
        Asked(2600.0 + 350 * number, [*first.prompt, *answer(first), *ids(number + 11, 120)], 175 - 75 * number)
        for number, first in enumerate(firsts)
    ]
    strangers = [Asked(4800.0 + 300 * number, ids(number + 21, 1500), 20 + 30 * number) for number in range(2)]
    follower = Asked(5300.0, [*strangers[0].prompt, *ids(31, 60)], 90)  # its prefix is on a busy slot, or just free
    back = [
        Asked(7600.0 + 400 * number, [*turn.prompt, *ids(number + 41, 80)], 15 + 20 * number)
        for number, turn in enumerate(turns)
    ]
    named = Asked(9400.0, [*firsts[0].prompt, *ids(51, 50)], 20, named_slot=0)
    return [*firsts, *turns, *strangers, follower, *back, named]


def answer(asked: Asked) -> list[int]:
    return plan_reply(asked.prompt, WISH, OPTIONS.context).tokens[: asked.tokens]


def virtual(asked: list[Asked]) -> tuple[list[Ran], list[int]]:
    """The model alone: how each went, and the order in which they ended."""
    model = EngineModel[Tokens](msgspec.structs.replace(OPTIONS.settings(), single_steps=False, tells_steps=False))
    works: list[Work[Tokens]] = []
    happened: list[Happened[Tokens]] = []
    for number, each in enumerate(asked):
        happened += model.advance(each.at_ms)
        named = each.named_slot if each.named_slot >= 0 else None
        works.append(Work(str(number), Tokens([*each.prompt, *answer(each)]), len(each.prompt), named))
        model.submit(works[-1], each.at_ms)
    happened += model.advance(LATE)
    ran = [
        Ran(
            work.slot if work.slot is not None else -1,
            work.cached_tokens,
            work.prompt_ms,
            work.output_ms,
            work.ended_ms,
        )
        for work in works
    ]
    assert model.copied_ms > 100, "the workload uses the host cache"
    return ran, [int(each.job.id) for each in happened if each.kind is Kind.FINISHED]


async def arrivals(asked: list[Asked], begin: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    for number, each in enumerate(asked):
        loop.call_later(each.at_ms / OPTIONS.speed / 1000, begin, number)


@pytest.mark.looptime
async def test_the_driver_keeps_the_time_of_the_model() -> None:
    asked = workload()
    expected, order = virtual(asked)
    loop = asyncio.get_running_loop()
    engine = SlotEngine(OPTIONS.settings(), speed=OPTIONS.speed)
    over: list[int] = []
    done = asyncio.Event()
    jobs: dict[int, Job] = {}
    began = loop.time()

    class Notes(Silent):
        def __init__(self, number: int) -> None:
            self.number = number

        def finished(self, job: Job) -> None:
            over.append(self.number)
            if len(over) == len(asked):
                done.set()

    def begin(number: int) -> None:
        each = asked[number]
        reply = plan_reply(each.prompt, WISH, OPTIONS.context)
        named = each.named_slot if each.named_slot >= 0 else None
        jobs[number] = Job(each.prompt, reply, Notes(number), most=each.tokens, named_slot=named)
        engine.submit(jobs[number])

    await arrivals(asked, begin)
    await done.wait()
    await engine.close()
    found = [
        Ran(
            job.slot.id if job.slot is not None else -1,
            job.cached,
            job.prompt_ms * OPTIONS.speed,
            job.output_ms * OPTIONS.speed,
            (job.now_s - began) * 1000 * OPTIONS.speed,
        )
        for _, job in sorted(jobs.items())
    ]
    assert over == order
    assert [(ran.slot, ran.cached) for ran in found] == [(ran.slot, ran.cached) for ran in expected]
    for ran, wanted in zip(found, expected, strict=True):
        # Timers of half a millisecond and less are not waited for: some of a step's length, once.
        assert ran.ended_ms == pytest.approx(wanted.ended_ms, abs=2 * OPTIONS.speed)
        assert ran.prompt_ms == pytest.approx(wanted.prompt_ms, abs=2 * OPTIONS.speed)
        assert ran.output_ms == pytest.approx(wanted.output_ms, abs=2 * OPTIONS.speed)


async def test_over_http_it_does_what_the_simulation_says() -> None:
    """Tolerance: 60 ms early (what a late loop makes up), 300 ms and a fifth late (a busy machine), times the speed."""
    asked = workload()
    expected, order = virtual(asked)
    loop = asyncio.get_running_loop()
    over: list[int] = []
    found: dict[int, Ran] = {}

    async with (
        EmulatedEngine(**{name: getattr(OPTIONS, name) for name in OPTIONS.__struct_fields__}) as engine,
        httpx.AsyncClient(base_url=engine.url, timeout=60) as client,
    ):
        began = loop.time()

        async def ask(number: int) -> None:
            each = asked[number]
            await asyncio.sleep(began + each.at_ms / OPTIONS.speed / 1000 - loop.time())
            body = {"prompt": each.prompt, "n_predict": each.tokens, "ignore_eos": True, "id_slot": each.named_slot}
            shown = (await client.post("/completion", json=body)).json()
            times = shown["timings"]
            prompt_ms, output_ms = times["prompt_ms"] * OPTIONS.speed, times["predicted_ms"] * OPTIONS.speed
            ended_ms = (loop.time() - began) * 1000 * OPTIONS.speed
            found[number] = Ran(shown["id_slot"], times["cache_n"], prompt_ms, output_ms, ended_ms)
            over.append(number)

        await asyncio.gather(*map(ask, range(len(asked))))
    assert [(found[number].slot, found[number].cached) for number in range(len(asked))] == [
        (ran.slot, ran.cached) for ran in expected
    ]
    assert over == order
    for number, wanted in enumerate(expected):
        assert_near(found[number].ended_ms - asked[number].at_ms, wanted.ended_ms - asked[number].at_ms)
        assert_near(found[number].prompt_ms, wanted.prompt_ms)
        assert_near(found[number].output_ms, wanted.output_ms)


def assert_near(found_ms: float, wanted_ms: float) -> None:
    assert wanted_ms - 60 * OPTIONS.speed <= found_ms <= 1.2 * wanted_ms + 300 * OPTIONS.speed
