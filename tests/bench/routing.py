"""Every figure that routing is judged by, in one run on emulated cards: `make bench-routing`.

What is shown is the simulator's, with the defaults of `Policy` as they are in this tree. Ratios are of means over
seeds; `±` is half the 95 % confidence interval. The last line is one JSON object with a key per figure.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.cli.tables import columns
from proxy.simulations import ENGINES, in_pool, settings_in_force
from scheduler.simulation.baselines import BASELINES
from tests.bench.routing_figures import ASIDE, FIGURES, OURS, QUICK, Decide, Figure, Goodput, Results, Scale, Value


def measure(scale: Scale, jobs: int, figures: Sequence[Figure] = (*FIGURES, *ASIDE)) -> dict[str, Value]:
    """The value of each figure, by its key."""
    alone: dict[Hashable, Callable[[], Any]] = {}
    together: dict[Hashable, Callable[[], Any]] = {}
    for figure in sorted(figures, key=lambda each: not isinstance(each, Goodput)):  # the longest ones first
        (alone if isinstance(figure, Decide) else together).update(figure.calls(scale))
    results: dict[Hashable, Any] = {name: call() for name, call in alone.items()}
    with progress(len(together)) as ended:
        done = in_pool([*together.values()], jobs, ended)
    results.update(zip(together, done, strict=True))
    refuse_refusals(results)
    return {figure.key: figure.value(results, scale) for figure in figures}


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr; where nobody looks, a line for each tenth."""
    console = Console(stderr=True)
    look = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    numbers = count(1)
    with Progress(*look, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def ended() -> None:
            bar.advance(task)
            number = next(numbers)
            if not console.is_terminal and number * 10 // total > (number - 1) * 10 // total:
                print(f"{number} of {total} measured", file=sys.stderr, flush=True)

        yield ended


def refuse_refusals(results: Results) -> None:
    """No run may have turned clients away: its waiting times would be those of the others."""
    refused = sum(getattr(result, "rejected", 0) for result in results.values())
    if refused:
        raise SystemExit(f"error: {refused} requests were refused; these figures would mean nothing")


def table(values: dict[str, Value], figures: Sequence[Figure]) -> str:
    rows = []
    for figure in figures:
        value = values[figure.key]
        around = "" if value.half_width is None else f" ±{value.half_width:.3f}"
        aim = "-" if figure.aim is None else f"{'>=' if figure.at_least else '<='} {figure.aim:g}"
        rows.append(
            (figure.key, aim, f"{value.value:.3f}{around}", met(figure, value), value.ours, value.theirs, value.shipped)
        )
    header = ("FIGURE", "AIM", "MEASURED", "MET", "OURS", "THEIRS", "BOTH WITH ENGINES AS SHIPPED")
    return columns(header, rows, gap=2)


def met(figure: Figure, value: Value) -> str:
    if figure.aim is None:
        return "-"
    reached = value.value >= figure.aim if figure.at_least else value.value <= figure.aim
    return "yes" if reached else "no"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=Scale().seeds, help="runs behind each figure (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: the CPUs)")
    parser.add_argument("--quick", action="store_true", help="tiny runs that mean nothing: does it work?")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale(seeds=options.seeds)
    started_s = time.perf_counter()
    values = measure(scale, options.jobs)
    print(f"four emulated RTX 4090s, {scale.seeds} seeds, {scale.duration_s:.0f} s of arrivals each\n")
    print(table(values, (*FIGURES, *ASIDE)))
    print(f"ours: {settings_in_force(OURS, 16)}")
    for name in BASELINES:
        print(f"{name}: {settings_in_force(name, 16)}")
    shipped = ENGINES["as-shipped"]
    print(
        f"engines as shipped: {shipped.slots} slots, batch {shipped.batch}, host cache of {shipped.host_tokens} "
        "tokens, idle slots copied to it; others: batch 512, host cache off"
    )
    print(f"took {time.perf_counter() - started_s:.0f} s", file=sys.stderr)
    print(json.dumps({key: round(value.value, 4) for key, value in values.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
