from proxy.emulated.jobs import Job, Silent
from proxy.emulated.replies import Wish, plan_reply
from proxy.emulated.text import tokenize


def test_a_job_knows_how_far_it_is() -> None:
    prompt = tokenize("one two three four five six")
    job = Job(prompt, plan_reply(prompt, Wish(), 20), Silent())
    assert (job.held, job.prefilled, job.text, job.output_ms) == (0, False, "", 0.0)
    job.cached, job.processed = 2, len(prompt) - 2
    assert (job.evaluated, job.prefilled, job.held) == (len(prompt), True, len(prompt))
    job.decoded = 3
    assert job.held == len(prompt) + 2
    assert job.text.count(" ") == 2


def test_times_are_counted_from_the_first_batch_on() -> None:
    job = Job(tokenize("one two"), None, Silent())
    job.submitted_s, job.started_s, job.first_batch_s, job.now_s = 1.0, 4.0, 5.0, 5.25
    assert job.prompt_ms == 0.0
    job.processed = 1
    assert job.prompt_ms == 250.0
    job.processed, job.first_token_s, job.last_token_s, job.decoded = 2, 5.5, 5.5, 1
    assert (job.prompt_ms, job.output_ms) == (500.0, 0.001)


def test_a_silent_sink_takes_everything() -> None:
    sink = Silent()
    job = Job([1], None, sink)
    for tell in (sink.started, sink.progressed, sink.finished):
        tell(job)
    sink.said(job, "x")
