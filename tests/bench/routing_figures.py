"""The figures that routing is judged by: each names the measurements it needs, and makes one number of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import msgspec

from proxy.simulations import ENGINES, Router, Run, measured
from scheduler.policy import Policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.statistics import Figures, interval
from tests.bench import decisions
from tests.bench.saturation import Neighbour, Throughput, closed_loop, goodput, greedy_neighbour

OURS = msgspec.structs.replace(Policy(), max_waiting=1_000_000)
"""The defaults. The baselines' lines have no end, so ours has none either: whoever refuses, waits less."""

Calls = Mapping[Hashable, Callable[[], Any]]
Results = Mapping[Hashable, Any]


class Scale(NamedTuple):
    """How much of everything is run."""

    seeds: int = 5
    duration_s: float = 900.0
    goodput_seeds: int = 2
    loop_tokens: int = 10_000
    """Of answers per client of a closed loop."""
    precision: float = 1.01
    """Of a goodput."""
    bound_s: float = 2.0
    """The p95 time to first token that a goodput keeps."""
    backends: int = 64
    waiting: int = 1000

    @property
    def seed_numbers(self) -> range:
        return range(1, self.seeds + 1)


QUICK = Scale(1, 12.0, 1, 100, 1.3, 0.15, 4, 20)
"""Runs everything; means nothing."""


class Value(NamedTuple):
    """What came of a figure."""

    value: float
    half_width: float | None = None
    """Of its 95 % confidence interval over seeds."""
    ours: str = ""
    theirs: str = ""
    shipped: str = ""
    """The same two with engines as shipped, and their ratio."""


@dataclass(frozen=True)
class Figure(ABC):
    """One number, and what it shall be."""

    key: str
    aim: float | None
    at_least: bool = field(default=False, kw_only=True)

    @abstractmethod
    def calls(self, scale: Scale) -> Calls:
        """What it needs: name -> measurement, equal ones of different figures under the same name."""

    @abstractmethod
    def value(self, results: Results, scale: Scale) -> Value:
        """Made of the results of its own calls, and those of others."""


@dataclass(frozen=True)
class Ratio(Figure):
    """A figure of ours over the best of some baselines', each as a mean over seeds."""

    workload: str
    rate: float
    against: tuple[str, ...]
    of: str
    """A field of `Figures`."""
    slots: int = 16
    engine: str = "tuned"
    beside_shipped: bool = False
    """Show what comes of it with engines as shipped, too."""

    def calls(self, scale: Scale) -> Calls:
        routers: list[Router] = [OURS, *self.against]
        engines = [self.engine, "as-shipped"] if self.beside_shipped else [self.engine]
        runs = [run for engine in engines for router in routers for run in self._runs(router, engine, scale)]
        return {run: partial(measured, run) for run in runs}

    def value(self, results: Results, scale: Scale) -> Value:
        ours, theirs, name = self._sides(results, self.engine, scale)
        value, half_width = ratio(ours, theirs)
        shipped = ""
        if self.beside_shipped:
            ours_shipped, theirs_shipped, _ = self._sides(results, "as-shipped", scale)
            first, second = mean(ours_shipped), mean(theirs_shipped)
            shipped = f"{first:.3g} / {second:.3g} s = {first / second:.2f}"
        return Value(value, half_width, f"{mean(ours):.3f} s", f"{mean(theirs):.3f} s {name}", shipped)

    def _sides(self, results: Results, engine: str, scale: Scale) -> tuple[list[float], list[float], str]:
        ours = self._values(results, OURS, engine, scale)
        sides = [(self._values(results, name, engine, scale), name) for name in self.against]
        theirs, name = min(sides, key=lambda side: mean(side[0]))
        return ours, theirs, name

    def _values(self, results: Results, router: Router, engine: str, scale: Scale) -> list[float]:
        figures: list[Figures] = [results[run] for run in self._runs(router, engine, scale)]
        return [getattr(each, self.of) for each in figures]

    def _runs(self, router: Router, engine: str, scale: Scale) -> Iterator[Run]:
        settings = ENGINES[engine]
        for seed in scale.seed_numbers:
            yield Run(
                router=router,
                workload=self.workload,
                rate=self.rate,
                seed=seed,
                slots=settings.slots if engine == "as-shipped" else self.slots,
                engine=settings,
                duration_s=scale.duration_s,
            )


@dataclass(frozen=True)
class Goodput(Figure):
    """The most that we can take, over the most that least-connections can."""

    slots: int
    first: float
    theirs_shipped: bool = False

    def calls(self, scale: Scale) -> Calls:
        return {
            name: partial(
                goodput,
                router,
                ENGINES[engine],
                slots,
                scale.goodput_seeds,
                scale.duration_s,
                first,
                precision=scale.precision,
                bound_s=scale.bound_s,
            )
            for name, router, engine, slots, first in self._sides()
        }

    def value(self, results: Results, scale: Scale) -> Value:
        ours, theirs = (results[name] for name, *_ in self._sides())
        return Value(ours / theirs, None, f"{ours:.2f}/s", f"{theirs:.2f}/s leastconn")

    def _sides(self) -> list[tuple[str, Router, str, int, float]]:
        theirs = ("as-shipped", 4, 0.4) if self.theirs_shipped else ("tuned", self.slots, self.first)
        return [
            (f"goodput of ours, {self.slots} slots", OURS, "tuned", self.slots, self.first),
            (f"goodput of leastconn, {theirs[1]} slots, {theirs[0]}", "leastconn", *theirs),
        ]


@dataclass(frozen=True)
class Burst(Figure):
    """100 chats at once on four cards; on one card a quarter of them, and all of them: the better of these counts."""

    CLIENTS: ClassVar = 100

    def calls(self, scale: Scale) -> Calls:
        return {
            ("burst", cards, clients, seed): partial(
                closed_loop, OURS, seed, (clients,), scale.loop_tokens, cards=cards
            )
            for cards, clients in ((4, self.CLIENTS), (1, self.CLIENTS // 4), (1, self.CLIENTS))
            for seed in scale.seed_numbers
        }

    def value(self, results: Results, scale: Scale) -> Value:
        def of(cards: int, clients: int) -> list[Throughput]:
            return [results["burst", cards, clients, seed] for seed in scale.seed_numbers]

        four = of(4, self.CLIENTS)
        if self.key == "burst_imbalance":
            return over([each.imbalance for each in four])
        quarter, whole = of(1, self.CLIENTS // 4), of(1, self.CLIENTS)
        one = max([[each.tokens_per_s for each in loop] for loop in (quarter, whole)], key=mean)
        tokens = [each.tokens_per_s for each in four]
        value, half_width = ratio(tokens, one)
        return Value(value, half_width, f"{mean(tokens):.0f} tokens/s", f"{mean(one):.0f} tokens/s, one card")


@dataclass(frozen=True)
class Greedy(Figure):
    """A light tenant's p95 beside one that sends ten times as many chats, over its value alone."""

    light_rate: float

    def calls(self, scale: Scale) -> Calls:
        return {
            ("greedy", router, self.light_rate, seed): partial(
                greedy_neighbour, router, seed, self.light_rate, max(40.0, scale.duration_s)
            )
            for router in (OURS, "leastconn")
            for seed in scale.seed_numbers
        }

    def value(self, results: Results, scale: Scale) -> Value:
        def of(router: Router) -> tuple[list[float], list[float]]:
            each: list[Neighbour] = [results["greedy", router, self.light_rate, seed] for seed in scale.seed_numbers]
            return [one.beside_s for one in each], [one.alone_s for one in each]

        beside, alone = of(OURS)
        theirs = of("leastconn")
        value, half_width = ratio(beside, alone)
        return Value(
            value,
            half_width,
            f"{mean(beside):.3f} s, alone {mean(alone):.3f}",
            f"{ratio(*theirs)[0]:.1f} leastconn",
        )


@dataclass(frozen=True)
class Jain(Figure):
    """Tenants that all want more than they get, with 20, 40, 60 and 80 requests open at any time."""

    TENANTS: ClassVar = (20, 40, 60, 80)

    def calls(self, scale: Scale) -> Calls:
        return {
            ("jain", router, seed): partial(closed_loop, router, seed, self.TENANTS, scale.loop_tokens // 2)
            for router in (OURS, "leastconn")
            for seed in scale.seed_numbers
        }

    def value(self, results: Results, scale: Scale) -> Value:
        ours, theirs = (
            over([results["jain", router, seed].jain for seed in scale.seed_numbers]) for router in (OURS, "leastconn")
        )
        return ours._replace(theirs=f"{theirs.value:.3f} leastconn")


@dataclass(frozen=True)
class Decide(Figure):
    """Milliseconds of one decision."""

    field: str

    def calls(self, scale: Scale) -> Calls:
        return {"decide": partial(decisions.measure, scale.backends, scale.waiting)}

    def value(self, results: Results, scale: Scale) -> Value:
        return Value(
            getattr(results["decide"], self.field), None, f"{scale.backends} backends, {scale.waiting} waiting"
        )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def over(values: Sequence[float]) -> Value:
    """A mean with its interval."""
    return Value(*msgspec.structs.astuple(interval(values)))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float | None]:
    """The ratio of two means over the same seeds, and half its 95 % interval (a ratio estimator's, linearised)."""
    value = mean(ours) / mean(theirs)
    rest = interval([our - value * their for our, their in zip(ours, theirs, strict=True)])
    return value, None if rest.half_width is None else rest.half_width / mean(theirs)


def pair(
    prefix: str, workload: str, rate: float, against: str, aims: tuple[float | None, float | None], **more: Any
) -> list[Ratio]:
    """The two ratios that most is told in: mean and p99."""
    names = {"leastconn": "least_connections", "rr": "round_robin"}
    rivals = tuple(BASELINES) if against == "best" else (against,)
    return [
        Ratio(f"{prefix}_{short}_vs_{names.get(against, against)}", aim, workload, rate, rivals, field, **more)
        for short, field, aim in zip(("mean", "p99"), ("ttft_mean_s", "ttft_p99_s"), aims, strict=True)
        if aim is not None
    ]


FIGURES: tuple[Figure, ...] = (
    *pair("chat", "chat", 1.2, "leastconn", (0.15, 0.20), beside_shipped=True),
    *pair("chat", "chat", 1.2, "lmetric", (0.45, 0.35), beside_shipped=True),
    *pair("overload", "chat", 1.4, "leastconn", (0.19, 0.46), beside_shipped=True),
    *pair("chat32", "chat", 1.8, "leastconn", (0.10, 0.50), slots=32, beside_shipped=True),
    *pair("rag", "rag", 4.0, "leastconn", (0.18, 0.48), beside_shipped=True),
    *pair("rag", "rag", 4.0, "lmetric", (0.56, 0.61), beside_shipped=True),
    *pair("rag25", "rag", 2.5, "lmetric", (0.60, None), beside_shipped=True),
    Burst("burst_cards", 3.9, at_least=True),
    Burst("burst_imbalance", 1.05),
    *pair("shipped", "chat", 0.5, "rr", (0.65, 0.50), engine="as-shipped"),
    *pair("shipped", "chat", 0.5, "lmetric", (0.80, None), engine="as-shipped"),
    *pair("unique", "unique", 2.5, "best", (1.05, 1.05)),
    *pair("hot", "hot", 2.5, "best", (1.05, 1.05)),
    Goodput("goodput16", 1.13, 16, 1.3, at_least=True),
    Goodput("goodput32", 1.17, 32, 1.7, at_least=True),
    Goodput("goodput32_vs_shipped", 3.0, 32, 1.7, theirs_shipped=True, at_least=True),
    Greedy("greedy_victim_p95", 1.5, 0.1),
    Jain("jain", 0.95, at_least=True),
    Decide("decide_p50_ms", 5.0, "decide_p50"),
    Decide("decide_p99_ms", 5.0, "decide_p99"),
)
"""In the order in which they are told."""

ASIDE: tuple[Figure, ...] = (Greedy("greedy_victim_p95_overload", None, 0.15),)
"""Told as well, without an aim: together these tenants want a third more than four cards can do."""
