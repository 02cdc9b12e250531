"""`slotgate simulate`: what a policy would do, on emulated cards in virtual time. Asks no proxy and needs no GPU."""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.asking import Json, fail, print_json, tell
from proxy.cli.tables import columns

if TYPE_CHECKING:
    from proxy.simulations import Router, Row, Run
    from scheduler.simulation.engine import EngineSettings
    from scheduler.simulation.statistics import Interval

BAR = 40
"""Characters of the longest bar."""
ONE_PLAY = ("azure", "lmcache")
"""Traces in which nothing is left to chance: more seeds would be the same run again."""


def simulate(
    policy: Annotated[
        str, typer.Option(metavar="A,B", help="Presets, as `slotgate policy preset` lists them, and baselines.")
    ] = "balanced,baseline:lmetric,least-connections",
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="chat, rag, hot, unique, agent, burst or greedy.")
    ] = "chat",
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1000, help="Sessions per second. Default: 1; of a trace: as recorded."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of each engine. Default: 16; as-shipped: 4.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs, each with other clients.")] = 3,
    cards: Annotated[int, typer.Option(min=1, max=256, help="Engines, of one card each.")] = 4,
    card: Annotated[str, typer.Option(metavar="NAME", help="4090, h200 or cpu.")] = "4090",
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="tuned: without host cache; as-shipped: llama-server's defaults.")
    ] = "tuned",
    duration: Annotated[
        float | None, typer.Option(min=1, max=1e6, help="Seconds of arrivals. Default: 900; of a trace: all.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the presets; repeat it for more.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Clients of a published trace instead of a workload's.")
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Of the trace: mooncake, azure or lmcache.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it too: .png or .svg. Needs slotgate[plot].")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per CPU.")] = None,
    json: Json = False,
) -> None:
    """Try policies on emulated cards.

    Each serves the same clients; waiting times are compared, with 95 % confidence intervals.
    """
    from proxy.simulations import compare

    if plot is not None:
        _check_plot(plot)
    routers = _routers(policy, changes or [])
    settings = _engine(engine, card)
    if trace is not None:
        first = _traced(trace, trace_format, rate, duration)
        seeds = 1 if trace_format in ONE_PLAY else seeds
    else:
        first = _generated(workload, rate, duration)
    first = first.on(settings, slots, cards)
    with _progress(seeds * len(routers)) as ended:
        try:
            rows = compare(routers, first, seeds, jobs or len(os.sched_getaffinity(0)), ended)
        except ValueError as error:
            fail(f"{error}; a longer --duration or a higher --rate gives more requests")
    if json:
        print_json([row.as_json() for row in rows])
    else:
        print(comparison_text(rows, routers, first), end="")
    for row in rows:
        if row.figures["rejected"].mean:
            tell(f"note: {row.policy} refused {row.figures['rejected'].mean:.0f} requests a run: no figure counts them")
    if plot is not None:
        draw(rows, first, plot)
        tell(f"drawn in {plot}")


def comparison_text(rows: "list[Row]", routers: "Mapping[str, Router]", first: "Run") -> str:
    """The table, bars of the mean waiting times, and what each router goes by."""
    from proxy.simulations import TOLD, settings_in_force

    header = ("POLICY", "TTFT MEAN", "P50", "P95", "P99", "E2E MEAN", "HIT RATE", "BUSY", "IMBALANCE", "TOKENS/S")
    cells = [(row.policy, *[_with_interval(row.figures[field]) for field in TOLD.values()]) for row in rows]
    width = max(len(row.policy) for row in rows)
    return "\n".join(
        [
            f"{_clients_text(first)}; {_seeds_text(rows)}",
            f"{_cards_text(first)}\n",
            columns(header, cells, gap=2),
            "mean time to first token, s",
            *_bars([(row.policy, row.figures["ttft_mean_s"].mean) for row in rows], width),
            "\nsettings in force",
            *[f"{name:<{width}}  {settings_in_force(router, first.slots)}" for name, router in routers.items()],
            "",
        ]
    )


def draw(rows: "list[Row]", first: "Run", file: Path) -> None:
    """Bars of mean and p99 times to first token, with their intervals, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure((10, 1.8 + 0.4 * len(rows)), layout="constrained")
    names = [row.policy for row in reversed(rows)]
    titles = {"ttft_mean_s": "mean", "ttft_p99_s": "99th percentile"}
    for axis, (field, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        values = [row.figures[field] for row in reversed(rows)]
        errors = [value.half_width or 0.0 for value in values]
        bars = axis.barh(names, [value.mean for value in values], xerr=errors, capsize=3)
        axis.bar_label(bars, [_number(value.mean) for value in values], padding=4)
        axis.set_xlabel(f"{title} of the time to first token, s")
        axis.margins(x=0.15)
    figure.suptitle(f"{_clients_text(first)}; {_seeds_text(rows)}\n{_cards_text(first)}", fontsize=9)
    try:
        figure.savefig(file)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror or error}")


def _routers(names: str, changes: list[str]) -> "dict[str, Router]":
    from proxy.policy_keys import PolicyError
    from proxy.simulations import router_names, router_of

    wanted = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{change!r}: write KEY=VALUE, such as hold_s=0.5", param_hint="--set")
        wanted[key.strip()] = value.strip()
    routers: dict[str, Router] = {}
    for name in filter(None, [name.strip() for name in names.split(",")]):
        try:
            routers[name] = router_of(name, wanted)
        except KeyError:
            raise _unknown("--policy", name, router_names()) from None
        except PolicyError as error:
            raise typer.BadParameter(str(error), param_hint="--set") from None
    if not routers:
        raise typer.BadParameter("names no policy", param_hint="--policy")
    if wanted and all(isinstance(router, str) for router in routers.values()):
        raise typer.BadParameter("baselines have no keys; name a preset in --policy", param_hint="--set")
    return routers


def _engine(engine: str, card: str) -> "EngineSettings":
    from proxy.simulations import CARDS, ENGINES, engine_of

    for hint, name, known in (("--engine", engine, ENGINES), ("--card", card, CARDS)):
        if name not in known:
            raise _unknown(hint, name, known)
    return engine_of(engine, card)


def _generated(workload: str, rate: float | None, duration: float | None) -> "Run":
    from proxy.simulations import Run
    from scheduler.simulation.workloads import WORKLOADS

    if workload not in WORKLOADS:
        raise _unknown("--workload", workload, WORKLOADS)
    return Run(workload=workload, rate=rate or 1.0, duration_s=duration or 900.0)


def _traced(path: Path, kind: str | None, rate: float | None, duration: float | None) -> "Run":
    from proxy.simulations import Run
    from proxy.traces import FORMATS, LONGEST_TOKENS, Trace, TraceError, rate_of, sessions

    if kind not in FORMATS:
        raise _unknown("--format", kind or "", FORMATS)
    trace = Trace(path, kind, rate, duration)
    try:
        clients = sessions(trace, 1)
    except TraceError as error:
        fail(str(error))
    requests = sum(len(session.turns) for session in clients)
    without = f", without prompts above {LONGEST_TOKENS} tokens" if kind == "mooncake" else ""
    tell(f"{path}: {len(clients)} sessions, {requests} requests{without}")
    return Run(workload=kind, rate=rate_of(clients), duration_s=clients[-1].arrives_ms / 1000, trace=trace)


def _unknown(hint: str, name: str, known: Iterable[str]) -> typer.BadParameter:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return typer.BadParameter(f"there is no {name!r}; {advice}", param_hint=hint)


def _check_plot(file: Path) -> None:
    import importlib.util

    if file.suffix not in {".png", ".svg"}:
        raise typer.BadParameter(f"{file}: its name must end in .png or .svg", param_hint="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        fail("--plot draws with matplotlib, which is not installed: pip install 'slotgate[plot]'")


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[], None]]":
    """A bar on stderr, if somebody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    look = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*look, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _clients_text(run: "Run") -> str:
    arrivals = f"{run.workload}: {_number(run.rate)} sessions/s for {run.duration_s:.0f} s"
    return arrivals if run.trace is None else f"{arrivals}, from {run.trace.path.name}"


def _seeds_text(rows: "list[Row]") -> str:
    return f"{rows[0].seeds} seeds, 95 % confidence intervals" if rows[0].seeds > 1 else "1 seed"


def _cards_text(run: "Run") -> str:
    engine = run.engine
    kept = f"host cache of {engine.host_tokens} tokens" if engine.host_tokens else "host cache off"
    return (
        f"{run.cards} x emulated {engine.gpu_name or 'CPU'}, {run.slots} slots, batch {engine.batch}, {kept}"
        f"{', idle slots copied to it' if engine.copies_idle else ''}"
    )


def _bars(values: list[tuple[str, float]], width: int) -> Iterator[str]:
    most = max(value for _, value in values) or 1.0
    for name, value in values:
        yield f"{name:<{width}}  {'#' * max(1, round(BAR * value / most))} {_number(value)}"


def _with_interval(value: "Interval") -> str:
    if value.half_width is None:
        return _number(value.mean)
    return f"{_number(value.mean)} ±{_number(value.half_width)}"


def _number(value: float) -> str:
    digits = next((digits for digits, above in enumerate((100, 10, 1)) if value >= above), 3)
    return f"{value:.{digits}f}"
