"""Prompts made of messages, as hashes and as literal tokens: 4 bytes are exactly one token, so 64 tokens one block.

Two messages with different names differ in their first token.
"""

from scheduler.domain import BLOCK_BYTES, Prompt

Message = tuple[int, int]
"""(name, tokens)"""
Tokens = list[tuple[int, int]]

BYTES_PER_TOKEN = 4
TOKENS_PER_BYTE = 1 / BYTES_PER_TOKEN


def tokens_of(messages: list[Message]) -> Tokens:
    return [(name, place) for name, length in messages for place in range(length)]


def prompt_of(messages: list[Message]) -> Prompt:
    tokens = tokens_of(messages)
    step = BLOCK_BYTES // BYTES_PER_TOKEN
    blocks, ends, chained = [], [], 0
    for at in range(step, len(tokens) + 1, step):
        chained = hash((chained, *tokens[at - step : at]))
        blocks.append(chained)
    at = 0
    for _, length in messages:
        at += length
        done = at // step
        ends.append((at * BYTES_PER_TOKEN, hash((blocks[done - 1] if done else 0, *tokens[done * step : at], "end"))))
    return Prompt(tuple(blocks), tuple(ends))


def common_tokens(one: Tokens, other: Tokens) -> int:
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
