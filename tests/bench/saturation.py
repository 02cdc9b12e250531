"""Measurements of a simulated fleet that has more to do than it can: closed loops, tenants, the most it can take."""

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import NamedTuple

import msgspec

from proxy.simulations import Router, Run, measured
from scheduler.simulation.conversations import Session, Turn
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.records import Record
from scheduler.simulation.runs import run
from scheduler.simulation.statistics import percentile
from scheduler.simulation.workloads import sessions

WARM_UP = 0.15
"""Share of the time that is left out: all clients begin at once, with empty caches."""
OUTPUT_WEIGHT = 2.0
"""An answer's token beside a prompt's that was computed, in what a tenant uses: the policy's default."""


class Throughput(NamedTuple):
    """Of a closed loop, while all its clients ask."""

    tokens_per_s: float
    imbalance: float
    """Busy slot time of the busiest card by the mean."""
    jain: float
    """Jain's index of what the tenants use, in weighted tokens per second; 1: all the same."""


def closed_loop(
    router: Router, seed: int, clients: Sequence[int], tokens: int, *, cards: int = 4, slots: int = 16
) -> Throughput:
    """So many clients at once, which ask again as soon as they are answered.

    Args:
        router: whose.
        seed: of the chats.
        clients: requests that are open at any time, of each tenant.
        tokens: that each client is answered at least.
        cards: engines.
        slots: of each.
    """
    return throughput(run(router, hungry(seed, clients, tokens), 0.0, slots, cards=cards), cards)


def throughput(records: Sequence[Record], cards: int) -> Throughput:
    """What the records of a closed loop show."""
    last_end_ms: dict[str, float] = defaultdict(float)
    for record in records:
        name = record.id.partition(".")[0]
        last_end_ms[name] = max(last_end_ms[name], record.ended_ms)
    end_ms = min(last_end_ms.values())
    start_ms = WARM_UP * end_ms
    produced, busy_ms, used = 0.0, [0.0] * cards, defaultdict[str, float](float)
    for record in records:
        answered = _within(record.first_token_ms, record.ended_ms, start_ms, end_ms) * record.output_tokens
        computed = _within(record.started_ms, record.first_token_ms, start_ms, end_ms)
        produced += answered
        busy_ms[record.backend] += max(0.0, min(record.ended_ms, end_ms) - max(record.started_ms, start_ms))
        fresh = record.prompt_tokens - record.cached_tokens
        used[record.tenant] += computed * fresh + OUTPUT_WEIGHT * answered
    squares = sum(value * value for value in used.values())
    return Throughput(
        produced / (end_ms - start_ms) * 1000,
        max(busy_ms) * cards / sum(busy_ms),
        sum(used.values()) ** 2 / (len(used) * squares),
    )


def hungry(seed: int, clients: Sequence[int], tokens: int) -> list[Session]:
    """Chat after chat for each client, without a pause: at least so many tokens of answers each."""
    chats = iter(sessions("chat", 10.0, seed, duration_s=60.0 + sum(clients) * (tokens + 1200) / 8000))
    owners = [tenant for tenant, count in enumerate(clients) for _ in range(count)]
    made = []
    for number, tenant in enumerate(owners):
        turns: list[Turn] = []
        answered = 0
        while answered < tokens:
            for turn in next(chats).turns:
                turns.append(turn._replace(think_ms=0.0))
                answered += turn.output_tokens
        made.append(Session(f"client-{number}", 10.0 * number, tuple(turns), f"tenant-{tenant}"))
    return made


class Neighbour(NamedTuple):
    """Waiting times of a light tenant, p95 in seconds."""

    beside_s: float
    alone_s: float


def greedy_neighbour(router: Router, seed: int, light_rate: float, duration_s: float) -> Neighbour:
    """The same chats of a light tenant, alone and beside another tenant that sends ten times as many."""
    random = Random(seed)
    both = [
        session._replace(tenant="light" if random.random() < 1 / 11 else "greedy")
        for session in sessions("chat", 11 * light_rate, seed, duration_s)
    ]
    light = [session for session in both if session.tenant == "light"]
    return Neighbour(_light_p95_s(run(router, both, 0.0)), _light_p95_s(run(router, light, 0.0)))


def goodput(
    router: Router,
    engine: EngineSettings,
    slots: int,
    seeds: int,
    duration_s: float,
    first: float,
    *,
    bound_s: float = 2.0,
    step: float = 1.25,
    precision: float = 1.01,
) -> float:
    """The largest rate of chats at which the p95 time to first token stays within a bound, as the mean over seeds.

    Args:
        router: whose.
        engine: of four cards.
        slots: of each.
        seeds: runs at each rate.
        duration_s: how long sessions arrive.
        first: sessions per second to begin the search at.
        bound_s: seconds.
        step: ratio between rates until one is found on each side.
        precision: ratio of the two rates that the result lies between.
    """
    low = high = 0.0
    rate = first
    while not low or not high or high / low > precision:
        wanted = Run(router=router, workload="chat", rate=rate, slots=slots, engine=engine, duration_s=duration_s)
        if _keeps(wanted, seeds, bound_s):
            low = rate
        else:
            high = rate
        if not high:
            rate = low * step
        elif not low:
            rate = high / step
        else:
            rate = sqrt(low * high)
        if not 0.02 < rate < 50:
            raise ValueError(f"no bound between 0.02 and 50 sessions per second for {router}")
    return sqrt(low * high)


def _keeps(wanted: Run, seeds: int, bound_s: float) -> bool:
    total_s = 0.0
    for seed in range(1, seeds + 1):
        total_s += measured(msgspec.structs.replace(wanted, seed=seed)).ttft_p95_s
        if total_s > bound_s * seeds:  # whatever the others say
            return False
    return True


def _light_p95_s(records: Sequence[Record]) -> float:
    waits = sorted(record.ttft_ms / 1000 for record in records if record.tenant == "light" and not record.rejected)
    return percentile(waits, 0.95)


def _within(first_ms: float, last_ms: float, start_ms: float, end_ms: float) -> float:
    """Share of a stretch of time that lies in the window."""
    if last_ms <= first_ms:
        return float(start_ms <= first_ms < end_ms)
    return max(0.0, min(last_ms, end_ms) - max(first_ms, start_ms)) / (last_ms - first_ms)
