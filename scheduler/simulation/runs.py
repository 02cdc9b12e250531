"""One call, one run: the shape that a command line or a pool of processes wants. All arguments can be pickled."""

from collections.abc import Sequence
from math import inf

import msgspec

from scheduler.policy import Policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.conversations import Session
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.records import Record
from scheduler.simulation.routers import BaselineRouter, Router, SchedulerRouter
from scheduler.simulation.workloads import sessions


def run(
    router: Policy | str,
    workload: str | Sequence[Session],
    rate: float,
    slots: int = 16,
    seed: int = 1,
    engine: EngineSettings | None = None,
    *,
    cards: int = 4,
    duration_s: float = 900.0,
    running_limit: int | None = None,
    auto_limit: bool = False,
    report_every_s: float = inf,
) -> list[Record]:
    """Simulate a fleet of equal cards until all requests are answered.

    Args:
        router: a policy of the real scheduler, or the name of a baseline (a key of `baselines.BASELINES`).
        workload: a key of `workloads.WORKLOADS`, or the sessions themselves (then `rate`, `seed`, `duration_s` say
            nothing).
        rate: sessions per second.
        slots: of each engine; instead of those in `engine`.
        seed: of the clients.
        engine: everything else about the engines; None: an emulated RTX 4090 without a host cache.
        cards: engines, of one card each.
        duration_s: how long sessions arrive.
        running_limit: requests that the real scheduler lets run at once per card; None: as many as slots.
        auto_limit: let the real scheduler lower that by the time per token that it learns.
        report_every_s: pause between looks at the engines, for the real scheduler.

    Returns:
        One record per request, in the order in which they ended.

    Raises:
        KeyError: there is no such baseline or workload.
    """
    settings = _with_slots(engine or EngineSettings(), slots)
    clients = sessions(workload, rate, seed, duration_s) if isinstance(workload, str) else workload
    chosen: Router
    if isinstance(router, str):
        chosen = BaselineRouter(BASELINES[router](slots), cards)
    else:
        chosen = SchedulerRouter(router, [settings] * cards, running_limit=running_limit, auto_limit=auto_limit)
    return Fleet([settings] * cards, chosen, report_every_s * 1000).run(clients)


def settings_of(baseline: str, slots: int = 16) -> str:
    """The effective settings of a baseline, in words.

    Raises:
        KeyError: there is no such baseline.
    """
    return BASELINES[baseline](slots).settings


def _with_slots(settings: EngineSettings, slots: int) -> EngineSettings:
    return msgspec.structs.replace(settings, slots=slots)
