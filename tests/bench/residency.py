"""Model loads in front of real-time emulated Ollamas, beside nginx's least_conn: `make bench-residency`.

Two questions. Do clients that do not agree on a context, through all APIs, make Ollamas reload their model? And how
often are models loaded when the demand for two of them shifts? Both proxies get the same clients at the same time, each
in front of four Ollamas of its own that hold one model at a time. Engines and clients go `--speed` times as fast as the
cards they stand for; times are told as those of the cards. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

import uvloop

from proxy.cli.tables import columns
from tests.bench.processes import Missing, allow_many_files
from tests.bench.residency_clients import CUT, Clients, Got, served
from tests.bench.residency_figures import Served, Stay, loads, needless, reloads, waited_for_load, waits
from tests.bench.residency_fleet import AS_ASKED, LOAD_S, NGINX, SLOTGATE, SLOTS, Fleet, Front, Setting, fleet
from tests.bench.residency_traffic import MIX, ODD, PLAIN, Ask, Kind, Popularity, asks, sine, steady, steps

RATE = 1.0
"""Requests per second: about a sixth of what four cards can do that load nothing."""
SURGE = 3.0
"""So many that one card is not enough for the model that most ask for: cards must change hands when demand does."""
WARM_UP = 0.1
"""Share of the time after which reloads count: by then every residency that is needed was asked for."""
PATIENCE_S = 120.0
"""How long after the last arrival clients wait still."""
TOLERANCE = 0.5
"""Share of a load that a slot must have been free at a stretch: less is a machine that is busy with all this at once.
The tests of the planner ask the same of virtual time, where a twentieth of a second counts."""


class Case(NamedTuple):
    """One kind of traffic, and what it goes through."""

    name: str
    models: tuple[str, ...]
    popularity: Popularity
    kinds: tuple[Kind, ...]
    context: int = 4096
    """The engines' own default."""
    per_s: float = RATE
    """Requests per second."""
    fronts: tuple[Front, ...] = (SLOTGATE, NGINX)

    @property
    def shifts(self) -> bool:
        """Whether models compete; else clients differ in what they say of one model."""
        return len(self.models) > 1


TWO = ("alpha", "beta")
CASES = (
    Case("mix", TWO[:1], steady(1), MIX),
    Case("mix8192", TWO[:1], steady(1), MIX, context=8192),
    Case("odd", TWO[:1], steady(1), ODD, fronts=(SLOTGATE, AS_ASKED, NGINX)),
    Case("steps", TWO, steps((9, 1), (1, 9), (9, 1)), PLAIN),
    Case("surge", TWO, steps((9, 1), (1, 9), (9, 1)), PLAIN, per_s=SURGE),
    Case("sine", TWO, sine(0.1, 0.9), PLAIN),
    Case("four", (*TWO, "gamma", "delta"), steady(60, 25, 10, 5), PLAIN),
)


COLUMNS = {
    "loads": "LOADS",
    "reloads": "AFTER WARM-UP",
    "ttft_mean_s": "TTFT MEAN S",
    "ttft_p99_s": "TTFT P99 S",
    "unanswered": "UNANSWERED",
    "failed": "FAILED",
    "waited": "WAITED FOR A LOAD",
    "needless": "NEEDLESSLY",
}


class Lived(NamedTuple):
    """One run through one proxy."""

    stays: list[Stay]
    requests: list[Served]
    start_s: float
    arrivals_end_s: float
    cut_s: float
    problems: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=8.0, help="divides all times (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=600.0, help="seconds of arrivals (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the clients (default: %(default)s)")
    names = ",".join(case.name for case in CASES)
    parser.add_argument("--cases", default=names, help="default: %(default)s")
    parser.add_argument("--fronts", default="", help="only these, by comma: slotgate, as_asked, nginx")
    parser.add_argument("--show", action="store_true", help="tell of each load, and of each needless wait")
    options = parser.parse_args()
    allow_many_files()
    rows, told = [], dict[str, float]()
    try:
        for case in CASES:
            if case.name not in options.cases.split(","):
                continue
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            for front, lived in live(case, options).items():
                found = figures(case, lived, options)
                rows.append((case.name, front, *(f"{found[key]:g}" if key in found else "" for key in COLUMNS)))
                told |= {f"{case.name}_{key}_{front}": value for key, value in found.items()}
                tell(f"{case.name} {front}", lived, options)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    print(columns(("TRAFFIC", "THROUGH", *COLUMNS.values()), rows, gap=2))
    print(json.dumps(summary(told) | told))
    return 0


def live(case: Case, options: argparse.Namespace) -> dict[str, Lived]:
    """All proxies of a case side by side, with the same clients."""
    clients = asks(options.seed, options.duration, case.per_s, case.models, case.popularity, case.kinds)
    setting = Setting(case.models, case.context, options.speed)
    wanted = options.fronts.split(",") if options.fronts else [front.name for front in case.fronts]
    fronts = [front for front in case.fronts if front.name in wanted]
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        fleets = [stack.enter_context(fleet(Path(name) / front.name, front, setting)) for front in fronts]
        lived: dict[str, Lived] = uvloop.run(_together(fleets, clients, options))
        return lived


async def _together(fleets: Sequence[Fleet], clients: Sequence[Ask], options: argparse.Namespace) -> dict[str, Lived]:
    async with asyncio.TaskGroup() as group:
        tasks = {each.front.name: group.create_task(_one(each, clients, options)) for each in fleets}
    return {name: task.result() for name, task in tasks.items()}


async def _one(through: Fleet, clients: Sequence[Ask], options: argparse.Namespace) -> Lived:
    everybody = Clients(through.port, options.speed)
    start_s, cut_s = await everybody.run(clients, PATIENCE_S)
    stays = await asyncio.to_thread(through.stays)
    requests = requests_of(through, everybody.got)
    return Lived(stays, requests, start_s, start_s + options.duration / options.speed, cut_s, through.problems())


def requests_of(through: Fleet, got: Sequence[Got]) -> list[Served]:
    """What clients saw, and when an engine took each request, as the proxy or the engine says."""
    queued_s = through.queued_s() if through.front.is_slotgate else {}
    found = []
    for one in got:
        backend = through.number(one.backend)
        waited_s = queued_s.get(one.request_id, inf) if through.front.is_slotgate else 0.0
        waited_s += one.load_s if one.ended_s < inf else inf  # what was cut tells nothing
        found.append(served(one, through.setting.context, backend, one.arrived_s + waited_s))
    return found


def figures(case: Case, lived: Lived, options: argparse.Namespace) -> dict[str, float]:
    """What one run shows."""
    warm_s = lived.start_s + WARM_UP * options.duration / options.speed
    tolerance_s = TOLERANCE * LOAD_S / options.speed
    ttft = waits(lived.requests, lived.cut_s, options.speed)
    found: dict[str, float] = {
        "loads": loads(lived.stays, to_s=lived.arrivals_end_s),
        "reloads": reloads(lived.stays, warm_s, lived.arrivals_end_s),
        "ttft_mean_s": round(ttft.mean_s, 3),
        "ttft_p99_s": round(ttft.p99_s, 3),
        "unanswered": ttft.unanswered,
        "failed": sum(one.problem not in ("", CUT) for one in lived.requests),
    }
    if case.shifts:  # the native API of all its clients tells when they had their model
        found["waited"] = sum(waited_for_load(one, lived.stays, tolerance_s) for one in lived.requests)
        found["needless"] = len(needless(lived.requests, lived.stays, SLOTS, tolerance_s))
    return found


def summary(told: Mapping[str, float]) -> dict[str, float | None]:
    """The figures that are aimed at; None where their cases were left out.

    - `reloads_after_warmup`: the most of all mixes of clients, through slotgate. Aim: 0.
    - `reloads_unnormalised`: the same clients straight to the Ollamas, spread by nginx.
    - `loads_vs_nginx_least_conn`: the highest ratio of all shifting demands. Aim: 0.5 at most.
    - `needless_waits`: requests that waited for a load that another backend made needless. Aim: 0.
    """
    mixes = [case.name for case in CASES if not case.shifts and f"{case.name}_reloads_slotgate" in told]
    shifts = [case.name for case in CASES if case.shifts and f"{case.name}_loads_slotgate" in told]
    both = [name for name in shifts if told.get(f"{name}_loads_nginx")]
    ratios = [told[f"{name}_loads_slotgate"] / told[f"{name}_loads_nginx"] for name in both]
    unnormalised = [told[f"{name}_reloads_nginx"] for name in mixes if f"{name}_reloads_nginx" in told]
    return {
        "reloads_after_warmup": max((told[f"{name}_reloads_slotgate"] for name in mixes), default=None),
        "reloads_unnormalised": min(unnormalised, default=None),
        "loads_vs_nginx_least_conn": round(max(ratios), 4) if ratios else None,
        "needless_waits": sum(told[f"{name}_needless_slotgate"] for name in shifts) if shifts else None,
    }


def tell(name: str, lived: Lived, options: argparse.Namespace) -> None:
    """What is behind the figures of a run: errors always, the rest if asked for."""

    def at(when_s: float) -> str:
        return f"{(when_s - lived.start_s) * options.speed:7.1f}"

    lines = [f"{name}: {line}" for line in lived.problems[:5]]
    lines += [f"{name}: request {one.number}: {one.problem}" for one in lived.requests if one.problem][:5]
    if options.show:
        for stay in sorted(lived.stays, key=lambda stay: stay.from_s):
            context = f"{stay.model} ({stay.context})"
            lines.append(f"{name}: gpu-{stay.backend} {context} from {at(stay.from_s)} to {at(stay.to_s)}")
        for one in needless(lived.requests, lived.stays, SLOTS, TOLERANCE * LOAD_S / options.speed):
            waited = f"came {at(one.arrived_s)}, ran on gpu-{one.backend} from {at(one.started_s)}"
            lines.append(f"{name}: needless wait of request {one.number} for {one.model}: {waited}")
    for line in lines:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
