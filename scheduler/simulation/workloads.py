"""The clients of a simulation: seeded generators of sessions. The same seed gives the same clients to every router.

The first four are those that the project's figures are told for; arrivals of sessions are Poisson. Lengths named
"about n" are lognormal with median n and sigma 0.8.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, count
from math import exp
from random import Random

from scheduler.simulation.conversations import Conversation, Session, Turn

SIGMA = 0.8
SHORTEST_MESSAGE = 8
SHORTEST_ANSWER, LONGEST_ANSWER = 4, 1200
MAX_TURNS = 21
MEAN_FURTHER_TURNS = 4.0
THINK_MS = 12_000.0

Starts = list[float]
Generator = Callable[[Random, float, float], list[Session]]
"""Makes the sessions of a workload from a source of chance, sessions per second and seconds."""


def sessions(workload: str, rate: float, seed: int, duration_s: float = 900.0) -> list[Session]:
    """The clients of a named workload, by arrival.

    Args:
        workload: a key of `WORKLOADS`.
        rate: sessions that arrive per second, on average.
        seed: of all chance.
        duration_s: how long sessions arrive; they end when they end.

    Raises:
        KeyError: there is no such workload.
    """
    made = WORKLOADS[workload](Random(seed), rate, duration_s)  # noqa: S311 - a simulation, no secret
    made.sort(key=lambda session: session.arrives_ms)
    return made


def chat(random: Random, rate: float, duration_s: float) -> list[Session]:
    """12 system prompts of 600-2500 tokens, Zipf 1.1; about 90 asked and 220 answered a turn, thinking 12 s between."""
    names = count(1)
    systems = _documents(random, names, 12, 600, 2500)
    weights = _zipf(12, 1.1)
    made = []
    for number, start_ms in enumerate(_poisson(random, rate, duration_s)):
        conversation = random.choices(systems, cum_weights=weights)[0].copy()
        made.append(Session(f"chat-{number}", start_ms, _talk(random, names, conversation), "chat"))
    return made


def rag(random: Random, rate: float, duration_s: float) -> list[Session]:
    """40 documents of 3000-7000 tokens, Zipf 0.9; one question of about 120 tokens, answered with about 120."""
    names = count(1)
    documents = _documents(random, names, 40, 3000, 7000)
    return _questions(random, names, documents, _zipf(40, 0.9), _poisson(random, rate, duration_s), 120, 120, "rag")


def hot(random: Random, rate: float, duration_s: float) -> list[Session]:
    """One prompt of 4000 tokens for all; one question of about 80 tokens, answered with about 150."""
    names = count(1)
    documents = _documents(random, names, 1, 4000, 4000)
    return _questions(random, names, documents, [1.0], _poisson(random, rate, duration_s), 80, 150, "hot")


def unique(random: Random, rate: float, duration_s: float) -> list[Session]:
    """4000 prompts of 200-3000 tokens, drawn evenly; one question of about 120 tokens, answered with about 220."""
    names = count(1)
    documents = _documents(random, names, 4000, 200, 3000)
    evenly = [float(number) for number in range(1, 4001)]
    return _questions(random, names, documents, evenly, _poisson(random, rate, duration_s), 120, 220, "unique")


def agent(random: Random, rate: float, duration_s: float) -> list[Session]:
    """Tool loops: 6 prompts of 3000-6000 tokens, 5-30 turns of about 400 tokens and calls of about 80, 1.5 s apart."""
    names = count(1)
    systems = _documents(random, names, 6, 3000, 6000)
    made = []
    for number, start_ms in enumerate(_poisson(random, rate, duration_s)):
        conversation = random.choice(systems).copy()
        turns: list[Turn] = []
        for turn in range(random.randint(5, 30)):
            conversation.say(next(names), _about(random, 400, SHORTEST_MESSAGE, 4000))
            think_ms = random.expovariate(1 / 1500.0) if turn else 0.0
            turns.append(conversation.turn(next(names), _answer(random, 80), think_ms))
        made.append(Session(f"agent-{number}", start_ms, tuple(turns), "agent"))
    return made


def burst(random: Random, rate: float, duration_s: float) -> list[Session]:
    """As `chat`, and once a minute 100 single questions about one document at the same moment."""
    made = chat(random, rate, duration_s)
    names = count(1 << 40)
    documents = _documents(random, names, 10, 1000, 3000)
    for minute in range(1, int(duration_s / 60)):
        document = [documents[minute % len(documents)]]
        made += _questions(random, names, document, [1.0], [minute * 60_000.0] * 100, 80, 100, f"burst-{minute}")
    return made


def greedy(random: Random, rate: float, duration_s: float) -> list[Session]:
    """As `chat`, and in the middle third a second tenant that sends ten times as many sessions."""
    made = chat(random, rate, duration_s)
    names = count(1 << 40)
    documents = _documents(random, names, 20, 500, 2500)
    starts = [duration_s / 3 * 1000 + start_ms for start_ms in _poisson(random, 10 * rate, duration_s / 3)]
    evenly = [float(number) for number in range(1, 21)]
    return made + _questions(random, names, documents, evenly, starts, 90, 220, "greedy")


WORKLOADS: dict[str, Generator] = {
    "chat": chat,
    "rag": rag,
    "hot": hot,
    "unique": unique,
    "agent": agent,
    "burst": burst,
    "greedy": greedy,
}


def _talk(random: Random, names: "count[int]", conversation: Conversation) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for turn in range(min(MAX_TURNS, 1 + int(random.expovariate(1 / MEAN_FURTHER_TURNS)))):
        conversation.say(next(names), _about(random, 90, SHORTEST_MESSAGE))
        think_ms = random.expovariate(1 / THINK_MS) if turn else 0.0
        turns.append(conversation.turn(next(names), _answer(random, 220), think_ms))
    return tuple(turns)


def _questions(
    random: Random,
    names: "count[int]",
    documents: Sequence[Conversation],
    cumulative: Sequence[float],
    starts: Starts,
    asked: int,
    answered: int,
    name: str,
) -> list[Session]:
    """Sessions of one turn each: a question about a document, drawn by cumulative weights."""
    made = []
    for number, start_ms in enumerate(starts):
        conversation = random.choices(documents, cum_weights=cumulative)[0].copy()
        conversation.say(next(names), _about(random, asked, SHORTEST_MESSAGE))
        turn = conversation.turn(next(names), _answer(random, answered))
        made.append(Session(f"{name}-{number}", start_ms, (turn,), name.partition("-")[0]))
    return made


def _documents(random: Random, names: "count[int]", number: int, shortest: int, longest: int) -> list[Conversation]:
    made = []
    for _ in range(number):
        conversation = Conversation()
        conversation.say(next(names), random.randint(shortest, longest))
        made.append(conversation)
    return made


def _poisson(random: Random, rate: float, duration_s: float) -> Starts:
    """Times in milliseconds."""
    starts: Starts = []
    at_s = random.expovariate(rate)
    while at_s < duration_s:
        starts.append(at_s * 1000)
        at_s += random.expovariate(rate)
    return starts


def _zipf(number: int, exponent: float) -> list[float]:
    """Cumulative weights 1 / rank ^ exponent."""
    return list(accumulate([(rank + 1) ** -exponent for rank in range(number)]))


def _about(random: Random, median: float, shortest: int, longest: int = 1_000_000) -> int:
    return min(longest, max(shortest, int(median * exp(SIGMA * random.gauss(0.0, 1.0)))))


def _answer(random: Random, median: float) -> int:
    return _about(random, median, SHORTEST_ANSWER, LONGEST_ANSWER)
