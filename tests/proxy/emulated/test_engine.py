"""The slot engine: places, the queue, steps and time, leaving clients. Paced tests run on the loop's virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from proxy.emulated.engine import Departure, SlotEngine
from proxy.emulated.jobs import Job, Problem
from proxy.emulated.replies import Stop
from scheduler.simulation.step_times import step_ms
from tests.proxy.emulated.support import Notes, make_engine, make_job, ran
from tests.wait import until

Make = Callable[..., SlotEngine]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes engines and ends them."""
    made: list[SlotEngine] = []

    def build(*args: object, **values: object) -> SlotEngine:
        made.append(make_engine(*args, **values))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for engine in made:
        await engine.close()


def submit(engine: SlotEngine, prompt: str, tokens: int = 5, **values: object) -> tuple[Job, Notes]:
    job, notes = make_job(prompt, tokens, **values)
    engine.submit(job)
    return job, notes


# -- one job


async def test_a_job_is_told_of_in_order(make: Make) -> None:
    engine = make()
    job, notes = submit(engine, "one two", 3)
    await notes.over.wait()
    assert notes.events == ["started", "progressed 2", "said", "said", "said", "finished"]
    assert (job.ended, job.decoded, job.cached) == (Stop.LIMIT, 3, 0)
    assert job.reply is not None
    assert notes.text == "".join(job.reply.pieces[:3])


async def test_zero_tokens_are_one(make: Make) -> None:
    job = await ran(make(), "one two", 0)
    assert (job.decoded, job.ended) == (1, Stop.LIMIT)


async def test_without_an_answer_only_the_prompt_is_computed(make: Make) -> None:
    engine = make()
    notes = Notes()
    engine.submit(Job([1, 2, 3], None, notes))
    await notes.over.wait()
    assert notes.events == ["started", "progressed 3", "finished"]


async def test_an_empty_prompt_is_answered_empty(make: Make) -> None:
    engine = make()
    notes = Notes()
    engine.submit(Job([], None, notes))
    await notes.over.wait()
    assert notes.events == ["finished"]


async def test_a_long_prompt_is_computed_in_batches(make: Make) -> None:
    _, notes = submit(make(settings={"batch": 100}), "word " * 245, 1)
    await notes.over.wait()
    assert notes.events[:4] == ["started", "progressed 100", "progressed 200", "progressed 246"]


async def test_a_slot_keeps_prompt_and_answer_but_the_last_token(make: Make) -> None:
    engine = make()
    job = await ran(engine, "one two three", 4)
    assert job.slot is not None
    assert job.reply is not None
    assert job.slot.tokens == [*job.prompt, *job.reply.tokens[:3]]
    assert (await ran(engine, "one two three", 4)).cached == len(job.prompt) - 1
    assert (await ran(engine, "one two three", 4, reuse=False)).cached == 0


async def test_a_prompt_as_long_as_the_context_fails_after_it_got_a_slot(make: Make) -> None:
    engine = make(context=64, speed=5)
    blocking, _ = submit(engine, "a", 50)
    other, _ = submit(engine, "b", 50)
    _, notes = submit(engine, "word " * 127)
    await until(lambda: engine.deferred, "it waits like any other")
    await notes.over.wait()
    assert blocking.over or other.over
    assert notes.problem is not None
    assert (notes.problem.status, notes.problem.extra) == (400, {"n_prompt_tokens": 128, "n_ctx": 64})
    await ran(engine, "c")


async def test_a_full_context_ends_the_answer_or_is_shifted(make: Make) -> None:
    job = await ran(make(context=64), "word " * 40, 100)
    assert (job.ended, job.truncated, len(job.prompt) + job.decoded) == (Stop.LIMIT, True, 64)
    job = await ran(make(context=64, shift=True), "word " * 40, 100)
    assert (job.ended, job.truncated, job.decoded) == (Stop.LIMIT, False, 100)
    assert job.slot is not None
    assert job.held == len(job.slot.tokens) < 64
    assert job.slot.tokens[:4] == job.prompt[:4]


# -- places


async def test_the_queue_is_first_come_first_served(make: Make) -> None:
    engine = make(slots=1)
    finished: list[str] = []
    jobs = [submit(engine, name, 3) for name in "abcde"]
    for name, (_, notes) in zip("abcde", jobs, strict=True):
        notes.finished = lambda job, name=name: finished.append(name)  # type: ignore[misc,method-assign]
    await until(lambda: len(finished) == 5, "all are done")
    assert finished == list("abcde")
    assert (engine.deferred_max, engine.open_max) == (4, 5)


async def test_a_waiting_job_that_names_the_freed_slot_goes_first(make: Make) -> None:
    engine = make(slots=2, speed=5)
    first, _ = submit(engine, "a", 3, named_slot=0)
    submit(engine, "b", 100, named_slot=1)
    submit(engine, "c", 3)
    named, _ = submit(engine, "d", 3, named_slot=0)
    await until(lambda: first.over and named.slot is not None, "a slot is freed")
    assert named.slot is not None
    assert named.slot.id == 0


async def test_a_named_busy_slot_blocks_the_queue_as_in_the_real_engine(make: Make) -> None:
    engine = make(slots=2, speed=1)
    submit(engine, "long", 400, named_slot=0)
    short, _ = submit(engine, "short", 2, named_slot=1)
    pinned, _ = submit(engine, "pinned", 2, named_slot=0)
    free, _ = submit(engine, "free", 2)
    await until(lambda: short.over, "slot 1 is free")
    assert list(engine.deferred) == [free, pinned]  # the pinned one went to the back, and nobody took slot 1
    assert not engine.slots[1].busy


async def test_a_prompt_that_does_not_fit_leaves_its_slot_to_the_next(make: Make) -> None:
    engine = make(slots=1, context=64, speed=5)
    submit(engine, "a", 5)
    _, long = submit(engine, "word " * 127)
    _, empty = submit(engine, "")
    last, notes = submit(engine, "b", 3)
    await notes.over.wait()
    assert (long.events, empty.events, last.decoded) == (["failed"], ["finished"], 3)
    assert engine.open_jobs == 0


async def test_what_a_slot_lost_comes_back_from_the_host_cache(make: Make) -> None:
    engine = make(slots=1, settings={"host_tokens": 4000})
    first = await ran(engine, "word " * 200)
    await ran(engine, "more " * 200)
    assert (await ran(engine, "word " * 200)).cached == len(first.prompt) - 1


async def test_counters(make: Make) -> None:
    engine = make()
    await ran(engine, "one two three", 4)
    await ran(engine, "one two three", 4)
    count = engine.counters
    assert (count.prompt_tokens, count.cached_tokens, count.output_tokens) == (5, 3, 8)
    assert (count.steps, count.busy_slot_steps, count.longest) == (8, 8, 7)


async def test_all_can_fail_at_once(make: Make) -> None:
    engine = make(slots=1, speed=1)
    told = [submit(engine, name, 400)[1] for name in "abc"]
    await until(lambda: engine.running, "one runs")
    engine.fail_all(Problem(500, "server_error", "gone"))
    assert [notes.events[-1] for notes in told] == ["failed"] * 3
    assert (engine.open_jobs, list(engine.slots[0].tokens), engine.slots[0].busy) == (0, [], False)
    await ran(engine, "again")


# -- time


@pytest.mark.looptime
async def test_steps_take_the_time_of_the_card(make: Make) -> None:
    engine = make(speed=1)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    job = await ran(engine, "word " * 50, 11)
    times = engine.model.settings.times
    prefill = step_ms(times, 0, 0, 51, 0)
    decode = sum(step_ms(times, 1, 51 + done, 0, 0) for done in range(10))
    assert loop.time() - begin == pytest.approx((prefill + decode) / 1000, rel=0.01)
    assert job.prompt_ms == pytest.approx(prefill, rel=0.01)
    assert job.output_ms == pytest.approx(decode, rel=0.01)


@pytest.mark.looptime
async def test_speed_divides_and_idle_time_is_no_credit(make: Make) -> None:
    engine = make(speed=10)
    await asyncio.sleep(5)
    job = await ran(engine, "word " * 50, 1)
    assert job.prompt_ms == pytest.approx(step_ms(engine.model.settings.times, 0, 0, 51, 0) / 10, rel=0.02)


@pytest.mark.looptime
async def test_neighbours_advance_together_and_wait_for_a_prefill(make: Make) -> None:
    engine = make(speed=1, context=4096)
    one, notes_one = submit(engine, "a", 60)
    await until(lambda: one.decoded > 3, "it decodes")
    gaps: list[float] = []
    last = asyncio.get_running_loop().time()

    def said(job: Job, piece: str) -> None:
        nonlocal last
        gaps.append(asyncio.get_running_loop().time() - last)
        last = asyncio.get_running_loop().time()

    notes_one.said = said  # type: ignore[method-assign]
    _, notes_other = submit(engine, "word " * 1000, 2)
    await notes_other.over.wait()
    await notes_one.over.wait()
    assert max(gaps) > 5 * min(gaps)


@pytest.mark.looptime
async def test_slow_and_stalled_steps(make: Make) -> None:
    engine = make(speed=1)
    plain = (await ran(engine, "a", 2, reuse=False)).output_ms
    engine.slow_factor = 3.0
    assert (await ran(engine, "a", 2, reuse=False)).output_ms == pytest.approx(3 * plain, rel=0.02)
    engine.slow_factor, engine.extra_step_s = 1.0, 1.0
    assert (await ran(engine, "a", 2, reuse=False)).output_ms == pytest.approx(1000 + plain, rel=0.02)
    engine.extra_step_s = 0.0
    engine.stall(500)
    job = await ran(engine, "a", 1, reuse=False)
    assert job.now_s - job.submitted_s > 0.5
    assert job.prompt_ms < 500  # what was copied before it is no time of its own


async def test_a_frozen_engine_computes_nothing(make: Make) -> None:
    engine = make()
    engine.freeze(True)
    job, notes = submit(engine, "a", 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert job.decoded == 0
    engine.freeze(False)
    async with asyncio.timeout(10):
        await notes.over.wait()


# -- clients that leave


@pytest.mark.looptime
async def test_a_stream_that_decodes_notices_at_its_next_token(make: Make) -> None:
    engine = make(speed=1)
    job, notes = submit(engine, "a", 400, streams=True)
    await until(lambda: job.decoded == 5, "it decodes")
    engine.leave(job)
    await notes.over.wait()
    assert (notes.events.count("said"), notes.problem and notes.problem.status) == (5, 499)
    assert job.decoded == 6  # the token of the frame that could not be sent
    assert job.slot is not None
    assert not job.slot.busy
    assert len(job.slot.tokens) == len(job.prompt) + 5


@pytest.mark.looptime
async def test_a_quiet_engine_notices_within_a_second(make: Make) -> None:
    engine = make(speed=0.1)
    job, notes = submit(engine, "a", 400)
    await until(lambda: job.decoded == 5, "it decodes")
    left = asyncio.get_running_loop().time()
    engine.leave(job)
    await notes.over.wait()
    assert asyncio.get_running_loop().time() - left < 1.2


@pytest.mark.looptime
@pytest.mark.parametrize("noise", ["a neighbour's stream", "polls"])
async def test_a_busy_engine_never_notices(make: Make, noise: str) -> None:
    engine = make(speed=0.1)
    job, notes = submit(engine, "a", 60)
    if noise == "polls":
        engine._tasks.start(polls(engine), "polls")
    else:
        submit(engine, "b", 400, streams=True)
    await until(lambda: job.decoded == 5, "it decodes")
    engine.leave(job)
    await notes.over.wait()
    assert (notes.events[-1], job.decoded) == ("finished", 60)


async def polls(engine: SlotEngine) -> None:
    while True:
        engine.polled()
        await asyncio.sleep(0.2)


@pytest.mark.looptime
@pytest.mark.parametrize("progress", [True, False])
async def test_progress_frames_show_in_prefill_that_the_client_left(make: Make, progress: bool) -> None:
    engine = make(speed=0.2, context=9000)
    submit(engine, "b", 400, streams=True)
    job, notes = submit(engine, "word " * 2000, 5, streams=True, reports_progress=progress)
    await until(lambda: job.processed > 500, "the first batch is done")
    engine.leave(job)
    await notes.over.wait()
    assert notes.problem is not None
    assert job.processed < 1500 if progress else job.processed == len(job.prompt)


@pytest.mark.looptime
async def test_a_waiting_job_is_noticed_in_a_quiet_second_or_at_once(make: Make) -> None:
    engine = make(slots=1, speed=0.1)
    submit(engine, "a", 400)
    lazy, lazy_notes = submit(engine, "b")
    eager, eager_notes = submit(engine, "c", leaves_queue_at_once=True)
    await until(lambda: len(engine.deferred) == 2, "both wait")
    engine.leave(eager)
    assert eager_notes.events == ["failed"]
    engine.leave(lazy)
    assert lazy_notes.events == []
    async with asyncio.timeout(1.3):
        await lazy_notes.over.wait()
    assert not engine.deferred


@pytest.mark.looptime
async def test_prompt_departure_needs_no_quiet(make: Make) -> None:
    engine = make(speed=0.1, departure=Departure.PROMPT)
    submit(engine, "b", 400, streams=True)
    job, notes = submit(engine, "a", 400)
    await until(lambda: job.decoded == 2, "it decodes")
    engine.leave(job)
    await notes.over.wait()
    assert notes.events.count("said") == 2
    engine.leave(job)  # twice is once
    assert notes.events.count("failed") == 1
