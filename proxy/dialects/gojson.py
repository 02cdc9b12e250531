"""Owns reading a JSON body the way Go's encoding/json does, with its words for what is wrong. Knows no API."""

import json
import math
import re
from typing import Any, Final, NoReturn

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
    ("Unexpected UTF-8 BOM", "looking for beginning of value"),
)
"""What the standard library's decoder says, and what Go says to the same."""

_WORDS = ((bool, "bool"), (str, "string"), ((int, float), "number"), (list, "array"), (dict, "object"))


WORDED_BYTES: Final = 64 * 1024
"""Larger bodies get no words of Go's for what is wrong: finding them takes a look at each character, in the event loop
that all other requests share."""

MAX_MENDED: Final = 10_000
"""Lone surrogates that are forgiven in one body. Real clients send a few; each costs time."""

_SHOWN_CHARS = 40
"""Of a number that is too large."""

_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|[c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
"""An escape of half a pair without the other half, where no backslash is itself escaped."""


class NumberTooLarge(ClientError):
    """A number that no 64-bit float holds."""

    def __init__(self, number: str) -> None:
        self.number = number if len(number) <= _SHOWN_CHARS else f"{number[:_SHOWN_CHARS]}…"
        super().__init__(400, f"json: cannot unmarshal number {self.number} into Go value of type float64")


def decode(body: bytes) -> Any:
    """Decode one JSON value. Invalid UTF-8 and lone surrogates become U+FFFD, as in Go.

    Raises:
        ClientError: 400 in Go's words: `unexpected EOF`, `invalid character 'x' looking for beginning of value`, ….
            An empty body is `missing request body`, which is what Ollama makes of Go's `EOF`. Bodies larger than
            `WORDED_BYTES` get plainer words.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError):
        pass
    except RecursionError:
        raise too_deep() from None
    if not body.strip(b" \t\r\n"):
        raise ClientError(400, "missing request body")
    try:
        return msgspec.json.decode(mended(body))
    except (msgspec.DecodeError, ValueError) as error:
        reason = f"invalid JSON: {error}"
    except RecursionError:
        raise too_deep() from None
    raise ClientError(400, reason) if len(body) > WORDED_BYTES else _complaint(body.decode("utf-8", "replace"), reason)


def too_deep() -> ClientError:
    """Go's complaint about too many brackets inside each other."""
    return ClientError(400, "exceeded max depth")


def mended(body: bytes) -> bytes:
    """The body with U+FFFD for what is no UTF-8, and for the lone surrogates that JavaScript sends after cutting a text
    inside a pair: they cannot be encoded again.
    """
    text = body.decode("utf-8", "replace").encode()
    if (b"\\ud" not in text and b"\\uD" not in text) or b"\x00" in text:
        return text
    # Escaped backslashes step aside; what stands in for them occurs in no JSON text.
    plain = _LONE_SURROGATE.sub(rb"\\ufffd", text.replace(rb"\\", b"\x00\x00"), count=MAX_MENDED)
    return plain.replace(b"\x00\x00", rb"\\")


def _complaint(text: str, otherwise: str) -> ClientError:
    """What is wrong with a small text, in Go's words; `otherwise` where they fail."""
    try:
        json.loads(text, parse_constant=_constant, parse_int=_number, parse_float=_number)
    except json.JSONDecodeError as error:
        return ClientError(400, _words(text, error))
    except ClientError as error:
        return error
    except RecursionError:
        return too_deep()
    return ClientError(400, otherwise)


def _constant(name: str) -> NoReturn:
    raise ClientError(400, f"invalid character '{name[0]}' looking for beginning of value")


def _number(text: str) -> None:
    if math.isinf(float(text)):
        raise NumberTooLarge(text)


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
        name = folded_key(key)
        exact = exact and name == key
        folded[name] = value
    return folded, exact


def folded_key(key: str) -> str:
    """How a key is compared with the names of fields, see `fold`."""
    return key.lower().replace("\u017f", "s")


def mismatch(value: object, struct: str, field: str, go_type: str) -> ClientError:
    """Go's complaint about a field of the wrong type."""
    shown = word(value)
    if shown == "number" and go_type == "int":
        shown = f"number {msgspec.json.encode(value).decode()}"
    return ClientError(400, f"json: cannot unmarshal {shown} into Go struct field {struct}.{field} of type {go_type}")


def quote(text: str) -> str:
    """Text in double quotes as Go's %q shows it (for the printable text that errors quote)."""
    return json.dumps(text, ensure_ascii=False)
