"""Published traces as clients of a simulation. Takes rows as read from their files; reads no files itself.

Every row becomes a request at its own time, whatever became of the ones before it, except `of_texts`, where the next
turn of a session follows the answer of the one before.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from scheduler.domain import BLOCK_BYTES, Prompt
from scheduler.simulation.contents import Chain
from scheduler.simulation.conversations import BLOCK_TOKENS, BYTES_PER_TOKEN, Conversation, Session, Turn

MOONCAKE_BLOCK = 512
"""Tokens of one hash id of Mooncake's traces."""
MOONCAKE_TICK_MS = 3000.0
"""Their timestamps fall on this grid; arrivals are spread over it."""
_PRIME = (1 << 61) - 1
"""A Mersenne prime: text is hashed as a number modulo it, the same in every process."""


def of_mooncake(
    rows: Iterable[Mapping[str, object]], seed: int, *, stretch: float = 1.0, most_tokens: int = 24_000
) -> list[Session]:
    """Requests of a Mooncake trace: `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`.

    Args:
        rows: of the file, in any order.
        seed: of the spread over `MOONCAKE_TICK_MS`.
        stretch: time between arrivals is multiplied by it.
        most_tokens: requests with longer prompts are left out.

    Raises:
        KeyError, TypeError: a row is not of that shape.
    """
    random = Random(seed)  # noqa: S311 - a simulation, no secret
    made = []
    for number, row in enumerate(rows):
        at_ms = stretch * (_number(row, "timestamp") + random.uniform(0.0, MOONCAKE_TICK_MS))
        prompt_tokens = int(_number(row, "input_length"))
        names = row["hash_ids"]
        if not isinstance(names, Sequence):
            raise TypeError("hash_ids is not a list")
        if not 0 < prompt_tokens <= most_tokens:
            continue
        conversation = Conversation()
        for name in names:
            size = min(MOONCAKE_BLOCK, prompt_tokens - conversation.tokens)
            if size > 0:
                conversation.say(name, size)
        turn = conversation.turn(-1 - number, max(1, int(_number(row, "output_length"))))
        made.append(Session(f"mooncake-{number}", at_ms, (turn,), "mooncake"))
    return sorted(made, key=_arrival)


def of_lengths(rows: Iterable[tuple[float, int, int]]) -> list[Session]:
    """Requests of which only (seconds, prompt tokens, answer tokens) are known, as in Azure's traces: none shares any.

    Rows without prompt are left out.
    """
    made = []
    for number, (at_s, prompt_tokens, output_tokens) in enumerate(rows):
        if prompt_tokens > 0:
            conversation = Conversation()
            conversation.say(2 * number, prompt_tokens)
            turn = conversation.turn(2 * number + 1, max(1, output_tokens))
            made.append(Session(f"lengths-{number}", at_s * 1000, (turn,), "lengths"))
    return sorted(made, key=_arrival)


def of_texts(sessions: Mapping[str, Sequence[tuple[float, str, str]]]) -> list[Session]:
    """Sessions of real text: (milliseconds, whole prompt, answer) of each turn, as in LMCache's agent traces.

    What a client did between two requests, the engine's time included, is taken as the pause after the answer. Prompts
    are compared in blocks of `BLOCK_BYTES`; of an answer nothing is found again, since templates wrap it.
    """
    made = []
    for name, rows in sessions.items():
        turns: list[Turn] = []
        before_ms = rows[0][0] if rows else 0.0
        for at_ms, text, answer in rows:
            turns.append(_of_text(text, max(1, len(answer.encode()) // BYTES_PER_TOKEN), at_ms - before_ms))
            before_ms = at_ms
        if turns:
            made.append(Session(name, rows[0][0], tuple(turns), "texts"))
    return sorted(made, key=_arrival)


def _of_text(text: str, output_tokens: int, think_ms: float) -> Turn:
    raw = text.encode() or b" "
    chained, blocks = 1, []
    for start in range(0, len(raw), BLOCK_BYTES):
        chained = (chained << 2048 | int.from_bytes(raw[start : start + BLOCK_BYTES], "little")) % _PRIME
        blocks.append(chained)
    prompt_tokens = max(1, len(raw) // BYTES_PER_TOKEN)
    full = len(raw) // BLOCK_BYTES
    prompt = Prompt(tuple(blocks[:full]), ((BYTES_PER_TOKEN * prompt_tokens, chained),))
    places = [BLOCK_TOKENS * number for number in range(1, full + 1)]
    hashes = blocks[:full]
    if full * BLOCK_TOKENS < prompt_tokens:
        places.append(prompt_tokens)
        hashes.append(chained)
    answer = hash((chained, prompt_tokens, output_tokens))
    content = Chain((*places, prompt_tokens + output_tokens), (*hashes, answer), prompt_tokens + output_tokens)
    return Turn(prompt, content, prompt_tokens, output_tokens, max(0.0, think_ms))


def _number(row: Mapping[str, object], key: str) -> float:
    value = row[key]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{key} is not a number")
    return float(value)


def _arrival(session: Session) -> float:
    return session.arrives_ms
