import orjson

from proxy.emulated.jobs import Job, Silent
from proxy.emulated.llama_frames import (
    ChatFrames,
    NativeFrames,
    chat_whole,
    event,
    finish_reason,
    native_whole,
    random_id,
    timings,
)
from proxy.emulated.llama_requests import read_chat, read_prompt
from proxy.emulated.options import Options
from proxy.emulated.replies import Stop, plan_reply
from tests.contract.shapes import events
from tests.proxy.emulated.support import chat_body

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]


def finished(body: dict[str, object], ending: Stop | None = None) -> tuple[Job, ChatFrames]:
    asked = read_chat(body, Options(answer_tokens=(4, 4)))
    reply = plan_reply(asked.prompts[0], asked.wish, 50)
    job = Job(asked.prompts[0], reply, Silent())
    job.processed, job.decoded = len(job.prompt), len(reply.tokens)
    job.ended = ending or reply.ending
    return job, ChatFrames(asked, "m")


def test_times_are_per_token_after_the_first() -> None:
    job, _ = finished(chat_body())
    job.started_s, job.first_token_s, job.last_token_s = 1.0, 1.1, 1.5
    found = timings(job)
    assert (found["predicted_n"], found["predicted_ms"], found["predicted_per_token_ms"]) == (5, 400.0, 100.0)
    assert found["predicted_per_second"] == 10.0
    assert timings(Job([1], None, Silent()))["prompt_per_second"] == 0.0


def test_a_tool_call_comes_in_parts_that_make_its_arguments() -> None:
    job, frames = finished(chat_body(tools=TOOLS))
    assert job.reply is not None
    text, pieces = b"", job.reply.pieces
    for count, piece in enumerate(pieces, start=1):
        job.decoded = count
        text += frames.said(job, piece)
    text += frames.finished(job)
    deltas = [chunk["choices"][0]["delta"] for _, chunk in events(text)]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"]["name"] == "f"
    assert calls[0]["id"]
    assert orjson.loads("".join(call["function"]["arguments"] for call in calls)) == job.reply.tool.arguments  # type: ignore[union-attr]
    assert finish_reason(job) == "tool_calls"
    message = chat_whole([job], read_chat(chat_body(), Options()), "m")["choices"][0]["message"]
    assert orjson.loads(message["tool_calls"][0]["function"]["arguments"]) == job.reply.tool.arguments  # type: ignore[union-attr]


def test_a_call_cut_off_by_a_limit_is_none() -> None:
    job, _ = finished(chat_body(tools=TOOLS), Stop.LIMIT)
    assert finish_reason(job) == "length"


def test_native_answers_can_be_narrowed() -> None:
    asked = read_prompt({"prompt": "a", "response_fields": ["content", "nothing"]}, Options())
    job = Job(asked.prompts[0], plan_reply(asked.prompts[0], asked.wish, 5), Silent())
    job.decoded = 2
    assert list(native_whole(job, asked, "m")) == ["content"]
    assert NativeFrames(asked, "m").closing() == b""


def test_events_carry_their_type_as_name() -> None:
    assert event({"type": "a", "b": 1}) == b'event: a\ndata: {"type":"a","b":1}\n\n'
    assert len(random_id("x-")) == 34
