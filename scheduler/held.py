"""What one slot, or one entry of the host cache, holds by our account, and how much of it a prompt can use.

Blocks and message ends are counted in bytes, KV in tokens; a prompt's own ratio of the two translates. The answer's
text is not known here, only its length: where a prompt goes on after the very message that was answered, the answer
is taken to be what follows.
"""

from math import ceil
from typing import NamedTuple

from scheduler.domain import Prompt
from scheduler.picture import HeldPicture

STRIPPED = 2.0
"""An answer with more than this many times the tokens of the message that stands for it now was not sent back whole:
reasoning was left out, which comes first. Wide enough for text that takes twice the usual tokens per byte."""

STRIPPED_SLACK = 32
"""Tokens of an answer that never show in its message: end marks, tags, the words of an empty reasoning part."""


class Held(NamedTuple):
    """A prompt, and the answer to it if there was one, in KV."""

    prompt: Prompt
    prompt_bytes: int
    """Of the whole prompt; at least 1."""
    prompt_tokens: int
    """The same in tokens; at least 1."""
    tokens: int
    """That are there for sure, counted from the start: prompt and answer, or less."""
    answer_tokens: int
    """Of the answer, as far as it was kept."""
    content: int
    """Equal for copies of one and the same sequence."""
    counted: bool = False
    """The engine told both lengths; otherwise they are estimates."""


def pictured(held: Held) -> HeldPicture:
    """The same for another proxy."""
    return HeldPicture(held.prompt, held.prompt_tokens, held.tokens, held.answer_tokens, held.content, held.counted)


def of_picture(told: HeldPicture) -> Held:
    """What another proxy told."""
    size = max(1, told.prompt.size_bytes)
    return Held(told.prompt, size, told.prompt_tokens, told.tokens, told.answer_tokens, told.content, told.counted)


_new = tuple.__new__
"""Makes a named tuple in a third of the time: `use` runs for each slot, backend and waiting request."""


class Use(NamedTuple):
    """What a prompt gets from something held, in tokens."""

    common: int
    """The longest common prefix."""
    reused: int
    """Of it what need not be computed: at least one token of a prompt always is."""
    fresh: int
    """To be computed."""


def use(held: Held, prompt: Prompt, prompt_bytes: int, common_bytes: int, end: int, tokens_per_byte: float) -> Use:
    """What a prompt gets from something held.

    Args:
        held: the sequence.
        prompt: the new prompt.
        prompt_bytes: its size.
        common_bytes: what both prompts have in common, from `PrefixIndex.matches`.
        end: index in `prompt.ends` of the message end there, or -1.
        tokens_per_byte: of text of which nothing better is known.
    """
    rest_bytes = prompt_bytes - common_bytes
    fresh = ceil(rest_bytes * tokens_per_byte)
    common = common_bytes * held.prompt_tokens // held.prompt_bytes
    length = common + (fresh or 1)
    if common_bytes == held.prompt_bytes:
        if not rest_bytes:
            length = common
        elif end >= 0 and held.answer_tokens:
            message_bytes = prompt.ends[end + 1][0] - common_bytes
            if held.answer_tokens <= STRIPPED * message_bytes * tokens_per_byte + STRIPPED_SLACK:
                common += held.answer_tokens
                fresh = ceil((rest_bytes - message_bytes) * tokens_per_byte)
    if common < length and common <= held.tokens:  # nearly always
        return _new(Use, (common, common, fresh or 1))
    sure = min(common, held.tokens)
    return Use(min(sure, length), max(0, min(sure, length - 1)), max(1, fresh + common - sure))


def overlap(one: Held, other: Held, common_bytes: int, end: int) -> int:
    """Tokens of the longest common prefix of two sequences, answers included.

    Args:
        one: the sequence whose prompt was looked for.
        other: one that has something in common with it.
        common_bytes: what both prompts have in common, from `PrefixIndex.matches`.
        end: index in `one.prompt.ends` of the message end there, or -1.
    """
    most = min(one.tokens, other.tokens)
    if one.content == other.content:
        return most
    common = common_bytes * one.prompt_tokens // one.prompt_bytes
    if end >= 0 and one.prompt_bytes != other.prompt_bytes:
        for held in (one, other):
            if held.prompt_bytes == common_bytes:  # the other one goes on after its answer
                common = held.prompt_tokens + held.answer_tokens
    return min(common, most)
