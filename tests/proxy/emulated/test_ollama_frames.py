import time

from proxy.emulated.jobs import Job, Silent
from proxy.emulated.ollama_frames import NativeForm, Told, counts, load_record, logprob
from proxy.emulated.replies import Stop, Tool, Wish, plan_reply
from proxy.emulated.text import tokenize
from tests.proxy.emulated.support import json_lines


def finished(**wish: object) -> Job:
    prompt = tokenize("hello")
    job = Job(prompt, plan_reply(prompt, Wish(length=(4, 4), **wish), 50), Silent())  # type: ignore[arg-type]
    assert job.reply is not None
    job.processed, job.decoded, job.ended = len(prompt), len(job.reply.tokens), job.reply.ending
    job.first_token_s, job.last_token_s = 0.001, 0.002
    return job


TOLD = Told("m", 0.5, time.monotonic())


def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    for chat in (True, False):
        job, form = finished(), NativeForm(TOLD, chat=chat, context=not chat)
        assert job.reply is not None
        lines = json_lines(b"".join(form.said(job, piece) for piece in job.reply.pieces).decode())
        texts = [line["message"]["content"] if chat else line["response"] for line in lines]
        (whole,) = json_lines(form.whole(job).decode())
        assert "".join(texts) == (whole["message"]["content"] if chat else whole["response"])
        (last,) = json_lines(form.finished(job).decode())
        assert list(last) == list(whole)
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert ("context" in last) != chat


def test_a_limit_is_a_length() -> None:
    job = finished()
    job.ended = Stop.LIMIT
    assert json_lines(NativeForm(TOLD, chat=True).whole(job).decode())[0]["done_reason"] == "length"


def test_a_tool_call_comes_whole_before_the_last_record() -> None:
    job, form = finished(tool=Tool("f", {"properties": {"a": {"type": "integer"}}})), NativeForm(TOLD, chat=True)
    assert job.reply is not None
    assert job.reply.tool is not None
    assert b"".join(form.said(job, piece) for piece in job.reply.pieces) == b""
    call, last = json_lines(form.finished(job).decode())
    assert call["message"]["tool_calls"][0]["function"]["arguments"] == job.reply.tool.arguments
    assert "tool_calls" not in last["message"]


def test_zeros_are_left_out() -> None:
    job = finished()
    job.decoded = 0
    assert "eval_count" not in counts(TOLD, job)
    assert counts(TOLD, job)["load_duration"] == 500_000_000


def test_loading_and_unloading_say_so() -> None:
    (record,) = json_lines(load_record("m", "unload", chat=True).decode())
    assert (record["message"], record["done_reason"]) == ({"role": "assistant", "content": ""}, "unload")


def test_probabilities_of_a_stream_are_those_of_the_whole_answer() -> None:
    told = Told("m", 0.5, time.monotonic(), logprobs=2)
    job, form = finished(), NativeForm(told, chat=True)
    assert job.reply is not None
    lines = json_lines(b"".join(form.said(job, piece) for piece in job.reply.pieces).decode())
    (whole,) = json_lines(form.whole(job).decode())
    assert [entry for line in lines for entry in line["logprobs"]] == whole["logprobs"]
    assert "logprobs" not in json_lines(form.finished(job).decode())[0]
    entry = logprob(" é", 2)
    assert (entry["bytes"], len(entry["top_logprobs"])) == ([32, 195, 169], 2)
    assert entry["logprob"] < 0
    assert "top_logprobs" not in logprob("a", 0)
