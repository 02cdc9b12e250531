import pytest

from scheduler.held import Held, Use, overlap, use
from tests.scheduler.prompts import TOKENS_PER_BYTE, Message, prompt_of

SYSTEM, USER, ANSWER, NEXT, OTHER = (1, 100), (2, 50), (3, 60), (4, 10), (5, 40)
PROMPT = prompt_of([SYSTEM, USER])


def held(
    answer: int = 0, *, tokens: int | None = None, messages: list[Message] | None = None, content: int = 1
) -> Held:
    prompt = prompt_of(messages or [SYSTEM, USER])
    length = prompt.size_bytes // 4
    whole = length + answer if tokens is None else tokens
    return Held(prompt, prompt.size_bytes, length, whole, answer, content)


@pytest.mark.parametrize(
    ("what", "messages", "common_tokens", "end", "expected"),
    [
        (held(59), [SYSTEM, USER, ANSWER, NEXT], 150, 1, Use(209, 209, 10)),  # the conversation goes on
        (held(59), [SYSTEM, USER, ANSWER], 150, 1, Use(209, 209, 1)),  # up to the answer
        (held(59), [SYSTEM, USER], 150, 1, Use(150, 149, 1)),  # the same again
        (held(59), [SYSTEM, OTHER], 100, 0, Use(100, 100, 40)),
        (held(59), [(1, 140)], 128, -1, Use(128, 128, 12)),  # blocks only
        (held(900), [SYSTEM, USER, ANSWER, NEXT], 150, 1, Use(150, 150, 70)),  # reasoning was left out
        (held(152), [SYSTEM, USER, ANSWER, (4, 200)], 150, 1, Use(302, 302, 200)),  # a short message of many tokens
        (held(59, tokens=120), [SYSTEM, USER, ANSWER, NEXT], 150, 1, Use(120, 120, 99)),  # believed in part
        (held(59, tokens=120), [SYSTEM, OTHER], 100, 0, Use(100, 100, 40)),
        (held(152), [SYSTEM, USER, ANSWER, (4, 1)], 150, 1, Use(211, 210, 1)),  # never more than the prompt has
    ],
)
def test_use(what: Held, messages: list[Message], common_tokens: int, end: int, expected: Use) -> None:
    prompt = prompt_of(messages)

    assert use(what, prompt, prompt.size_bytes, 4 * common_tokens, end, TOKENS_PER_BYTE) == expected


def test_a_prompt_has_its_own_tokens_per_byte() -> None:
    dense = held()._replace(prompt_tokens=300, tokens=300)
    prompt = prompt_of([SYSTEM, OTHER])

    assert use(dense, prompt, prompt.size_bytes, 400, 0, TOKENS_PER_BYTE) == Use(200, 200, 40)


@pytest.mark.parametrize(
    ("one", "other", "common_tokens", "end", "expected"),
    [
        (held(59), held(59), 150, 1, 209),  # copies
        (held(59), held(59, content=2), 150, 1, 150),  # two answers to the same prompt
        (held(59), held(7, messages=[SYSTEM, USER, ANSWER, NEXT], content=2), 150, 1, 209),  # the other goes on
        (held(7, messages=[SYSTEM, USER, ANSWER, NEXT], content=2), held(59), 150, 1, 209),
        (held(59), held(59, messages=[SYSTEM, OTHER], content=2), 100, 0, 100),
        (held(59), held(59, messages=[SYSTEM, OTHER], tokens=80, content=2), 100, 0, 80),
        (held(59), held(59, tokens=180), 150, 1, 180),
    ],
)
def test_overlap(one: Held, other: Held, common_tokens: int, end: int, expected: int) -> None:
    assert overlap(one, other, 4 * common_tokens, end) == expected
