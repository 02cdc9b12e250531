"""Tokens and pseudo text. Owns the tokenizer and what an emulated model says; must not know slots, time or HTTP.

A token is a special mark, a line break or other white space, or up to four bytes of a word with the blank before it.
An id carries its own bytes, so any text can be taken apart and put together again without a vocabulary.
"""

import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Sequence

END_OF_TURN = 2
_SPECIAL = {b"<|endoftext|>": 0, b"<|im_start|>": 1, b"<|im_end|>": END_OF_TURN, b"<repo_name>": 3}
_SPECIAL_BY_ID = {token: piece for piece, token in _SPECIAL.items()}
_MARKS = re.compile(b"(" + b"|".join(re.escape(piece) for piece in _SPECIAL) + b")")
_PIECES = re.compile(rb" ?[^\s]{1,4}|\s")

# Every word with its blank is one token; 256 of them, so that one pseudo-random byte picks one.
_SYLLABLES = ("ba", "do", "ke", "li", "mu", "na", "po", "ri", "sa", "te", "vu", "wo", "ya", "zi", "fe", "go")
WORDS = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)


def tokenize(text: str) -> list[int]:
    """Take a text apart; `detokenize` gives it back."""
    tokens: list[int] = []
    for part in _MARKS.split(text.encode()):
        if (mark := _SPECIAL.get(part)) is not None:
            tokens.append(mark)
        else:
            tokens += [int.from_bytes(b"\x01" + piece) for piece in _PIECES.findall(part)]
    return tokens


def piece_bytes(token: int) -> bytes:
    """The bytes of one token; an id that `tokenize` never makes has none."""
    if (special := _SPECIAL_BY_ID.get(token)) is not None:
        return special
    raw = token.to_bytes(8) if 0 < token < 1 << 63 else b""
    raw = raw.lstrip(b"\0")
    return raw[1:] if raw.startswith(b"\x01") else b""


def detokenize(tokens: Iterable[int]) -> str:
    """Put a text together; broken UTF-8 is replaced."""
    return b"".join(piece_bytes(token) for token in tokens).decode(errors="replace")


def noise(seed: int, tokens: Sequence[int], count: int) -> bytes:
    """`count` pseudo-random bytes that depend on the seed and on every token, the same on every machine."""
    digest = hashlib.shake_256(seed.to_bytes(8, signed=True) if -(1 << 63) <= seed < 1 << 63 else b"")
    digest.update(array("q", tokens).tobytes())
    return digest.digest(count)


def pseudo_text(random_bytes: bytes) -> list[str]:
    """One word per byte, as pieces to be streamed: the first begins a sentence, the others carry their blank."""
    pieces = [" " + WORDS[byte] for byte in random_bytes]
    if pieces:
        pieces[0] = pieces[0].strip().capitalize()
    return pieces


def embedding(tokens: Sequence[int], size: int) -> list[float]:
    """A vector of length 1: texts that share tokens point the same way."""
    total = [0.0] * size
    for token in tokens:
        raw = hashlib.shake_256(piece_bytes(token)).digest(size)
        total = [value + byte - 127.5 for value, byte in zip(total, raw, strict=True)]
    length = math.sqrt(sum(value * value for value in total)) or 1.0
    return [round(value / length, 8) for value in total]
