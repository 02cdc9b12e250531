"""Simulations by the dozen: routers and engines by name, runs in a pool of processes, rows with confidence intervals.

Owns no simulation, no figure and nothing that is printed.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing.connection import wait
from typing import NamedTuple, TypeVar

import msgspec

from proxy import traces
from proxy.policy_keys import OF_THE_CONFIGURATION, PolicyError, PolicyProblem, checked, takes
from scheduler.policy import Policy
from scheduler.presets import PRESETS, ROUTED, preset_policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.runs import run, settings_of
from scheduler.simulation.statistics import Figures, Interval, figures, over_seeds
from scheduler.simulation.step_times import PRESETS as STEP_TIMES

R = TypeVar("R")

Router = Policy | str
"""A policy of the product's own scheduler, or a key of `BASELINES`."""

BASELINE = "baseline:"
"""Before the name of a baseline that a preset has too: that is `lmetric`."""
LONG_NAMES = {"least-connections": "leastconn", "sgl-default": "sgl_default", "sgl-abs2": "sgl_abs2"}
"""Other names of baselines."""

ENGINES: dict[str, EngineSettings] = {
    "tuned": EngineSettings(slots=16),
    # llama-server `-np 4`: the host prompt cache of 8 GiB is on, and so are copies of idle slots; batches of 2048.
    "as-shipped": EngineSettings(slots=4, batch=2048, host_tokens=65_536, copies_idle=True),
}
"""How engines are started, by name. All on an emulated RTX 4090."""

CARDS: dict[str, str | None] = {"4090": "NVIDIA GeForce RTX 4090", "h200": "NVIDIA H200", "cpu": None}
"""The cards that there are step times of, and how NVML names them."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: can be sent to another process, and be a key."""

    router: Router = Policy()
    workload: str
    """A key of `WORKLOADS`; of a trace its format."""
    rate: float
    seed: int = 1
    slots: int = 16
    engine: EngineSettings = ENGINES["tuned"]
    cards: int = 4
    duration_s: float = 900.0
    trace: traces.Trace | None = None
    """Clients from a file instead of a workload."""

    def on(self, engine: EngineSettings, slots: int | None, cards: int) -> "Run":
        """The same on other engines; slots None: as many as those have."""
        return msgspec.structs.replace(self, engine=engine, slots=slots or engine.slots, cards=cards)


class Row(NamedTuple):
    """One router's figures over all seeds."""

    policy: str
    """As asked for."""
    workload: str
    rate: float
    slots: int
    seeds: int
    figures: dict[str, Interval]
    """The fields of `Figures`."""

    def as_json(self) -> dict[str, object]:
        """Its stable fields. Those with `_ci95` are half the width of the interval; null with one seed."""
        told: dict[str, object] = {name: getattr(self, name) for name in self._fields if name != "figures"}
        for name, field in TOLD.items():
            told[name] = self.figures[field].mean
        for name, field in TOLD.items():
            told[f"{name}_ci95"] = self.figures[field].half_width
        return told


TOLD = {
    "ttft_mean_s": "ttft_mean_s",
    "ttft_p50_s": "ttft_p50_s",
    "ttft_p95_s": "ttft_p95_s",
    "ttft_p99_s": "ttft_p99_s",
    "e2e_mean_s": "e2e_mean_s",
    "hit_rate": "hit_rate",
    "busy_mean": "busy_mean",
    "imbalance": "imbalance",
    "tokens_per_s": "output_tokens_per_s",
}
"""Figures of a row -> fields of `Figures`."""


def measured(wanted: Run) -> Figures:
    """Do one run.

    Raises:
        ValueError: no request was answered after the warm-up; TraceError if the trace cannot be read.
    """
    clients = wanted.workload if wanted.trace is None else traces.sessions(wanted.trace, wanted.seed)
    records = run(
        wanted.router,
        clients,
        wanted.rate,
        wanted.slots,
        wanted.seed,
        wanted.engine,
        cards=wanted.cards,
        duration_s=wanted.duration_s,
    )
    return figures(records, wanted.cards, wanted.slots)


def compare(
    routers: Mapping[str, Router], wanted: Run, seeds: int, jobs: int, ended: Callable[[], None] = lambda: None
) -> list[Row]:
    """The same clients for each router, with seeds 1, 2, …; see `in_pool` for the rest.

    Raises:
        ValueError: as of `measured`.
    """
    replace = msgspec.structs.replace
    # By seed first: a process then finds the clients of a trace made already.
    runs = [replace(wanted, router=router, seed=seed) for seed in range(1, seeds + 1) for router in routers.values()]
    done = in_pool([partial(measured, each) for each in runs], jobs, ended)
    return [
        Row(name, wanted.workload, wanted.rate, wanted.slots, seeds, over_seeds(done[number :: len(routers)]))
        for number, name in enumerate(routers)
    ]


def router_of(name: str, changes: Mapping[str, str] | None = None) -> Router:
    """A preset's policy with changes, or a baseline's key; names of presets go first.

    Args:
        name: of a preset or a baseline; see `BASELINE` and `LONG_NAMES`.
        changes: keys of the policy and their values as text; baselines take none.

    Raises:
        KeyError: there is no such router.
        PolicyError: a change is none.
    """
    if name in PRESETS:
        policy = preset_policy(name)
        return msgspec.structs.replace(policy, **{key: _value(key, text) for key, text in (changes or {}).items()})
    name = name.removeprefix(BASELINE)
    name = LONG_NAMES.get(name, name)
    if name not in BASELINES:
        raise KeyError(name)
    return name


def router_names() -> list[str]:
    """All that `router_of` knows, each once."""
    long = {short: name for name, short in LONG_NAMES.items()}
    names = [long.get(name, name) for name in BASELINES]
    return [*PRESETS, *(f"{BASELINE}{name}" if name in PRESETS else name for name in names)]


def settings_in_force(router: Router, slots: int) -> str:
    """What a router goes by, in words: without it a figure means nothing."""
    if isinstance(router, str):
        return f"baseline; {settings_of(router, slots)}"
    values, defaults = msgspec.structs.asdict(router), msgspec.structs.asdict(Policy())
    shown = [name for name in values if name in ROUTED or values[name] != defaults[name]]
    return "slotgate's scheduler; " + ", ".join(f"{name} {_plain(values[name])}" for name in shown)


def engine_of(engine: str, card: str) -> EngineSettings:
    """Settings of an engine on a card; KeyError if there is no such engine or card."""
    return msgspec.structs.replace(ENGINES[engine], times=STEP_TIMES[card], gpu_name=CARDS[card])


def in_pool(calls: Sequence[Callable[[], R]], jobs: int, ended: Callable[[], None] = lambda: None) -> list[R]:
    """Call each, in so many processes; with one, in this.

    Args:
        calls: without arguments, and such as can be pickled. The first ones are begun first.
        jobs: processes.
        ended: called in this process after each.

    Returns:
        What they returned, in the order of `calls`.

    Raises:
        Exception: what a call raises; calls that were not begun are then dropped.
    """
    if jobs <= 1 or len(calls) <= 1:
        return list(_one_by_one(calls, ended))
    # Forking would copy threads' locks; so each process starts afresh, which takes it a quarter of a second.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(jobs, len(calls)), context, _begin_process) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            for future in as_completed(futures):
                future.result()
                ended()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()  # a run may take minutes
            raise
        return [future.result() for future in futures]


def _one_by_one(calls: Iterable[Callable[[], R]], ended: Callable[[], None]) -> Iterable[R]:
    for call in calls:
        yield call()
        ended()


def _begin_process() -> None:
    """A process of the pool ends when it is interrupted, without a word, and when its parent is gone, however."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _value(key: str, text: str) -> object:
    """As `slotgate policy set` takes it; here no configuration is in the way."""
    if key in OF_THE_CONFIGURATION:
        try:
            return msgspec.convert(text, Policy.__annotations__[key], strict=False)
        except msgspec.ValidationError:
            raise PolicyError([PolicyProblem(key, f"{text} is not {takes(key)}", "")]) from None
    return checked(key, text)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
