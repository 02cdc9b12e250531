"""Structure of answers: keys in their order and kinds of values, for comparing engines that say different things."""

from typing import Any

import orjson


def shape(value: Any) -> Any:
    """A value without its content: keys in order, kinds of values, lists without repetitions."""
    if isinstance(value, dict):
        return [(name, shape(part)) for name, part in value.items()]
    if isinstance(value, list):
        return ("list", collapse([shape(part) for part in value]))
    if value is None or isinstance(value, bool):
        return repr(value) if value is None else "bool"
    return type(value).__name__


def collapse(items: list[Any]) -> list[Any]:
    """The items without repetitions next to each other."""
    return [item for place, item in enumerate(items) if place == 0 or item != items[place - 1]]


def events(body: bytes) -> list[tuple[str, Any]]:
    """A stream of events as (name, data); `[DONE]` stays text, comments are left out."""
    found = []
    for block in body.decode().split("\n\n"):
        name, data = "", None
        for line in block.splitlines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                text = line.removeprefix("data: ")
                data = text if text == "[DONE]" else orjson.loads(text)
        if data is not None:
            found.append((name, data))
    return found


def stream_shape(body: bytes) -> list[Any]:
    """The structure of a stream of events, without repetitions."""
    return collapse([(name, data if data == "[DONE]" else shape(data)) for name, data in events(body)])


def lines_shape(body: bytes) -> list[Any]:
    """The structure of a stream of JSON lines, without repetitions."""
    return collapse([shape(orjson.loads(line)) for line in body.splitlines() if line])
