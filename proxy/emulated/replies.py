"""What a model answers to a prompt, decided whole before its first token. Must not know slots, time or HTTP."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from proxy.emulated.schema_text import json_object, json_text
from proxy.emulated.text import END_OF_TURN, noise, piece_bytes, pseudo_text, tokenize


class Stop(StrEnum):
    """Why a sequence ended, in llama-server's words."""

    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"


class ToolUse(msgspec.Struct, frozen=True):
    """A tool that the model calls."""

    name: str
    arguments: dict[str, Any]


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    name: str
    schema: dict[str, Any]


class Reply(msgspec.Struct):
    """The tokens of an answer; `pieces[i]` is the text that token i makes visible."""

    tokens: list[int]
    pieces: list[str]
    ending: Stop
    stopping_word: str = ""
    tool: ToolUse | None = None


class Wish(msgspec.Struct, frozen=True):
    """What shapes an answer besides its prompt."""

    seed: int = 0
    length: tuple[int, int] = (128, 128)
    """Tokens after which the model ends by itself: from, to (both included)."""
    stop: tuple[str, ...] = ()
    schema: Any = None
    """A JSON schema that the answer must fit; None: free text."""
    tool: Tool | None = None
    """The tool to call; None: answer with text."""
    endless: bool = False
    """ignore_eos: only a limit ends the answer."""


def plan_reply(prompt: Sequence[int], wish: Wish, most: int) -> Reply:
    """The answer to a prompt: the same for the same prompt and wish, on every machine.

    Args:
        prompt: token ids.
        wish: what shapes the answer.
        most: tokens that can be used at all; a longer answer is planned only so far.
    """
    random_bytes = noise(wish.seed, prompt, 64)
    if wish.tool is not None:
        return _tool_reply(wish.tool, random_bytes)
    if wish.schema is not None:
        text = json_text(wish.schema, random_bytes)
    else:
        low, high = wish.length
        length = low + int.from_bytes(random_bytes[:4]) % (high - low + 1)
        text = "".join(pseudo_text(noise(wish.seed, prompt, most if wish.endless else min(length, most))))
    tokens = tokenize(text)
    reply = Reply(tokens=tokens, pieces=_pieces(tokens), ending=Stop.EOS)
    if not _cut_at_stop_word(reply, wish.stop):
        reply.tokens.append(END_OF_TURN)
        reply.pieces.append("")
    return reply


def _pieces(tokens: Sequence[int]) -> list[str]:
    """One piece per token; the bytes of a character that is split between tokens show with its last one."""
    pieces, pending = [], b""
    for token in tokens:
        pending += piece_bytes(token)
        try:
            pieces.append(pending.decode())
            pending = b""
        except UnicodeDecodeError:
            pieces.append("")
    return pieces


def _cut_at_stop_word(reply: Reply, words: tuple[str, ...]) -> bool:
    """End the reply with the token that completes the first stop word; what belongs to the word is not shown."""
    text = "".join(reply.pieces)
    found = [(place, word) for word in words if word and (place := text.find(word)) >= 0]
    if not found:
        return False
    place, word = min(found)
    shown = 0
    for index, piece in enumerate(reply.pieces):
        end = shown + len(piece)
        if end > place:
            reply.pieces[index] = piece[: max(0, place - shown)]
        shown = end
        if shown >= place + len(word):
            del reply.tokens[index + 1 :], reply.pieces[index + 1 :]
            break
    reply.ending, reply.stopping_word = Stop.WORD, word
    return True


def _tool_reply(tool: Tool, random_bytes: bytes) -> Reply:
    """The call as a model writes it: an opening and a closing that nobody sees, and the arguments between."""
    use = ToolUse(tool.name, json_object(tool.schema, random_bytes))
    opening = tokenize(f'<tool_call>\n{{"name": "{tool.name}", "arguments": ')
    closing = tokenize("}\n</tool_call>")
    arguments = tokenize(json.dumps(use.arguments, ensure_ascii=False))
    tokens = [*opening, *arguments, *closing, END_OF_TURN]
    shown = [*[""] * len(opening), *_pieces(arguments), *[""] * (len(closing) + 1)]
    return Reply(tokens=tokens, pieces=shown, ending=Stop.EOS, tool=use)
