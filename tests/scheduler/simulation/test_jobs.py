from math import isnan

from scheduler.simulation.contents import Chain
from scheduler.simulation.jobs import Job, Slot
from tests.scheduler.simulation.test_contents import chain


def test_a_job_knows_its_prompt_and_has_no_times_yet() -> None:
    job = Job("a", chain((1, 100), (2, 20)), 100, named_slot=3)

    assert (job.prompt.tokens, job.prompt_tokens, job.output_tokens, job.named_slot) == (100, 100, 20, 3)
    assert all(isnan(time) for time in (job.submitted_ms, job.started_ms, job.first_token_ms, job.prompt_ms))


def test_an_engine_makes_one_token_at_least() -> None:
    assert Job("a", chain((1, 100)), 100).output_tokens == 1


def test_a_fresh_slot_holds_nothing() -> None:
    assert Slot[Chain](0).held == 0
