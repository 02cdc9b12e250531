"""From messages to one prompt text, for every API. Owns the chat template; must not know slots or answers."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from proxy.emulated.replies import Tool

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

Message = dict[str, Any]


def render_chat(messages: Iterable[Message], tools: list[dict[str, Any]], default_system: str = "") -> str:
    """ChatML: an optional system text, the tools as JSON in it, every message, and the opening of the answer."""
    parts: list[str] = []
    messages = list(messages)
    system = "" if messages and messages[0].get("role") == "system" else default_system
    if tools:
        listed = "\n".join(orjson.dumps(tool).decode() for tool in tools)
        parts.append(_turn("system", f"{system}\n# Tools\n{listed}".strip()))
    elif system:
        parts.append(_turn("system", system))
    parts += [_turn(str(message.get("role", "user")), _content(message)) for message in messages]
    return "".join(parts) + "<|im_start|>assistant\n"


def _turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _content(message: Message) -> str:
    text = "".join(f"<image {_digest(picture)}>" for picture in _pictures(message))
    text += content_text(message.get("content"))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        text += f'\n<tool_call>\n{{"name": "{function.get("name", "")}", "arguments": {arguments}}}\n</tool_call>'
    return text


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def has_images(messages: Iterable[Message]) -> bool:
    """Whether any message carries a picture, in any API's form."""
    return any(True for message in messages for _ in _pictures(message))


def _pictures(message: Message) -> Iterator[Any]:
    yield from message.get("images") or ()
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in {"image", "image_url", "input_image"}:
            yield part


def _digest(picture: Any) -> str:
    """What stands for a picture in a prompt: another picture, another prompt."""
    return hashlib.sha256(repr(picture).encode()).hexdigest()[:32]


def from_anthropic(body: dict[str, Any]) -> list[Message]:
    """Anthropic's messages as OpenAI's: the system text first, tool uses and results as their own kinds."""
    messages: list[Message] = []
    if system := content_text(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            messages += _anthropic_parts(str(message.get("role", "user")), content)
        else:
            messages.append(message)
    return messages


def _anthropic_parts(role: str, content: list[dict[str, Any]]) -> list[Message]:
    calls = [
        {"function": {"name": part.get("name", ""), "arguments": part.get("input", {})}}
        for part in content
        if part.get("type") == "tool_use"
    ]
    messages: list[Message] = [
        {"role": "tool", "content": content_text(part.get("content"))}
        for part in content
        if part.get("type") == "tool_result"
    ]
    rest = [part for part in content if part.get("type") not in {"tool_use", "tool_result"}]
    if rest or calls:
        messages.append({"role": role, "content": rest, **({"tool_calls": calls} if calls else {})})
    return messages


def from_responses(body: dict[str, Any]) -> list[Message]:
    """The input of OpenAI's Responses API as messages."""
    messages: list[Message] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = body["input"]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given:
        match item.get("type", "message"):
            case "function_call":
                call = {"function": {"name": item.get("name", ""), "arguments": item.get("arguments", "{}")}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            case "function_call_output":
                messages.append({"role": "tool", "content": str(item.get("output", ""))})
            case _:
                messages.append({"role": item.get("role", "user"), "content": item.get("content")})
    return messages


def tools_of(body: dict[str, Any]) -> list[Tool]:
    """The tools of a request, whatever API it came by."""
    tools = []
    for item in body.get("tools") or ():
        described = item.get("function", item) if isinstance(item, dict) else {}
        schema = described.get("parameters") or described.get("input_schema") or {}
        if described.get("name"):
            tools.append(Tool(str(described["name"]), schema))
    return tools


def tool_to_call(body: dict[str, Any], messages: list[Message]) -> Tool | None:
    """The tool that the emulated model calls: the wanted one, else the first while the user spoke last."""
    tools = tools_of(body)
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        name = choice.get("name") or (choice.get("function") or {}).get("name")
        wanted = [tool for tool in tools if tool.name == name]
        if wanted:
            return wanted[0]
        choice = {"any": "required"}.get(str(choice.get("type")), choice.get("type", "auto"))
    if not tools or choice == "none":
        return None
    asked = bool(messages) and messages[-1].get("role") == "user"
    return tools[0] if choice == "required" or asked else None


def _text_format(body: dict[str, Any]) -> Any:
    text = body.get("text")
    return text.get("format") if isinstance(text, dict) else None


def schema_of(body: dict[str, Any]) -> Any:
    """The JSON schema that the answer must fit: of OpenAI's response_format, Responses' text, llama.cpp or Ollama."""
    wanted = body.get("response_format") or _text_format(body) or body.get("format")
    if "json_schema" in body:
        return body["json_schema"]
    if wanted == "json":
        return {}
    if not isinstance(wanted, dict):
        return None
    if wanted.get("type") == "json_object":
        return wanted.get("schema") or {}
    if wanted.get("type") == "json_schema":
        return (wanted.get("json_schema") or wanted).get("schema") or {}
    return wanted if "format" in body and wanted else None
