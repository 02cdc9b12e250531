"""Reading JSON and durations as Go does, with Go's words for what is wrong. Must not know routes."""

import re
from typing import Any

import orjson

from proxy.emulated.ollama_heads import OllamaError

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_GO_NAMES = {str: "string", bool: "bool", list: "array", dict: "object", int: "number", float: "number"}


def read_object(body: bytes, struct: str) -> dict[str, Any]:
    """The body as an object.

    Args:
        body: as received.
        struct: the Go type that Ollama decodes into, for the error.

    Raises:
        OllamaError: 400 in Go's words.
    """
    if not body:
        raise OllamaError(400, "missing request body", early=True)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = error.doc.rstrip()
        if error.pos >= len(text):
            raise OllamaError(400, "unexpected EOF", early=True) from None
        character = error.doc[error.pos]
        message = f"invalid character '{character}' looking for beginning of value"
        raise OllamaError(400, message, early=True) from None
    if not isinstance(value, dict):
        name = _GO_NAMES.get(type(value), "null")
        raise OllamaError(400, f"json: cannot unmarshal {name} into Go value of type {struct}", early=True)
    return value


def expect(body: dict[str, Any], struct: str, types: dict[str, tuple[type | tuple[type, ...], str]]) -> None:
    """Check the types of fields.

    Args:
        body: the request.
        struct: the Go type's short name.
        types: by field: the Python type, and the Go type that the error names.

    Raises:
        OllamaError: 400 in Go's words.
    """
    for field, (wanted, go_type) in types.items():
        value = body.get(field)
        if value is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
            name = _GO_NAMES.get(type(value), "null")
            message = f"json: cannot unmarshal {name} into Go struct field {struct}.{field} of type {go_type}"
            raise OllamaError(400, message, early=True)


def duration_s(value: Any) -> float | None:
    """`keep_alive` in seconds: a number is seconds, a text is a Go duration; negative: for ever; None: not given.

    Raises:
        OllamaError: 400 in Go's words.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value)
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        unit_missing = re.fullmatch(r"\d+\.?\d*", rest)
        problem = "missing unit in duration" if unit_missing else "invalid duration"
        raise OllamaError(400, f'time: {problem} "{text}"', early=True)
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)


_INTEGERS = frozenset(
    {
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "draft_num_predict",
        "num_keep",
        "seed",
        "num_predict",
        "top_k",
        "repeat_last_n",
    }
)
_FLOATS = frozenset(
    {"top_p", "min_p", "typical_p", "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty"}
)


def read_options(options: Any) -> dict[str, Any]:
    """The `options` of a request; unknown ones are ignored.

    Raises:
        OllamaError: 500 (Ollama's own choice) if one has the wrong type.
    """
    given: dict[str, Any] = {name: value for name, value in (options or {}).items() if value is not None}
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _INTEGERS and not number:
            raise OllamaError(500, f'option "{name}" must be of type integer')
        if name in _FLOATS and not number:
            raise OllamaError(500, f'option "{name}" must be of type float32')
        if name == "stop" and not isinstance(value, list):
            raise OllamaError(500, f'option "{name}" must be of type array')
    return given
