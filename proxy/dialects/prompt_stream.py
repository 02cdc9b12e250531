"""Owns the byte stream that stands for a prompt: its marks, its parts, its hashes. Must not know dialects.

Marks are bytes that occur in no UTF-8 text, so no text can look like another structure.
"""

from array import array
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from scheduler.domain import BLOCK_BYTES, Prompt

MAX_BLOCKS: Final = 4096
"""1 MiB, about 260,000 tokens. What comes after is hashed into the ends only."""

MAX_ENDS: Final = 4096
"""Of a longer conversation, the first ends and that of the whole are kept."""

_PREFIX, _SUFFIX, _FILE, _RAW, _TOKENS, _TOOL, _MESSAGE, _TEXT, _MEDIA, _CALL, _DATA, _THOUGHT = (
    bytes([value]) for value in (0xC0, 0xC1, *range(0xF5, 0xFF))
)
"""What begins here. UTF-8 has none of these bytes."""

_TOKENS_END = b"\xff" * 4
"""Token -1: none."""

_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's other names."""

_HEADS = {role: _MESSAGE + role.encode() + _TEXT for role in ("system", "user", "assistant", "tool")}

_json = msgspec.json.Encoder(order="deterministic").encode

Calls = Iterable[tuple[object, object]]
"""Tool calls: name and arguments, these as an object or as JSON in a text."""


class PromptStream:
    """The canonical bytes as they grow, and where messages end.

    Nothing here raises for a value of the wrong type, which is for an engine to refuse; a `RecursionError` comes
    through, of values nested so deeply that they cannot be written again.
    """

    __slots__ = ("_data", "_ends")

    def __init__(self, model: str) -> None:
        self._data = bytearray(model.encode())
        self._ends: list[int] = []

    def tools(self, tools: object, schema: str = "parameters") -> None:
        """Tools that the model may call, bare or each under `function`; `schema` names the field of their arguments."""
        data = self._data
        for tool in tools if isinstance(tools, list) else ():
            inner = tool.get("function") if isinstance(tool, Mapping) else None
            told = inner if isinstance(inner, Mapping) else tool
            if isinstance(told, Mapping) and "name" in told:
                data += _TOOL + _text(told["name"]) + _TEXT + _text(told.get("description"))
                data += _DATA + _json(told.get(schema) or {})

    def say(
        self, role: object, content: object, thinking: object = None, images: object = None, calls: Calls = ()
    ) -> None:
        """Add a message.

        Args:
            role: in any case.
            content: a text or a list of parts.
            thinking: the model's, if it is a text.
            images: after the content, if it is a list: base64, data URIs or addresses.
            calls: what the model called.
        """
        data = self._data
        data += _HEADS.get(role) or _head(role) if isinstance(role, str) else _MESSAGE + _text(role) + _TEXT
        if thinking and isinstance(thinking, str):
            data += _THOUGHT + thinking.encode() + _TEXT
        if isinstance(content, str):
            data += content.encode()
        elif isinstance(content, list):
            _add_parts(data, content)
        else:
            data += _text(content)
        for image in images if isinstance(images, list) else ():
            data += _media(image)
        for name, arguments in calls:
            data += _CALL + _text(name) + _DATA + _arguments(arguments)
        self._ends.append(len(data))

    def template(self, text: str) -> None:
        """Add a template that comes with the request."""
        self._data += _FILE + text.encode()

    def file(self, name: object, text: object) -> None:
        """Add a file that a gap to fill does not lie in."""
        self._data += _FILE + _text(name) + _TEXT + _text(text)
        self._ends.append(len(self._data))

    def raw(self, prompt: object) -> bool:
        """Add a prompt without a template, one text or one list of tokens and texts; False: it is something else."""
        self._data += _RAW
        while isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        known = self.text(prompt)
        self._ends.append(len(self._data))
        return known

    def gap(self, before: Iterable[object], after: object) -> bool:
        """Add a gap to fill, in the order of nearly all models: what comes before it, then what comes after it.
        False: one of them is neither text nor tokens.
        """
        data = self._data
        data += _PREFIX
        known = all(self.text(part or "") for part in before)
        self._ends.append(len(data))
        data += _SUFFIX
        known &= self.text(after or "")
        self._ends.append(len(data))
        return known

    def text(self, value: object) -> bool:
        """Add a text, tokens (four bytes for each), both mixed, or llama-server's text with media beside it; no
        message ends here. False: it is something else, or several prompts.
        """
        data = self._data
        if isinstance(value, str):
            data += value.encode()
            return True
        if isinstance(value, list):
            return _add_tokens(data, value) or _add_mixed(data, value)
        if isinstance(value, Mapping) and isinstance(value.get("prompt_string"), str):
            media = value.get("multimodal_data")
            for each in media if isinstance(media, list) else ():
                data += _media(each)
            data += value["prompt_string"].encode()
            return True
        return False

    def hashed(self) -> Prompt | None:
        """The chain, or None of a stream without a message.

        Block k is xxh3-64 of the hash before it (8 bytes, little-endian; 0 at first) and its own bytes, an end the same
        of what follows the last full block before it.
        """
        data, ends = bytes(self._data), self._ends
        if not ends:
            return None
        if len(ends) > MAX_ENDS:
            ends = [*ends[: MAX_ENDS - 1], ends[-1]]
        blocks: list[int] = []
        state = 0
        chained = min(len(data) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES
        for start in range(0, chained, BLOCK_BYTES):
            state = xxh3_64_intdigest(state.to_bytes(8, "little") + data[start : start + BLOCK_BYTES])
            blocks.append(state)
        hashed: list[tuple[int, int]] = []
        beyond = (chained, state)
        view = memoryview(data)  # what lies beyond the blocks may be long: no copy more than needed
        for end in ends:
            count = end // BLOCK_BYTES
            if count <= MAX_BLOCKS:
                start, state = count * BLOCK_BYTES, (blocks[count - 1] if count else 0)
            else:  # each from the end before it: from the last block it would take the square of the prompt's length
                start, state = beyond
            state = xxh3_64_intdigest(state.to_bytes(8, "little") + view[start:end])
            if count > MAX_BLOCKS:
                beyond = (end, state)
            hashed.append((end, state))
        return Prompt(blocks=tuple(blocks), ends=tuple(hashed))


def _head(role: str) -> bytes:
    role = role.lower()
    return _MESSAGE + _ROLES.get(role, role).encode() + _TEXT


def _add_parts(data: bytearray, parts: list[Any]) -> None:
    """A content of several parts, joined as llama-server does: a line break between two texts, none beside an image."""
    start, after_media = len(data), False
    for part in parts:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(text, str):
            if len(data) > start and not after_media:
                data += b"\n"
            data += text.encode()
            after_media = False
        else:
            data += _media(part)
            after_media = True


def _media(value: object) -> bytes:
    """A digest of an image, or of whatever else is no text: of its base64 or its address, in whatever it is wrapped."""
    part = value
    for _ in range(2):  # a part with a source with data
        if isinstance(value, Mapping):
            names = ("image_url", "source", "input_audio", "url", "data")
            value = next((value[name] for name in names if value.get(name)), None)
    if not isinstance(value, str):
        return _MEDIA + xxh3_128_digest(_json(part))
    if value.startswith("data:"):
        value = value[value.find(",") + 1 :]
    return _MEDIA + xxh3_128_digest(value.replace("\n", "").replace("\r", "").encode())


def _arguments(value: object) -> bytes:
    """A call's arguments with sorted keys. Text that is no JSON stays as it is."""
    if not value:
        return b"{}"
    if isinstance(value, str):
        try:
            return _json(msgspec.json.decode(value))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return value.encode()
    return _json(value)


def _text(value: object) -> bytes:
    """Of a field that should be a text."""
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else _json(value)


def _add_tokens(data: bytearray, items: list[Any]) -> bool:
    try:
        tokens = array("i", items)
    except (TypeError, OverflowError):
        return False
    data += _TOKENS
    data += tokens.tobytes()
    return bool(tokens)


def _add_mixed(data: bytearray, items: list[Any]) -> bool:
    """Tokens with texts among them. A list without any token is several prompts."""
    if not any(isinstance(item, int) for item in items):
        return False
    for kind, row in groupby(items, type):
        if kind is str:
            data += "".join(row).encode()
        elif kind is int and _add_tokens(data, list(row)):
            data += _TOKENS_END
        else:
            return False
    return True
