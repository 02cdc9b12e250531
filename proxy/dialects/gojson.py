"""Owns reading a JSON body the way Go's encoding/json does, with its words for what is wrong. Knows no API."""

import json
import re
from typing import Any, NoReturn

import msgspec

from proxy.dialects.errors import ClientError

_CONTEXTS = (
    ("Expecting property name", "looking for beginning of object key string"),
    ("Expecting ':'", "after object key"),
    ("Invalid control character", "in string literal"),
    ("Invalid \\escape", "in string escape code"),
    ("Extra data", "after top-level value"),
    ("Illegal trailing comma", "looking for beginning of value"),
    ("Expecting value", "looking for beginning of value"),
)
"""What the standard library's decoder says, and what Go says to the same."""

_WORDS = ((bool, "bool"), (str, "string"), ((int, float), "number"), (list, "array"), (dict, "object"))


_SURROGATES = re.compile("[\ud800-\udfff]")


def decode(body: bytes) -> Any:
    """Decode one JSON value. Invalid UTF-8 and lone surrogates become U+FFFD, as in Go.

    Raises:
        ClientError: 400 in Go's words: `unexpected EOF`, `invalid character 'x' looking for beginning of value`, ….
            An empty body is `missing request body`, which is what Ollama makes of Go's `EOF`.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    text = body.decode("utf-8", "replace")
    if not text.strip(" \t\r\n"):
        raise ClientError(400, "missing request body")
    try:
        value = json.loads(text, parse_constant=_constant)
        # What JavaScript sends after cutting a text inside a surrogate pair: lone surrogates cannot be encoded again.
        return msgspec.json.decode(_SURROGATES.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except json.JSONDecodeError as error:
        raise ClientError(400, _words(text, error)) from None
    except RecursionError:
        raise ClientError(400, "exceeded max depth") from None


def _constant(name: str) -> NoReturn:
    raise ClientError(400, f"invalid character '{name[0]}' looking for beginning of value")


def _words(text: str, error: json.JSONDecodeError) -> str:
    if error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip(" \t\r\n")):
        return "unexpected EOF"
    char = text[error.pos]
    shown = {"'": r"'\''", "\n": r"'\n'", "\r": r"'\r'", "\t": r"'\t'"}.get(char, f"'{char}'")
    for start, words in _CONTEXTS:
        if error.msg.startswith(start):
            return f"invalid character {shown} {words}"
    inside_object = _innermost(text[: error.pos]) == "{"
    return f"invalid character {shown} after {'object key:value pair' if inside_object else 'array element'}"


def _innermost(text: str) -> str:
    """The bracket that is still open at the end of a prefix of a JSON text."""
    stack: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            stack.append(char)
        elif char in "}]" and stack:
            stack.pop()
    return stack[-1] if stack else ""


def word(value: object) -> str:
    """Go's name for the kind of a decoded JSON value."""
    return next((name for kinds, name in _WORDS if isinstance(value, kinds)), "null")


def fold(fields: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Keys in lower case, the last of several spellings winning, as Go matches them; and whether all were so already.

    Go folds by Unicode's simple rules: besides the ASCII letters, U+017F matches `s` and U+212A matches `k`.
    """
    if all(key.islower() and key.isascii() for key in fields):
        return fields, True
    folded: dict[str, Any] = {}
    exact = True
    for key, value in fields.items():
        name = key.lower().replace("\u017f", "s")
        exact = exact and name == key
        folded[name] = value
    return folded, exact


def mismatch(value: object, struct: str, field: str, go_type: str) -> ClientError:
    """Go's complaint about a field of the wrong type."""
    shown = word(value)
    if shown == "number" and go_type == "int":
        shown = f"number {msgspec.json.encode(value).decode()}"
    return ClientError(400, f"json: cannot unmarshal {shown} into Go struct field {struct}.{field} of type {go_type}")


def quote(text: str) -> str:
    """Text in double quotes as Go's %q shows it (for the printable text that errors quote)."""
    return json.dumps(text, ensure_ascii=False)
