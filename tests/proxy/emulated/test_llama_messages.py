from proxy.emulated.jobs import Job, Silent
from proxy.emulated.llama_messages import MessagesFrames, messages_whole, stop_reason, stop_sequence
from proxy.emulated.llama_requests import read_messages
from proxy.emulated.options import Options
from proxy.emulated.replies import Stop, plan_reply
from tests.contract.shapes import events
from tests.proxy.emulated.support import chat_body

TOOL = {"name": "f", "input_schema": {"properties": {"a": {"type": "string"}}}}


def finished(**more: object) -> tuple[Job, MessagesFrames]:
    asked = read_messages(chat_body(**more), Options(answer_tokens=(4, 4)))
    job = Job(asked.prompts[0], plan_reply(asked.prompts[0], asked.wish, 50), Silent())
    assert job.reply is not None
    job.cached, job.processed = 2, len(job.prompt) - 2
    job.decoded, job.ended = len(job.reply.tokens), job.reply.ending
    return job, MessagesFrames(asked, "m")


def test_why_it_ended() -> None:
    job, _ = finished()
    assert (stop_reason(job), stop_sequence(job)) == ("end_turn", None)
    job.ended = Stop.LIMIT
    assert stop_reason(job) == "max_tokens"
    word = finished()[0].text[2:4]
    job, _ = finished(stop_sequences=[word])
    assert (stop_reason(job), stop_sequence(job)) == ("stop_sequence", word)


def test_a_tool_use_is_a_block() -> None:
    job, frames = finished(tools=[TOOL])
    whole = messages_whole([job], read_messages(chat_body(), Options()), "m")
    assert (whole["stop_reason"], whole["content"][0]["type"]) == ("tool_use", "tool_use")
    assert job.reply is not None
    text = b"".join(frames.said(job, piece) for piece in job.reply.pieces) + frames.finished(job)
    names = [name for name, _ in events(text)]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_input_tokens_leave_out_the_cached() -> None:
    job, _ = finished()
    usage = messages_whole([job], read_messages(chat_body(), Options()), "m")["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(job.prompt)


def test_an_answer_without_text_has_no_block() -> None:
    job, frames = finished()
    text = frames.said(job, "") + frames.finished(job)
    assert [name for name, _ in events(text)] == ["message_start", "message_delta", "message_stop"]
