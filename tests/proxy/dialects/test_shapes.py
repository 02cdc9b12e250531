import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.shapes import ChatRecord, GenerateRecord, Message, ToolCall, ToolFunction, encode


def test_go_escapes() -> None:
    assert encode({"a": "<|x|> & \u2028\u2029 â"}) == '{"a":"\\u003c|x|\\u003e \\u0026 \\u2028\\u2029 â"}'.encode()


@given(st.text())
def test_escaping_changes_no_value(text: str) -> None:
    assert msgspec.json.decode(encode({"a": text})) == {"a": text}


def test_empty_fields_vanish_but_not_those_that_ollama_always_has() -> None:
    assert encode(ChatRecord("", "", Message("assistant", ""), done=False)) == (
        b'{"model":"","created_at":"","message":{"role":"assistant","content":""},"done":false}'
    )
    assert encode(GenerateRecord(model="", created_at="", response="", done=True, eval_count=1)) == (
        b'{"model":"","created_at":"","response":"","done":true,"eval_count":1}'
    )
    call = ToolCall("c", ToolFunction(0, "f", msgspec.Raw(b'{"a":1}')))
    assert encode(Message("assistant", "", tool_calls=[call])).endswith(
        b'"tool_calls":[{"id":"c","function":{"index":0,"name":"f","arguments":{"a":1}}}]}'
    )
