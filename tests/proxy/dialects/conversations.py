"""One conversation in every dialect, and arbitrary conversations."""

import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

from proxy.dialects import prompt_of
from scheduler.domain import Prompt
from tests.proxy.dialects.support import call_of

Turn = dict[str, Any]
"""role and text; an assistant's may have thinking and calls (name, arguments); a user's images (base64)."""

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [("read_file", "Reads a file", SCHEMA), ("now", "Tells the time", {"type": "object", "properties": {}})]
IMAGE = "iVBORw0KGgo="

HELLO = {"role": "user", "content": "Hello"}


def prompt(path: str, body: dict[str, Any] | bytes) -> Prompt:
    found = prompt_of(call_of(path, body))
    assert found is not None
    return found


def ollama(turns: list[Turn], *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    messages = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn["role"], "content": turn["text"]}
        if turn.get("thinking"):
            message["thinking"] = turn["thinking"]
        if turn.get("images"):
            message["images"] = turn["images"]
        if turn.get("calls"):
            message["tool_calls"] = [{"function": {"name": n, "arguments": a}} for n, a in turn["calls"]]
        if turn["role"] == "tool":
            message["tool_name"] = "read_file"
        messages.append(message)
    return "/api/chat", {"model": "smollm2", "messages": messages} | ({"tools": openai_tools()} if tools else {})


def openai_tools() -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in TOOLS]


def openai(turns: list[Turn], *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    messages = []
    for place, turn in enumerate(turns):
        message: dict[str, Any] = {"role": turn["role"], "content": turn["text"]}
        if turn.get("thinking"):
            message["reasoning_content"] = turn["thinking"]
        if turn.get("images"):
            urls = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{i}"}} for i in turn["images"]]
            message["content"] = [{"type": "text", "text": turn["text"]}, *urls]
        if turn.get("calls"):
            message["tool_calls"] = [
                {"id": f"call_{place}_{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for i, (n, a) in enumerate(turn["calls"])
            ]
        if turn["role"] == "tool":
            message["tool_call_id"] = f"call_{place}"
        messages.append(message)
    body = {"model": "smollm2", "messages": messages}
    return "/v1/chat/completions", body | ({"tools": openai_tools()} if tools else {})


def anthropic(turns: list[Turn], *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 1, "messages": []}
    if tools:
        body["tools"] = [{"name": n, "description": d, "input_schema": p} for n, d, p in TOOLS]
    for turn in turns:
        if turn["role"] == "system":
            body["system"] = [{"type": "text", "text": turn["text"], "cache_control": {"type": "ephemeral"}}]
            continue
        if turn["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": turn["text"]}
            body["messages"].append({"role": "user", "content": [block]})
            continue
        blocks: list[dict[str, Any]] = []
        if turn.get("thinking"):
            blocks.append({"type": "thinking", "thinking": turn["thinking"], "signature": "x"})
        blocks.append({"type": "text", "text": turn["text"]})
        for image in turn.get("images", ()):
            source = {"type": "base64", "media_type": "image/png", "data": image}
            blocks.append({"type": "image", "source": source})
        for name, arguments in turn.get("calls", ()):
            blocks.append({"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments})
        plain = turn["text"] if len(blocks) == 1 else blocks
        body["messages"].append({"role": turn["role"], "content": plain})
    return "/v1/messages", body


def response(turns: list[Turn], *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": "smollm2", "input": []}
    if tools:
        body["tools"] = [{"type": "function", "name": n, "description": d, "parameters": p} for n, d, p in TOOLS]
    items = body["input"]
    for turn in turns:
        if turn["role"] == "system":
            body["instructions"] = turn["text"]
        elif turn["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": "c", "output": turn["text"]})
        elif turn["role"] == "user":
            images = [
                {"type": "input_image", "image_url": f"data:image/png;base64,{i}"} for i in turn.get("images", ())
            ]
            items.append({"role": "user", "content": [{"type": "input_text", "text": turn["text"]}, *images]})
        else:
            if turn.get("thinking"):
                told = [{"type": "reasoning_text", "text": turn["thinking"]}]
                items.append({"type": "reasoning", "summary": [], "content": told})
            text = [{"type": "output_text", "text": turn["text"]}]
            items.append({"type": "message", "role": "assistant", "content": text})
            for name, arguments in turn.get("calls", ()):
                call = {"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(arguments)}
                items.append(call)
    return "/v1/responses", body


def stamped(stamp: str) -> tuple[str, dict[str, Any]]:
    """What Claude Code sends."""
    texts = [f"x-anthropic-billing-header: cc_version=2.1; cch={stamp};", "You are Claude Code. cch=12345;"]
    system = [{"type": "text", "text": text} for text in texts]
    return "/v1/messages", {"model": "smollm2", "max_tokens": 1, "system": system, "messages": [HELLO]}


DIALECTS: list[Callable[..., tuple[str, dict[str, Any]]]] = [ollama, openai, anthropic, response]

words = st.text(max_size=300)
arguments = st.dictionaries(st.text(max_size=4), st.integers(-9, 9) | st.text(max_size=4) | st.booleans(), max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["read_file", "now"]), arguments), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """A system message or none, then user and assistant in turn, with tools used in between."""
    turns: list[Turn] = [{"role": "system", "text": draw(words)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        images = [IMAGE] if draw(st.integers(0, 9)) == 9 else []
        turns.append({"role": "user", "text": draw(words), "images": images})
        called = draw(calls)
        turns.append({"role": "assistant", "text": draw(words), "thinking": draw(st.text(max_size=9)), "calls": called})
        turns += [{"role": "tool", "text": draw(words)} for _ in called]
    return turns
