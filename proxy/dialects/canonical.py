"""Owns reading every dialect's prompt into one canonical form. Must not know backends.

Prompts that begin the same here get the same beginning from an engine's chat template; the other way round is true but
for templates that trim or drop text. So the form has what templates render, in their order: model, tools, system,
messages, each with role, thinking, text, media and tool calls. It has nothing else: no sampling options, no ids, no
names of tool results, nothing that depends on spelling (key order, white space, arguments as text or as an object). The
thinking level is left out too: where it is rendered, nearly all templates do so at the end.

Where llama-server joins or reorders what it gets (parts of a text, tool results beside a text, items of a response),
so does this; the tests compare both.
"""

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from proxy.dialects.call import Call
from proxy.dialects.gojson import fold
from proxy.dialects.prompt_stream import Calls, PromptStream
from scheduler.domain import Operation, Prompt
from scheduler.names import canonical

_OLLAMA_KEYS = frozenset(("role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"))

_STAMP = re.compile(r"(?s)\A(x-anthropic-billing-header:.*?cch=).{5};")
"""Claude Code's check sum of each request, at the very start of its system prompt. llama-server blots it out."""


def prompt_of(call: Call) -> Prompt | None:
    """The canonical prompt of a call.

    None where nothing can be reused or nobody can tell: other operations than chat, generate and infill; several
    prompts in one request; recordings; a body that an engine will refuse. Takes time in proportion to the body: about
    2 µs per KB and 1 µs per message. Never raises.
    """
    write = _WRITERS.get(call.route.path) if call.operation in _OPERATIONS else None
    if write is None:
        return None
    stream = PromptStream(canonical(call.model) if call.model else "")
    try:
        return stream.hashed() if write(stream, call.fields) else None
    except RecursionError:  # nested so deeply that it cannot be written again
        return None


def _calls(given: object) -> Calls:
    """Name and arguments of OpenAI's and Ollama's tool calls."""
    if not given or not isinstance(given, list):
        return ()
    functions = [call.get("function") for call in given if isinstance(call, Mapping)]
    return [(each.get("name"), each.get("arguments")) for each in functions if isinstance(each, Mapping)]


# One writer for each path. They say whether there is a prompt.


def _ollama_chat(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    stream.tools(fields.get("tools"))
    for message in fields.get("messages") or ():
        if not message.keys() <= _OLLAMA_KEYS:
            message, _ = fold(message)
        stream.say(
            message.get("role"),
            message.get("content"),
            thinking=message.get("thinking"),
            images=message.get("images"),
            calls=_calls(message.get("tool_calls")),
        )
    return True


def _ollama_generate(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    prompt = fields.get("prompt") or ""
    if fields.get("suffix"):
        return stream.gap((prompt,), fields["suffix"])
    if fields.get("raw"):
        return stream.raw(prompt)
    if fields.get("template"):
        stream.template(fields["template"])
    if fields.get("context") and not stream.text([*fields["context"], ""]):
        return False
    if fields.get("system"):
        stream.say("system", fields["system"])
    stream.say("user", prompt, images=fields.get("images"))
    return True


def _openai_chat(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    stream.tools(fields.get("tools"))
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        if not isinstance(message, Mapping):
            return False
        if len(message) == 2:
            stream.say(message.get("role"), message.get("content"))
            continue
        stream.say(
            message.get("role"),
            message.get("content"),
            thinking=message.get("reasoning_content") or message.get("reasoning"),
            calls=_calls(message.get("tool_calls")),
        )
    return True


def _openai_completion(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    prompt, suffix = fields.get("prompt"), fields.get("suffix")
    return stream.gap((prompt,), suffix) if suffix else stream.raw(prompt)


def _openai_response(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    """A row of items of the assistant (thinking, text, calls) is one message."""
    stream.tools(fields.get("tools"))
    given = fields.get("input")
    if "instructions" in fields:
        stream.say("system", fields["instructions"])
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        return False
    for assistant, row in groupby(items, _by_assistant):
        if assistant:
            _assistant_items(stream, list(row))
            continue
        for item in row:
            if item.get("type") == "function_call_output":
                stream.say("tool", item.get("output"))
            else:
                stream.say(item.get("role"), item.get("content"))
    return True


def _by_assistant(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _assistant_items(stream: PromptStream, row: list[Mapping[str, Any]]) -> None:
    parts: list[Any] = []
    calls: list[tuple[object, object]] = []
    thinking: object = None
    for item in row:
        content = item.get("content")
        if item.get("type") == "function_call":
            calls.append((item.get("name"), item.get("arguments")))
        elif item.get("type") == "reasoning":
            first = content[0] if isinstance(content, list) and content else None
            thinking = first.get("text") if isinstance(first, Mapping) else None
        else:
            parts += content if isinstance(content, list) else [content]
    stream.say("assistant", parts, thinking=thinking, calls=calls)


def _anthropic_messages(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    stream.tools(fields.get("tools"), "input_schema")
    messages, system = fields.get("messages"), fields.get("system")
    if not isinstance(messages, list):
        return False
    if system is not None:
        blocks = system if isinstance(system, list) else [{"text": system}]
        texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
        stream.say("system", "".join(_STAMP.sub(r"\1fffff;", text) for text in texts if isinstance(text, str)))
    for message in messages:
        if not isinstance(message, Mapping):
            return False
        content = message.get("content")
        if isinstance(content, list):
            _anthropic_blocks(stream, message.get("role"), content)
        elif content is not None or message.get("role") != "assistant":
            stream.say(message.get("role"), content)
    return True


def _anthropic_blocks(stream: PromptStream, role: object, blocks: list[Any]) -> None:
    """A message of blocks: its tool results are messages of their own, after the rest of it."""
    parts: list[Any] = []
    calls: list[tuple[object, object]] = []
    thinking: list[str] = []
    results: list[object] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            calls.append((block.get("name"), block.get("input")))
        elif kind == "tool_result":
            results.append(block.get("content"))
        elif kind == "thinking":
            thinking.append(str(block.get("thinking") or ""))
        else:
            parts.append(block)
    thought = "".join(thinking)
    if parts or calls or thought:
        stream.say(role, parts, thinking=thought, calls=calls)
    for result in results:
        stream.say("tool", _joined(result))


def _joined(content: object) -> object:
    """A tool's result as one text, where it is blocks of nothing but text."""
    if not isinstance(content, list):
        return content
    texts = [text for each in content if isinstance(each, Mapping) and isinstance(text := each.get("text"), str)]
    return "".join(texts) if len(texts) == len(content) else content


def _completion(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    return stream.raw(fields.get("prompt"))


def _infill(stream: PromptStream, fields: Mapping[str, Any]) -> bool:
    extra = fields.get("input_extra")
    for item in extra if isinstance(extra, list) else ():
        if isinstance(item, Mapping):
            stream.file(item.get("filename"), item.get("text"))
    return stream.gap((fields.get("input_prefix"), fields.get("prompt")), fields.get("input_suffix"))


_OPERATIONS = frozenset((Operation.CHAT, Operation.GENERATE, Operation.INFILL))

_WRITERS: dict[str, Callable[[PromptStream, Mapping[str, Any]], bool]] = {
    "/api/chat": _ollama_chat,
    "/api/generate": _ollama_generate,
    "/v1/chat/completions": _openai_chat,
    "/v1/completions": _openai_completion,
    "/v1/responses": _openai_response,
    "/v1/messages": _anthropic_messages,
    "/completion": _completion,
    "/completions": _completion,
    "/infill": _infill,
}
