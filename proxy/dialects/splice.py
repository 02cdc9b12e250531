"""Owns adding fields to a JSON object without touching the rest of its bytes. Knows no field names."""

from collections.abc import Mapping
from typing import Any

import msgspec


def splice(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON object with fields added at its end.

    Of two equal keys the last one counts, for llama-server (nlohmann::json) as for Go: what is added wins over what
    the client wrote. The body must be a JSON object, which `read_call` made sure of.
    """
    if not fields:
        return body
    added = msgspec.json.encode(fields)[1:]
    head = body.rstrip()[:-1].rstrip()
    return head + (added if head.endswith(b"{") else b"," + added)
