"""Owns what every dialect's reader finds in a request body. Must not know any dialect."""

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.domain import Engine, Operation
from scheduler.runner import Runner


class Reading(msgspec.Struct):
    """What routing needs to know of a body."""

    model: str | None
    stream: bool = False
    seats: int = 1
    batch: str = ""
    """The field with a list of inputs, two or more, that may go to engines in pieces; each takes a seat."""
    operation: Operation | None = None
    """Where it is not the route's: LOAD, UNLOAD."""
    unsupported: dict[Engine, str] = {}
    image_bytes: int = 0
    max_output_tokens: int | None = None
    """The client's own limit of the answer; None: it set none."""
    runner: Runner | None = None
    """Options that it wants the model loaded with, as it wrote them; None: its API cannot say."""
    keep_alive_s: float | None = None
    """How long the model shall stay loaded; negative: for ever; None: not said."""


def names(text: str) -> tuple[str, ...]:
    """A table of names, written as one text for the sake of its readers."""
    return tuple(text.split())


def whole32(value: float) -> int:
    """A JSON number, or a boolean, as a llama-server reads it where it wants a whole one of 32 bits.

    Whole numbers of 64 bits lose their upper half. All others are read as floats: their fraction is dropped, and what
    does not fit becomes the smallest number there is.
    """
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return (value + 2**31) % 2**32 - 2**31
    return int(value) if -(2**31) - 1 < value < 2**31 else -(2**31)


def choices(fields: Mapping[str, Any]) -> int:
    """How many answers a llama-server gives per prompt, at least 1: `n_cmpl`, or else `n`.

    It takes numbers of all kinds, booleans too. What it refuses counts as 1.
    """
    given = fields.get("n_cmpl")
    if given is None:
        given = fields.get("n")
    if not isinstance(given, int | float):
        return 1
    return max(1, whole32(given))


LIMITS = ("max_completion_tokens", "max_tokens", "n_predict", "max_output_tokens")
"""Where a llama-server looks for the limit of an answer, on every route that generates."""


def output_limit(fields: Mapping[str, Any], *names: str) -> int | None:
    """The limit that a client sets to its answer: the first of the fields that is there. 0 and less mean none."""
    value = next((value for name in names or LIMITS if (value := fields.get(name)) is not None), None)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(value) if 1 <= value < 2**31 else None


def prompts(value: object) -> int:
    """How many prompts a field holds: texts or lists of tokens are one each, a list with a token in it is one."""
    if not isinstance(value, list) or any(isinstance(item, int | float) for item in value):
        return 1
    return max(1, len(value))


def embed_inputs(fields: Mapping[str, Any], *names: str) -> tuple[str, int]:
    """Of an embedding request: the field that holds several inputs ("" if it holds one), and how many there are.

    A llama-server takes the first of the fields that is there.
    """
    name = next((name for name in names if name in fields), "")
    count = prompts(fields.get(name))
    return (name, count) if count > 1 else ("", 1)


def image_bytes(messages: object) -> int:
    """Size of the images in OpenAI's or Anthropic's messages, as encoded."""
    total = 0
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, Mapping):
                total += _longest(part.get("image_url")) + _longest(part.get("source"))
    return total


def _longest(value: Any) -> int:
    if isinstance(value, Mapping):
        return max((len(text) for text in value.values() if isinstance(text, str)), default=0)
    return len(value) if isinstance(value, str) else 0
