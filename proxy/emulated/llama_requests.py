"""What a request to llama-server asks for, checked as llama-server checks it. Must not know how it is answered."""

import json
from typing import Any

import msgspec
import orjson

from proxy.emulated.engine import over_context
from proxy.emulated.jobs import Problem
from proxy.emulated.options import Options
from proxy.emulated.prompts import (
    DEFAULT_SYSTEM,
    Message,
    from_anthropic,
    from_responses,
    has_images,
    render_chat,
    schema_of,
    tool_to_call,
)
from proxy.emulated.replies import Wish
from proxy.emulated.text import tokenize

_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict", "max_output_tokens")
_NUMBERS = (*_LIMITS, "temperature", "top_p", "top_k", "min_p", "seed", "n", "n_cmpl", "id_slot")
_UNSEEDED = 4294967295


class Refused(Exception):
    """The request is answered with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Asked(msgspec.Struct):
    """One request, understood."""

    prompts: list[list[int]]
    texts: list[str]
    wish: Wish
    body: dict[str, Any]
    stream: bool
    most: int
    choices: int = 1
    params: dict[str, Any] = {}


def refuse(message: str, status: int = 400, kind: str = "invalid_request_error") -> Refused:
    """An error in the engine's words."""
    return Refused(Problem(status, kind, message))


def read_json(body: bytes) -> dict[str, Any]:
    """The body as an object.

    Raises:
        Refused: it is none; worded like llama-server's parser (place and kind of the error, not every detail).
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        seen = error.doc[: error.pos + 1].splitlines()[-1][-20:] if error.doc else ""
        raise refuse(
            f"[json.exception.parse_error.101] parse error at line {error.lineno}, column {error.colno}: "
            f"syntax error while parsing value - {error.msg}; last read: '{seen}'"
        ) from None
    if not isinstance(value, dict):
        raise refuse(
            f"[json.exception.type_error.305] cannot use operator[] with a string argument with {_name(value)}"
        )
    return value


def _name(value: Any) -> str:
    names = {str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "number")


def _int32(value: float) -> int:
    """A number as the engine's parser cuts it; those of no 64 bits become the smallest."""
    return (int(value) + 2**31) % 2**32 - 2**31 if -(2**63) <= value < 2**63 else -(2**31)


def _check_numbers(body: dict[str, Any]) -> None:
    for field in _NUMBERS:
        value = body.get(field)
        if value is not None and not isinstance(value, int | float):
            raise refuse(f"Field '{field}': [json.exception.type_error.302] type must be number, but is {_name(value)}")


def _choices(body: dict[str, Any], slots: int) -> int:
    field = "n" if body.get("n_cmpl") is None else "n_cmpl"
    count = 1 if body.get(field) is None else _int32(body[field])
    if not 1 <= count <= slots:
        raise refuse(f"Field '{field}': Value must be between 1 <= value <= {slots}, but got {count}")
    return count


def _most(body: dict[str, Any]) -> int:
    for field in _LIMITS:
        if body.get(field) is not None:
            most = _int32(body[field])
            if most < -1:
                raise refuse(f"Field '{field}': Value must be between -1 <= value <= {2**31 - 1}, but got {most}")
            return most
    return -1


def _stops(given: Any) -> tuple[str, ...]:
    """A stop word or a list of them; anything else counts as none."""
    if isinstance(given, str):
        return (given,)
    words = [word for word in given if word is not None] if isinstance(given, list) else []
    if wrong := [word for word in words if not isinstance(word, str)]:
        kind = _name(wrong[0])
        raise refuse(f"Field 'stop': [json.exception.type_error.302] type must be string, but is {kind}")
    return tuple(words)


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    problem = ""
    if not isinstance(tools, list):
        problem = f"Expected 'tools' to be an array, got {orjson.dumps(tools).decode()}"
    elif untyped := [tool for tool in tools if not isinstance(tool, dict) or "type" not in tool]:
        problem = f"Missing tool type: {orjson.dumps(untyped[0]).decode()}"
    if problem:
        shown = json.dumps(tools, indent=2, ensure_ascii=False)
        raise refuse(f"Failed to parse tools: {problem}; tools = {shown}", 500, "server_error")


def _wish(body: dict[str, Any], options: Options, messages: list[Message] | None) -> Wish:
    seed = body.get("seed")
    tools = messages is not None and "tools" in options.models[0].capabilities
    return Wish(
        seed=options.seed if seed in {None, -1, _UNSEEDED} else int(seed),
        length=options.answer_tokens,
        stop=_stops(body.get("stop", body.get("stop_sequences"))),
        schema=schema_of(body),
        tool=tool_to_call(body, messages or []) if tools else None,
        endless=bool(body.get("ignore_eos")),
    )


def _asked(body: dict[str, Any], options: Options, prompts: list[list[int]], messages: list[Message] | None) -> Asked:
    _check_numbers(body)
    choices = _choices(body, options.slots)
    most = _most(body)
    return Asked(
        prompts=prompts,
        texts=[],
        wish=_wish(body, options, messages),
        body=body,
        stream=body.get("stream") is True,
        most=most,
        choices=choices,
        params=body | {"most": most, "stop": list(_stops(body.get("stop")))},
    )


def chat_messages(body: dict[str, Any], *, status: int = 400) -> list[Message]:
    """The messages of a chat request.

    Raises:
        Refused: there are none, they are no list, or they hold pictures.
    """
    kind = "invalid_request_error" if status == 400 else "server_error"
    messages = body.get("messages")
    if messages is None:
        raise refuse("'messages' is required", status, kind)
    if not isinstance(messages, list):
        raise refuse("Expected 'messages' to be an array", status, kind)
    if not all(isinstance(message, dict) for message in messages):
        raise refuse("All non-assistant messages must contain 'content'")
    if has_images(messages):
        raise refuse(
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            500,
            "server_error",
        )
    return messages


def read_chat(body: dict[str, Any], options: Options) -> Asked:
    """A request to /v1/chat/completions."""
    messages = chat_messages(body)
    _check_tools(body.get("tools"))
    return _from_messages(body, options, messages)


def read_messages(body: dict[str, Any], options: Options) -> Asked:
    """A request to /v1/messages; errors are llama-server's, not Anthropic's. It has one answer, names no slot."""
    chat_messages(body, status=500)
    tools = body.get("tools")
    known = {**body, "id_slot": None, "n": None, "n_cmpl": None, "tools": tools if isinstance(tools, list) else None}
    return _from_messages(known, options, from_anthropic(known))


def read_responses(body: dict[str, Any], options: Options) -> Asked:
    """A request to /v1/responses."""
    if body.get("input") is None:
        raise refuse("'input' is required")
    if not isinstance(body["input"], str | list):
        raise refuse("'input' must be a string or array of objects")
    if isinstance(body["input"], list) and not all(isinstance(item, dict) for item in body["input"]):
        raise refuse("Cannot determine type of 'item'")
    if not isinstance(body.get("tools") or [], list):
        raise refuse("'tools' must be an array of objects")
    return _from_messages(body, options, chat_messages({"messages": from_responses(body)}))


def _from_messages(body: dict[str, Any], options: Options, messages: list[Message]) -> Asked:
    tools = (body.get("tools") or []) if "tools" in options.models[0].capabilities else []
    text = render_chat(messages, tools, DEFAULT_SYSTEM)
    asked = _asked(body, options, [tokenize(text)], messages)
    asked.params["chat_format"] = "peg-native"
    asked.texts = [text]
    return asked


def read_prompt(body: dict[str, Any], options: Options) -> Asked:
    """A request to /completion or /v1/completions: a text, token ids, a mixture, or a list of these."""
    if "prompt" not in body:
        raise refuse("[json.exception.out_of_range.403] key 'prompt' not found")
    given = body["prompt"]
    if given == []:
        raise refuse('"prompt" must not be empty')
    several = isinstance(given, list) and bool(given) and not any(type(part) is int for part in given)
    parts = given if several else [given]
    asked = _asked(body, options, [_tokens(part) for part in parts], None)
    asked.texts = [part if isinstance(part, str) else "" for part in parts]
    return asked


def _tokens(part: Any) -> list[int]:
    if isinstance(part, str):
        return tokenize(part)
    if isinstance(part, dict) and isinstance(part.get("prompt_string"), str):
        return tokenize(part["prompt_string"])
    if isinstance(part, list) and any(isinstance(item, int) for item in part):
        return [token for item in part for token in ([item] if isinstance(item, int) else tokenize(str(item)))]
    raise refuse(
        '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of '
        "mixed strings & tokens."
    )


def read_infill(body: dict[str, Any], options: Options) -> Asked:
    """A request to /infill."""
    for field in ("input_prefix", "input_suffix"):
        if field not in body:
            raise refuse(f'"{field}" is required')
    return read_prompt({**body, "prompt": f"{body['input_suffix']}\n{body['input_prefix']}"}, options)


def read_inputs(body: dict[str, Any], options: Options) -> list[list[int]]:
    """The texts of an embedding request.

    Raises:
        Refused: none is given, or one does not fit.
    """
    given = body.get("input", body.get("content"))
    if given is None:
        raise refuse('"input" or "content" must be provided')
    if given == []:
        raise refuse('"input" must not be empty')
    several = isinstance(given, list) and not any(type(part) is int for part in given)
    prompts = [_tokens(part) for part in (given if several else [given])]
    for prompt in prompts:
        if not prompt:
            raise refuse("Input content cannot be empty")
        if len(prompt) >= options.context:
            raise Refused(over_context(len(prompt), options.context))
    return prompts
