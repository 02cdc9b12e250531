"""Owns Go's duration strings (`1h30m`), as `keep_alive` takes them. Knows nothing of what they are used for."""

import re

from proxy.dialects.errors import ClientError
from proxy.dialects.gojson import quote

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_FOR_EVER_S = 1e18
"""Larger numbers of seconds mean no more than this, and may not fit a float."""
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]*)")


def parse(text: str) -> float:
    """Seconds of a Go duration string; negative ones included.

    Raises:
        ClientError: 400 with the words of Go's `time.ParseDuration`.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    total_s, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            break
        number, unit = part.groups()
        if not unit:
            raise ClientError(400, f"time: missing unit in duration {quote(text)}")
        if unit not in _UNITS_S:
            raise ClientError(400, f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        total_s += float(number) * _UNITS_S[unit]
        position = part.end()
    if not rest or position < len(rest):
        raise ClientError(400, f"time: invalid duration {quote(text)}")
    return -total_s if text.startswith("-") else total_s


def keep_alive_s(value: object) -> float | None:
    """Seconds that a model shall stay loaded: None where nothing was asked for, -1 for "for ever" (negative).

    Ollama takes a number of seconds or a Go duration string.

    Raises:
        ClientError: 400 as Ollama words it.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        kinds = {bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}
        raise ClientError(400, f"Unsupported type: '{kinds.get(type(value), 'unknown')}'")
    seconds = parse(value) if isinstance(value, str) else float(max(-1.0, min(value, _FOR_EVER_S)))
    return -1.0 if seconds < 0 else seconds
