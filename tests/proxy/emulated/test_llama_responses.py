from proxy.emulated.jobs import Job, Silent
from proxy.emulated.llama_requests import read_responses
from proxy.emulated.llama_responses import ResponsesFrames, responses_whole
from proxy.emulated.options import Options
from proxy.emulated.replies import plan_reply
from tests.contract.shapes import events

TOOL = {"type": "function", "name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}


def finished(**more: object) -> tuple[Job, bytes]:
    asked = read_responses({"input": "hi", **more}, Options(answer_tokens=(4, 4)))
    job = Job(asked.prompts[0], plan_reply(asked.prompts[0], asked.wish, 50), Silent())
    assert job.reply is not None
    job.processed = len(job.prompt)
    frames, text = ResponsesFrames(asked, "m"), b""
    for piece in job.reply.pieces:
        job.decoded += 1
        text += frames.said(job, piece)
    job.ended = job.reply.ending
    return job, text + frames.finished(job) + frames.closing()


def test_the_last_event_holds_the_whole_answer() -> None:
    job, text = finished()
    found = events(text)
    assert found[0][0] == "response.created"
    name, last = found[-1]
    assert name == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == job.text
    assert "".join(data["delta"] for name, data in found if name == "response.output_text.delta") == job.text


def test_a_tool_call_is_an_item_of_its_own() -> None:
    job, text = finished(tools=[TOOL])
    item = events(text)[-1][1]["response"]["output"][0]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "f", job.text)
    whole = responses_whole([job], read_responses({"input": "hi"}, Options()), "m")
    assert whole["output"][0]["type"] == "function_call"
