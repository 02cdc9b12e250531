from typing import Any

import pytest

from proxy.emulated.prompts import (
    content_text,
    from_anthropic,
    from_responses,
    has_images,
    render_chat,
    schema_of,
    tool_to_call,
    tools_of,
)

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("one", "two")]
USER = [{"role": "user", "content": "hi"}]


def test_a_chat_is_rendered_with_its_system_text_first() -> None:
    text = render_chat(USER, [], "Be nice.")
    assert text == "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render_chat([{"role": "system", "content": "own"}, *USER], [], "Be nice.").count("system") == 1
    assert render_chat(USER, []) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_longer_chat_begins_with_the_shorter_one() -> None:
    short = render_chat(USER, TOOLS)
    longer = render_chat([*USER, {"role": "assistant", "content": "yes"}, *USER], TOOLS)
    assert longer.startswith(short + "yes")


def test_tools_and_their_calls_are_part_of_the_prompt() -> None:
    call = {"function": {"name": "one", "arguments": {"a": 1}}}
    text = render_chat([*USER, {"role": "assistant", "content": "", "tool_calls": [call]}], TOOLS)
    assert '"name":"two"' in text
    assert '{"name": "one", "arguments": {"a":1}}' in text


def test_content_may_be_parts() -> None:
    assert content_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert content_text(None) == ""


@pytest.mark.parametrize(
    "message",
    [{"images": ["aGk="]}, {"content": [{"type": "image_url"}]}, {"content": [{"type": "image"}]}],
)
def test_pictures_are_seen(message: dict[str, Any]) -> None:
    assert has_images([message])


def test_a_picture_is_part_of_the_prompt() -> None:
    one, other = ([{"role": "user", "content": "hi", "images": [picture]}] for picture in ("aGk=", "aG8="))
    assert render_chat(one, []) == render_chat(one, [])
    assert render_chat(one, []) != render_chat(other, [])
    assert render_chat(one, []).endswith(">hi<|im_end|>\n<|im_start|>assistant\n")
    assert not has_images(USER)


def test_anthropic_messages_become_the_same_chat() -> None:
    body = {
        "system": [{"type": "text", "text": "Be nice."}],
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "one", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "12"},
                    {"type": "text", "text": "so?"},
                ],
            },
        ],
    }
    assert [message["role"] for message in from_anthropic(body)] == ["system", "user", "assistant", "tool", "user"]
    assert '"arguments": {"a":1}' in render_chat(from_anthropic(body), [])


def test_responses_input_becomes_the_same_chat() -> None:
    assert from_responses({"input": "hi", "instructions": "Be nice."}) == [
        {"role": "system", "content": "Be nice."},
        *USER,
    ]
    items = [
        *USER,
        {"type": "function_call", "name": "one", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "12"},
    ]
    assert [message["role"] for message in from_responses({"input": items})] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("choice", "last", "expected"),
    [
        ("auto", "user", "one"),
        ("auto", "tool", None),
        ("required", "tool", "one"),
        ("none", "user", None),
        ({"type": "function", "function": {"name": "two"}}, "tool", "two"),
        ({"type": "tool", "name": "two"}, "tool", "two"),
        ({"type": "any"}, "tool", "one"),
        ({"type": "none"}, "user", None),
    ],
)
def test_which_tool_is_called(choice: Any, last: str, expected: str | None) -> None:
    tool = tool_to_call({"tools": TOOLS, "tool_choice": choice}, [{"role": last, "content": "x"}])
    assert (tool.name if tool else None) == expected


def test_tools_of_every_api_are_read() -> None:
    given = [*TOOLS, {"name": "three", "input_schema": {}}, {"type": "function", "name": "four", "parameters": {}}]
    assert [tool.name for tool in tools_of({"tools": given})] == ["one", "two", "three", "four"]
    assert tool_to_call({}, USER) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}}, {"type": "null"}),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "null"}}}}, {"type": "null"}),
        ({"json_schema": {"type": "null"}}, {"type": "null"}),
        ({"format": "json"}, {}),
        ({"format": {"type": "object"}}, {"type": "object"}),
        ({"format": ""}, None),
    ],
)
def test_the_wanted_form_is_found(body: dict[str, Any], expected: Any) -> None:
    assert schema_of(body) == expected
