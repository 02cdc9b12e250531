import random
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.simulation.contents import Chain, Tokens
from scheduler.simulation.engine import EngineModel, EngineSettings
from scheduler.simulation.jobs import Happened, Job, Kind
from scheduler.simulation.step_times import PRESETS, prefill_ms, step_ms
from tests.scheduler.simulation.test_contents import chain

CARD = PRESETS["4090"]
H200 = PRESETS["h200"]
LATE = 1e12
NAMES = count(1000)


def job(prompt: list[tuple[int, int]], output: int = 8, slot: int | None = None, name: str = "") -> Job[Chain]:
    """A prompt of messages (name, tokens) and an answer that nobody else gets."""
    content = chain(*prompt, (next(NAMES), output))
    return Job(name, content, content.tokens - output, slot)


def serve(engine: EngineModel[Chain], new: Job[Chain], now_ms: float) -> Job[Chain]:
    """Run one job alone to its end."""
    engine.submit(new, now_ms)
    engine.advance(LATE)
    assert new.ended_ms < LATE
    return new


def engine(slots: int = 4, **more: object) -> EngineModel[Chain]:
    """An engine of the project's usual card."""
    return EngineModel(msgspec.convert({"slots": slots, **more}, EngineSettings))


# What was measured on a real card: one H200, 8B Q4_0, 32 layers of 4096


@pytest.mark.parametrize(
    ("tokens", "milliseconds"),
    [(256, 29), (512, 47), (1024, 91), (2048, 181), (4096, 365), (8192, 754)],
)
def test_prefill_takes_what_was_measured(tokens: int, milliseconds: float) -> None:
    done = serve(engine(times=H200), job([(1, tokens)]), 0.0)

    assert done.prompt_ms == pytest.approx(milliseconds, rel=0.2 if tokens < 512 else 0.05)


@pytest.mark.parametrize(
    ("running", "milliseconds"),
    [(1, 3.3), (2, 3.6), (4, 4.8), (6, 6.4), (8, 7.5), (12, 9.3), (16, 10.5), (24, 14.2), (32, 18.4)],
)
def test_decode_steps_take_what_was_measured(running: int, milliseconds: float) -> None:
    model = engine(32, times=H200)
    jobs = [job([(number, 8)], 201) for number in range(running)]
    for each in jobs:
        model.submit(each, 0.0)
    model.advance(LATE)

    assert jobs[-1].output_ms / 200 == pytest.approx(milliseconds, rel=0.2)


@pytest.mark.parametrize(("tokens", "prompt_ms", "seen_ms"), [(4096, 365, 650), (8192, 754, 1330)])
def test_a_cold_request_pays_for_a_copy_that_prompt_ms_does_not_show(
    tokens: int, prompt_ms: float, seen_ms: float
) -> None:
    model = engine(times=H200, host_tokens=65_536, copies_idle=True)
    for number in range(8):
        done = serve(model, job([(number, tokens)]), number * 10_000.0)

    assert done.prompt_ms == pytest.approx(prompt_ms, rel=0.05)
    assert done.first_token_ms - done.submitted_ms == pytest.approx(seen_ms, rel=0.05)


def test_a_hit_in_the_host_cache_takes_about_as_long_as_computing() -> None:
    model = engine(times=H200, host_tokens=65_536, copies_idle=True)
    for number in range(8):
        serve(model, job([(number, 4096)]), number * 10_000.0)

    done = serve(model, job([(1, 4096)]), 100_000.0)

    assert done.cached_tokens == 4095
    assert done.prompt_ms < 10
    assert done.first_token_ms - done.submitted_ms == pytest.approx(345, rel=0.2)


@pytest.mark.parametrize(("batch", "gap_ms"), [(2048, 207), (512, 59)])
def test_a_long_prompt_stalls_a_stream_for_one_batch_at_a_time(batch: int, gap_ms: float) -> None:
    model = engine(times=H200, batch=batch, single_steps=True)
    stream = job([(1, 16)], 4000)
    model.submit(stream, 0.0)
    model.advance(1000.0)
    model.submit(job([(2, 8192)]), 1000.0)
    longest, before = 0.0, 1000.0
    while (now := model.next_event_ms()) < 3000.0:
        produced = model.produced(stream)
        model.advance(now)
        if model.produced(stream) > produced:
            longest, before = max(longest, now - before), now

    assert longest == pytest.approx(gap_ms, rel=0.2)


# Slots


def test_a_conversation_goes_on_in_its_slot() -> None:
    model = engine()
    first = serve(model, job([(1, 1000), (2, 90)], 220), 0.0)
    answer = (int(next(NAMES)) - 1, 220)

    second = serve(model, job([(1, 1000), (2, 90), answer, (3, 50)]), first.ended_ms + 12_000)

    assert second.slot == first.slot == 3
    assert second.cached_tokens == 1000 + 90 + 219, "all generated tokens but the last"


def test_a_busy_slot_cannot_lend_its_prefix() -> None:
    model = engine()
    jobs = [job([(1, 1000), (number, 50)]) for number in (2, 3, 4)]
    for each in jobs:
        model.submit(each, 0.0)
    model.advance(LATE)

    assert [each.cached_tokens for each in jobs] == [0, 0, 0]
    assert sorted(each.slot or 0 for each in jobs) == [1, 2, 3]
    assert serve(model, job([(1, 1000), (5, 50)]), 1e6).cached_tokens == 1000


def test_at_least_one_token_is_computed() -> None:
    model = engine()
    serve(model, job([(1, 1000)]), 0.0)

    assert serve(model, job([(1, 1000)]), 1e6).cached_tokens == 999


def test_a_named_slot_is_taken_or_waited_for() -> None:
    model = engine(2)
    long, named, free = job([(1, 10)], 1000), job([(2, 10)], 5, slot=1), job([(3, 10)], 5)
    model.submit(long, 0.0)
    for each in (named, free):
        model.submit(each, 1.0)
    model.advance(LATE)

    assert (long.slot, named.slot, free.slot) == (1, 1, 0)
    assert named.started_ms == long.ended_ms
    assert free.ended_ms < long.ended_ms


def test_a_waiting_job_with_a_busy_name_blocks_the_next_one() -> None:
    """As measured: the freed slot stays idle until the next one falls free."""
    model = engine(2)
    long, short = job([(1, 10)], 1000), job([(2, 10)], 10)
    named, behind = job([(3, 10)], 5, slot=1), job([(4, 10)], 5)
    for at_ms, each in enumerate((long, short, named, behind)):
        model.submit(each, float(at_ms))
    model.advance(LATE)

    assert long.slot == 1
    assert named.started_ms == long.ended_ms
    assert behind.started_ms >= long.ended_ms
    assert model.deferred_max == 2


def test_a_number_that_no_slot_has_is_ignored() -> None:
    assert serve(engine(2), job([(1, 10)], 5, slot=7), 0.0).slot == 1


def test_unified_memory_is_cleared_once_it_is_copied() -> None:
    model = engine(host_tokens=65_536, copies_idle=True, unified=True)
    serve(model, job([(1, 1000)]), 0.0)
    serve(model, job([(2, 1000)]), 1e6)

    assert [slot.held for slot in model.slots if slot.held] == [1007]
    back = serve(model, job([(1, 1000), (3, 10)]), 2e6)
    assert back.cached_tokens == 1000, "from the host cache"


# Clients that leave


def test_a_cancelled_job_leaves_what_was_computed() -> None:
    model = engine()
    gone = job([(1, 4000)], 100)
    model.submit(gone, 0.0)
    model.advance(100.0)
    model.cancel(gone, 100.0)
    happened = model.advance(200.0)

    assert [(each.kind, each.job) for each in happened] == [(Kind.CANCELLED, gone)]
    assert model.open_jobs == 0
    assert serve(model, job([(1, 4000)]), 1e6).cached_tokens == gone.computed > 500


def test_a_waiting_job_can_be_cancelled() -> None:
    model = engine(1)
    first, second, third = (job([(number, 10)], 50) for number in (1, 2, 3))
    for each in (first, second, third):
        model.submit(each, 0.0)
    model.advance(50.0)
    model.cancel(second, 50.0)
    model.advance(LATE)

    assert third.started_ms == first.ended_ms
    assert second.slot is None


def test_work_on_the_main_loop_delays_the_next_step() -> None:
    model = engine()
    model.stall(100.0, 0.0)
    assert serve(model, job([(1, 512)]), 50.0).first_token_ms == pytest.approx(100 + prefill_ms(CARD, 512))
    assert serve(model, job([(2, 512)]), 1e6).first_token_ms == pytest.approx(1e6 + prefill_ms(CARD, 512))


# Time


def test_what_comes_during_a_step_starts_at_its_end() -> None:
    model = engine()
    running = job([(1, 512)], 100)
    model.submit(running, 0.0)
    step_end = prefill_ms(CARD, 512)
    later = job([(2, 512)])
    model.advance(10.0)
    model.submit(later, 10.0)
    model.advance(LATE)

    assert later.started_ms == running.first_token_ms == pytest.approx(step_end)


def test_decoding_takes_the_sum_of_its_steps() -> None:
    done = serve(engine(), job([(1, 512)], 101), 0.0)

    assert done.output_ms == pytest.approx(sum(step_ms(CARD, 1, 512 + step, 0, 0) for step in range(100)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 4]), st.booleans(), st.booleans())
def test_many_steps_at_once_are_the_same_as_one_by_one(seed: int, slots: int, host: bool, unified: bool) -> None:
    shared = EngineSettings(slots=slots, host_tokens=3000 if host else 0, copies_idle=host, unified=unified)
    told = []
    for single in (False, True):
        chance = random.Random(seed)
        model = EngineModel[Chain](msgspec.structs.replace(shared, single_steps=single))
        jobs = []
        happened: list[Happened[Chain]] = []
        now = 0.0
        for number in range(25):
            now += chance.choice([0.0, 5.0, 40.0, 900.0]) * chance.random()
            happened += model.advance(now)
            prompt = [(chance.randint(1, 3), 300), (chance.randint(1, 3), chance.randint(1, 900))]
            name = chance.choice([None, None, 0, 1])
            content = chain(*prompt, (number + 1000, chance.choice([1, 2, 50, 300])))
            new = Job(str(number), content, prompt[0][1] + prompt[1][1], name)
            jobs.append(new)
            model.submit(new, now)
            if chance.random() < 0.15:
                model.cancel(chance.choice(jobs), now)
        happened += model.advance(LATE)
        assert model.open_jobs == 0
        assert all(slot.job is None for slot in model.slots)
        assert model._decode_context == 0, "no context is left over"
        told.append([(each.kind, each.job.id, each.job.slot, each.job.cached_tokens, each.at_ms) for each in happened])
    fast, slow = told
    assert [each[:4] for each in fast] == [each[:4] for each in slow]
    assert [each[4] for each in fast] == pytest.approx([each[4] for each in slow], abs=1e-6)


def test_real_tokens_do_as_well() -> None:
    model = EngineModel[Tokens](EngineSettings(slots=2))
    for number, now_ms in ((1, 0.0), (2, 1e6)):
        done = Job(str(number), Tokens([7] * 600 + [number] * 20), 610)
        model.submit(done, now_ms)
        model.advance(LATE)

    assert done.cached_tokens == 600


# What only emulators ask for: `Tokens`, steps one by one


def told(engine: EngineModel[Tokens], to_ms: float = LATE) -> list[tuple[str, str]]:
    """What happened, and to whom."""
    return [(each.kind, each.job.id) for each in engine.advance(to_ms)]


def emulated(slots: int = 2, **more: object) -> EngineModel[Tokens]:
    """An engine that tells every step."""
    settings = {"slots": slots, "single_steps": True, "tells_steps": True, **more}
    return EngineModel(msgspec.convert(settings, EngineSettings))


def ids(number: int, count: int) -> Tokens:
    """A sequence of its own."""
    return Tokens([number * 10_000 + place for place in range(count)])


def test_every_batch_and_every_token_is_told() -> None:
    model = emulated(batch=100)
    model.submit(Job("a", ids(1, 253), 250), 0.0)

    assert told(model) == [
        (kind, "a") for kind in ["started", "batch", "batch", "batch", "first", "token", "token", "finished"]
    ]


def test_the_step_under_way_tells_whom_it_serves() -> None:
    model = emulated(batch=100)
    first, second = Job("a", ids(1, 60), 50), Job("b", ids(2, 260), 250)
    model.submit(first, 0.0)
    model.advance(model.next_event_ms())
    model.submit(second, model.next_event_ms())
    assert model.served == [(first, 0)]
    model.advance(model.next_event_ms())
    assert model.served == [(first, 0), (second, 99)]


def test_without_an_answer_only_the_prompt_is_computed() -> None:
    model = emulated()
    alone = Job("a", ids(1, 600), 600, generates=False)
    model.submit(alone, 0.0)

    assert told(model) == [("started", "a"), ("batch", "a"), ("batch", "a"), ("finished", "a")]
    assert alone.ended_ms == pytest.approx(prefill_ms(CARD, 600))
    assert model.slots[1].held == 600


def test_who_wants_no_reuse_gets_none() -> None:
    model = emulated()
    model.submit(Job("a", ids(1, 60), 50), 0.0)
    model.advance(LATE)
    anew = Job("b", ids(1, 60), 50, reuses=False)
    model.submit(anew, 2 * LATE)
    model.advance(3 * LATE)

    assert (anew.slot, anew.cached_tokens) == (1, 0), "its slot is chosen all the same"


def test_jobs_that_come_together_share_the_first_step() -> None:
    model = emulated()
    jobs = [Job(name, ids(number, 20), 10) for number, name in enumerate("ab")]
    model.submit_together(jobs, 5.0)

    assert [job.started_ms for job in jobs] == [5.0, 5.0]
    assert model.served == [(jobs[1], 10), (jobs[0], 10)]


def test_a_prompt_that_does_not_fit_is_refused_with_its_slot_and_an_empty_one_answered() -> None:
    model = emulated(1, context=100)
    model.submit_together(
        [Job("runs", ids(1, 60), 50), Job("long", ids(2, 150), 100), Job("empty", ids(3, 0), 0, generates=False)], 0.0
    )
    model.submit(Job("last", ids(4, 20), 10), 0.0)
    happened = [each for each in told(model) if each[0] not in {"batch", "token"}]

    assert happened[:2] == [("started", "runs"), ("first", "runs")]
    assert happened[2:5] == [("finished", "runs"), ("refused", "long"), ("finished", "empty")]
    assert happened[5:] == [("started", "last"), ("first", "last"), ("finished", "last")]
    assert model.deferred_max == 3


def test_who_is_withdrawn_is_gone_at_once() -> None:
    model = emulated(1)
    runs, waits, comes = (Job(name, ids(number, 20), 10) for number, name in enumerate("abc"))
    model.submit_together([runs, waits], 0.0)
    model.submit(comes, 1.0)
    assert [model.withdraw(job) for job in (waits, comes, runs)] == [True, True, False]

    assert model.open_jobs == 1
    assert {name for _, name in told(model)} == {"a"}


def test_a_full_context_makes_room_in_its_middle() -> None:
    model = emulated(1)
    job = Job("a", ids(1, 60), 50)
    model.submit(job, 0.0)
    while model.produced(job) < 5:
        model.advance(model.next_event_ms())
    model.shift(job, Tokens([*job.content.ids[:4], *job.content.ids[24:]]))
    model.advance(LATE)

    assert model.slots[0].held == 50 + 9 - 20
    assert model.slots[0].content is not None
    assert list(model.slots[0].content.ids[:5]) == [*ids(1, 4).ids, ids(1, 25).ids[24]]
    assert model._decode_context == 0


def test_embeddings_leave_the_host_cache_alone() -> None:
    model = emulated(1, host_tokens=10_000)
    model.submit(Job("a", ids(1, 600), 590), 0.0)
    model.advance(LATE)
    model.submit(Job("b", ids(2, 600), 600, generates=False), 2 * LATE)
    model.advance(3 * LATE)

    assert (model.host_cache.entries, model.copied_ms) == ([], 0.0)
