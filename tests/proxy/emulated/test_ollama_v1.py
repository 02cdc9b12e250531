import orjson
import pytest

from proxy.emulated.ollama_frames import Told
from proxy.emulated.ollama_v1 import AnthropicForm, OpenAiChatForm, OpenAiCompletionForm
from proxy.emulated.replies import Tool
from tests.contract.shapes import events
from tests.proxy.emulated.test_ollama_frames import finished

TOLD = Told("m", 0.0, 0.0, estimate=6)
TOOL = Tool("f", {"properties": {"a": {"type": "integer"}}})
Form = OpenAiChatForm | OpenAiCompletionForm | AnthropicForm


def streamed(form: Form, **wish: object) -> bytes:
    job = finished(**wish)
    assert job.reply is not None
    said = b"".join(form.said(job, piece) for piece in job.reply.pieces)
    return form.progressed(job) + said + form.finished(job) + form.closing()


def test_chat_chunks_say_the_role_once_and_the_usage_if_asked() -> None:
    found = events(streamed(OpenAiChatForm(TOLD, usage=True)))
    assert found[-1][1] == "[DONE]"
    assert [bool(data["choices"] and "role" in data["choices"][0]["delta"]) for _, data in found[:-1]].count(True) == 1
    assert found[-2][1]["usage"]["completion_tokens"] == 5
    assert "usage" not in events(streamed(OpenAiChatForm(TOLD, usage=False)))[-2][1]


def test_completion_chunks_make_the_whole_text() -> None:
    found = events(streamed(OpenAiCompletionForm(TOLD, usage=True)))
    text = "".join(data["choices"][0]["text"] for _, data in found[:-2])
    whole = orjson.loads(OpenAiCompletionForm(TOLD, usage=False).whole(finished()))
    assert text == whole["choices"][0]["text"]


def test_anthropic_events_begin_with_an_estimate_and_end_with_the_count() -> None:
    found = events(streamed(AnthropicForm(TOLD)))
    assert found[0][1]["message"]["usage"] == {"input_tokens": 6, "output_tokens": 0}
    assert found[-2][1]["usage"]["input_tokens"] == len(finished().prompt)
    assert found[-1] == ("message_stop", {"type": "message_stop"})


@pytest.mark.parametrize("whole", [False, True])
def test_tools_are_called_in_each_form(whole: bool) -> None:
    openai, anthropic = OpenAiChatForm(TOLD, usage=False), AnthropicForm(TOLD)
    if whole:
        choice = orjson.loads(openai.whole(finished(tool=TOOL)))["choices"][0]
        block = orjson.loads(anthropic.whole(finished(tool=TOOL)))["content"][0]
        assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["name"]) == ("tool_calls", "f")
        assert (block["type"], block["name"]) == ("tool_use", "f")
        return
    chunk = events(streamed(openai, tool=TOOL))[0][1]["choices"][0]
    assert chunk["delta"]["role"] == "assistant"
    assert chunk["delta"]["tool_calls"][0]["function"]["name"] == "f"
    names = [name for name, _ in events(streamed(anthropic, tool=TOOL))]
    assert names[1:4] == ["content_block_start", "content_block_delta", "content_block_stop"]


def test_a_broken_stream_has_no_last_words_but_an_empty_delta() -> None:
    (frame,) = events(OpenAiChatForm(TOLD, usage=False).broken())
    assert (frame[1]["model"], frame[1]["choices"][0]["delta"]) == ("", {"content": ""})
    assert OpenAiCompletionForm(TOLD, usage=False).broken() == AnthropicForm(TOLD).broken() == b""
