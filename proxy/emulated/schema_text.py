"""JSON that fits a schema, for structured output and tool calls. Owns the picking of values; must not know HTTP."""

import json
from collections.abc import Iterator
from typing import Any

from proxy.emulated.text import WORDS

_MAX_DEPTH = 12


def json_text(schema: Any, random_bytes: bytes) -> str:
    """A JSON text that fits the schema (the parts of JSON Schema that models are asked for); `{}` gets an object."""
    return json.dumps(_value(schema, _endless(random_bytes), schema, 0), ensure_ascii=False)


def json_object(schema: Any, random_bytes: bytes) -> dict[str, Any]:
    """The same as an object, for the arguments of a tool call."""
    value = _value(schema, _endless(random_bytes), schema, 0)
    return value if isinstance(value, dict) else {}


def _endless(random_bytes: bytes) -> Iterator[int]:
    while True:
        yield from random_bytes or b"\0"


def _value(schema: Any, numbers: Iterator[int], root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _value(_resolve(schema["$ref"], root), numbers, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if options := schema.get("enum"):
        return options[next(numbers) % len(options)]
    for key in ("anyOf", "oneOf", "allOf"):
        if branches := schema.get(key):
            return _value(branches[0], numbers, root, depth + 1)
    return _typed(schema, numbers, root, depth)


def _typed(schema: dict[str, Any], numbers: Iterator[int], root: Any, depth: int) -> Any:
    kind = schema.get("type") or "object"
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    match kind:
        case "object":
            properties = schema.get("properties")
            if not isinstance(properties, dict):
                return {} if "type" in schema or depth else {"name": WORDS[next(numbers)], "size": next(numbers)}
            return {name: _value(part, numbers, root, depth + 1) for name, part in properties.items()}
        case "array":
            count = max(1, int(schema.get("minItems", 2)))
            return [_value(schema.get("items", {"type": "string"}), numbers, root, depth + 1) for _ in range(count)]
        case "string":
            text = f"{WORDS[next(numbers)]} {WORDS[next(numbers)]}"
            return text.ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 64))]
        case "integer" | "number":
            return _number(schema, next(numbers), whole=kind == "integer")
        case "boolean":
            return next(numbers) % 2 == 0
        case _:
            return None


def _number(schema: dict[str, Any], number: int, *, whole: bool) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0 if "maximum" not in schema else schema["maximum"] - 9))
    high = schema.get("maximum", low + 255)
    value = low + (number % (int(high - low) + 1))
    if value == schema.get("exclusiveMinimum"):
        value += 1
    return int(value) if whole else float(value)


def _resolve(reference: str, root: Any) -> Any:
    place = root
    for name in filter(None, reference.lstrip("#").split("/")):
        place = place.get(name) if isinstance(place, dict) else None
    return place
