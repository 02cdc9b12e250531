"""The routers to compare with, written anew from what is known of them, on their own views of the world.

All but `CentralQueue` bind early: a request goes to a backend when it arrives, and waits in that engine's own queue if
need be. Each tells its effective settings, for a figure without them means nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Protocol

from scheduler.simulation.approximate_tree import ApproximateTree
from scheduler.simulation.contents import Chain


class Load:
    """What a router counts by itself for one backend."""

    __slots__ = ("context_tokens", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.requests = 0
        """Sent and not answered."""
        self.prefill_tokens = 0
        """Prompt tokens that it was sent, believed to be uncached, of requests without a first token."""
        self.context_tokens = 0
        """Prompt tokens of all requests that it has."""


class Baseline(Protocol):
    """A router that binds early, or that says when it cannot yet."""

    settings: str

    def choose(self, prompt: Chain, loads: list[Load], now_ms: float) -> int | None:
        """The backend for a request; None: it waits in the router's own line until something has ended."""
        ...

    def believed_tokens(self) -> int:
        """Prompt tokens that the backend just chosen is believed to have cached."""
        ...


class RoundRobin:
    """Each backend in turn."""

    settings = "one after the other, whatever runs"

    def __init__(self, _slots: int) -> None:
        self._next = 0

    def choose(self, _prompt: Chain, loads: list[Load], _now_ms: float) -> int | None:
        """The next one."""
        chosen = self._next % len(loads)
        self._next += 1
        return chosen

    def believed_tokens(self) -> int:
        """Nothing is believed."""
        return 0


class LeastConnections:
    """The backend with the fewest open requests."""

    settings = "fewest open requests; equal ones in turn"

    def __init__(self, _slots: int) -> None:
        self._last_used: dict[int, int] = {}
        self._uses = 0

    def choose(self, _prompt: Chain, loads: list[Load], _now_ms: float) -> int | None:
        """The least loaded one, then the least recently used one."""
        chosen = min(range(len(loads)), key=lambda each: (loads[each].requests, self._last_used.get(each, 0)))
        self._uses += 1
        self._last_used[chosen] = self._uses
        return chosen

    def believed_tokens(self) -> int:
        """Nothing is believed."""
        return 0


class CentralQueue(LeastConnections):
    """One line before all backends; whatever falls free takes its head."""

    settings = "first come, first served, to the backend with most free slots; nothing waits at an engine"

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._slots = slots

    def choose(self, prompt: Chain, loads: list[Load], now_ms: float) -> int | None:
        """The least loaded one if it has a free slot."""
        if all(load.requests >= self._slots for load in loads):
            return None
        return super().choose(prompt, loads, now_ms)


class BoundedHash:
    """Consistent hashing with bounded loads (Mirrokni et al.), by client, as KubeAI's PrefixHash walks its ring."""

    settings = (
        "ring of 256 points a backend, keyed by the first message after the system's; load at most 1.25 x the mean"
    )

    def __init__(self, _slots: int) -> None:
        self._ring: list[tuple[int, int]] = []

    def choose(self, prompt: Chain, loads: list[Load], _now_ms: float) -> int | None:
        """The first backend from the key's point on that is not above the bound."""
        if not self._ring:
            points = [(hash((backend, point, 1)), backend) for backend in range(len(loads)) for point in range(256)]
            self._ring = sorted(points)
        bound = 1.25 * (sum(load.requests for load in loads) + 1) / len(loads)
        key = hash((prompt.hashes[min(1, len(prompt.hashes) - 1)], 2))
        start = next((index for index, (point, _) in enumerate(self._ring) if point >= key), 0)
        for step in range(len(self._ring)):
            backend = self._ring[(start + step) % len(self._ring)][1]
            if loads[backend].requests + 1 <= bound:
                return backend
        return min(range(len(loads)), key=lambda each: loads[each].requests)

    def believed_tokens(self) -> int:
        """Nothing is believed."""
        return 0


class CacheAware:
    """SGLang's `cache_aware`: balance by count when out of balance, else follow the longest match."""

    def __init__(self, threshold: float, absolute: int, relative: float) -> None:
        self._tree = ApproximateTree()
        self._threshold, self._absolute, self._relative = threshold, absolute, relative
        self._believed = 0
        self.settings = f"cache threshold {threshold}, balance abs {absolute}, rel {relative}; tree never evicted"

    def choose(self, prompt: Chain, loads: list[Load], now_ms: float) -> int | None:
        """Equal loads: the first of the list, as there."""
        counts = [load.requests for load in loads]
        most, least = max(counts), min(counts)
        out_of_balance = most - least > self._absolute and most > self._relative * least
        matched, backend = self._tree.deepest(prompt)
        if out_of_balance or backend is None or matched <= self._threshold * prompt.tokens:
            backend = counts.index(least)
        self._believed = self._tree.matches(prompt, len(loads), now_ms)[backend]
        self._tree.insert(prompt, backend, now_ms)
        return backend

    def believed_tokens(self) -> int:
        """By its tree."""
        return self._believed


class Scored(ABC):
    """A router that gives each backend a cost and takes the least; by its own tree of what it sent where."""

    settings = ""

    def __init__(self, slots: int, lifetime_ms: float = inf) -> None:
        self._slots = slots
        self._tree = ApproximateTree(lifetime_ms)
        self._believed = 0

    @abstractmethod
    def costs(self, prompt_tokens: int, matches: list[int], loads: list[Load]) -> list[tuple[float, ...]]:
        """One cost per backend: the least one wins, the first among equals."""

    def choose(self, prompt: Chain, loads: list[Load], now_ms: float) -> int | None:
        """The backend of least cost."""
        matches = self._tree.matches(prompt, len(loads), now_ms)
        costs = self.costs(prompt.tokens, matches, loads)
        chosen = costs.index(min(costs))
        self._believed = matches[chosen]
        self._tree.insert(prompt, chosen, now_ms)
        return chosen

    def believed_tokens(self) -> int:
        """By its tree."""
        return self._believed


class LMetric(Scored):
    """Uncached prompt tokens x requests there (arXiv 2603.15202)."""

    settings = "uncached tokens x (open requests + 1); then fewest requests, fewest uncached; tree never evicted"

    def costs(self, prompt_tokens: int, matches: list[int], loads: list[Load]) -> list[tuple[float, ...]]:
        """See the class."""
        return [
            (float((prompt_tokens - matched) * (load.requests + 1)), load.requests, prompt_tokens - matched)
            for matched, load in zip(matches, loads, strict=True)
        ]


class Dynamo(Scored):
    """NVIDIA Dynamo's KV router without events: prefill blocks to compute plus blocks that decode."""

    settings = "overlap weight 1, prefill scale 1, temperature 0, blocks of 16 tokens; tree without events, TTL 120 s"

    def __init__(self, slots: int) -> None:
        super().__init__(slots, 120_000.0)

    def costs(self, prompt_tokens: int, matches: list[int], loads: list[Load]) -> list[tuple[float, ...]]:
        """See the class."""
        return [
            (max(0.0, load.prefill_tokens + prompt_tokens - matched) / 16 + (load.context_tokens + prompt_tokens) / 16,)
            for matched, load in zip(matches, loads, strict=True)
        ]


class LlmD(Scored):
    """llm-d's default profile: prefix, queue and KV scores in [0, 1], added with weights, best one taken."""

    settings = "prefix 3, queue 2, kv-cache 2, max-score picker; its prefix index never evicted"

    KV_TOKENS = 131_072
    """KV pool that usage is told of: what an 8B model leaves on a card of 24 GB."""

    def costs(self, prompt_tokens: int, matches: list[int], loads: list[Load]) -> list[tuple[float, ...]]:
        """Negative scores."""
        queues = [max(0, load.requests - self._slots) for load in loads]
        most, least = max(queues), min(queues)
        costs: list[tuple[float, ...]] = []
        for matched, load, queue in zip(matches, loads, queues, strict=True):
            queue_score = 1.0 if most == least else (most - queue) / (most - least)
            kv_score = 1 - min(1.0, load.context_tokens / self.KV_TOKENS)
            costs.append((-(3 * matched / prompt_tokens + 2 * queue_score + 2 * kv_score),))
        return costs


BASELINES: dict[str, Callable[[int], Baseline]] = {
    "rr": RoundRobin,
    "leastconn": LeastConnections,
    "central": CentralQueue,
    "chwbl": BoundedHash,
    "sgl_default": lambda _slots: CacheAware(0.3, 64, 1.5),
    "sgl_abs2": lambda _slots: CacheAware(0.3, 2, 1.1),
    "dynamo": Dynamo,
    "llmd": LlmD,
    "lmetric": LMetric,
}
"""Name -> makes a router for backends of so many slots each."""
