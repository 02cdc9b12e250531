import orjson

from proxy.emulated.ollama_frames import Told
from proxy.emulated.ollama_responses import ResponsesForm
from proxy.emulated.replies import Tool
from tests.contract.shapes import events
from tests.proxy.emulated.test_ollama_frames import finished

TOLD = Told("m", 0.0, 0.0)


def test_events_are_numbered_and_end_with_the_whole() -> None:
    job, form = finished(), ResponsesForm(TOLD, 8, "Be brief.")
    assert job.reply is not None
    said = b"".join(form.said(job, piece) for piece in job.reply.pieces)
    found = events(form.progressed(job) + said + form.finished(job) + form.closing() + form.broken())
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    response = found[-1][1]["response"]
    assert list(response) == sorted(response)
    assert (response["max_output_tokens"], response["instructions"]) == (8, "Be brief.")
    assert response["output"][0]["content"][0]["text"] == job.text


def test_a_tool_call_is_an_item() -> None:
    job, form = finished(tool=Tool("f", {"properties": {"a": {"type": "integer"}}})), ResponsesForm(TOLD, None, None)
    assert job.reply is not None
    assert b"".join(form.said(job, piece) for piece in job.reply.pieces) == b""
    names = [name for name, _ in events(form.finished(job))]
    assert "response.function_call_arguments.done" in names
    item = orjson.loads(ResponsesForm(TOLD, None, None).whole(job))["output"][0]
    assert (item["type"], item["name"]) == ("function_call", "f")
