"""Several proxies beside one, and what they do when one dies or the store does: `make bench-proxies`.

All in real time on emulated cards, with one real store. Each request goes to the next proxy, whatever conversation it
is of. How many requests an engine ever had at once is its own count. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop
from redis.asyncio import Redis

from proxy.cli.tables import columns
from proxy.store import Store
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.proxies import ProxiesRouter, Share
from scheduler.simulation.records import Record
from scheduler.simulation.routers import SchedulerRouter
from scheduler.simulation.statistics import Figures, figures, percentile
from scheduler.simulation.workloads import sessions
from tests.bench.live import CARDS, SLOTS, Clients, engines, slotgate_config, wait_ready
from tests.bench.load import closed_loop
from tests.bench.processes import (
    CPUS,
    PROXY_CPU,
    SLOTGATE_CONFIG,
    Missing,
    Process,
    allow_many_files,
    cpu_s,
    free_port,
    start_engine,
)
from tests.bench.routing_figures import OURS
from tests.proxy.store.store_process import StoreProcess

PROXIES = 4
RATE = 1.2
LIMIT = 12
"""Running limit in the parts that count over-commit: below the slots, so that an engine could take more."""
SERVE = "from tests.bench.proxies import serve_without_store; serve_without_store()"


class Box(NamedTuple):
    """Proxies in front of the same engines."""

    engines: list[int]
    """Ports."""
    proxies: list[Process]
    store: StoreProcess | None

    @property
    def ports(self) -> list[int]:
        return [proxy.port for proxy in self.proxies]

    def most_at_once(self) -> int:
        """The most requests that any engine ever had, by its own count."""
        found = [httpx.get(f"http://127.0.0.1:{port}/emulated/faults").json() for port in self.engines]
        return max(int(each["max_concurrent_seen"]) for each in found)


@contextlib.contextmanager
def box(count: int, speed: float, *, shared: bool = True, limit: int = SLOTS, ttl_s: float = 15.0) -> Iterator[Box]:
    """Fresh engines, so many proxies, and a store; not `shared`: each proxy has a store of its own."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ports = stack.enter_context(engines(folder, speed))
        store = None
        if shared:
            store = StoreProcess("valkey", folder)
            store.start()
            stack.callback(store.stop)
        proxies = []
        for number in range(count):
            own = folder / f"p{number}"
            own.mkdir()
            proxy = start(own, ports, f'url = "{store.url}"\n' if store else "", limit, ttl_s)
            stack.callback(proxy.stop)
            proxies.append(proxy)
        for number in range(count):
            wait_ready(folder / f"p{number}", CARDS)
        yield Box(ports, proxies, store)


def start(folder: Path, ports: Sequence[int], store: str, limit: int, ttl_s: float) -> Process:
    port = free_port()
    rest = f"[store]\nlease_ttl_s = {ttl_s}\n{store}"
    return launch(folder, port, slotgate_config(folder, port, ports, rest, limit))


def launch(folder: Path, port: int, text: str, *, without_store: bool = False) -> Process:
    config = folder / "slotgate.toml"
    config.write_text(text)
    how = ["-c", SERVE] if without_store else ["-m", "proxy"]
    command = [sys.executable, *how, "serve", "--config", str(config)]
    proxy = Process("slotgate", command, set(CPUS), folder)
    proxy.listen(port)
    return proxy


def serve_without_store() -> None:
    """`slotgate serve` with a store that grants everything in no time: what is left is not the store's."""
    import proxy.app
    from proxy.cli import main as serve
    from tests.bench.no_store import NoStore

    vars(proxy.app)["Store"] = NoStore
    serve()


def together(count: int, seed: int, options: argparse.Namespace, *, shared: bool = True) -> tuple[Figures, int]:
    """Chats through so many proxies; with the most requests that an engine ever had at once."""
    clients = sessions("chat", RATE, seed, options.duration)
    with box(count, options.speed, shared=shared) as running:
        records = uvloop.run(Clients(running.ports, options.speed).run(clients))
        return figures(records, CARDS, SLOTS), running.most_at_once()


class Load:
    """Chats that go on while something happens to a proxy or the store. Whose answer is cut asks the next proxy."""

    def __init__(self, running: Box, options: argparse.Namespace, seed: int = 1, *, stay: bool = False) -> None:
        self.clients = Clients(running.ports, options.speed, stay=stay)
        self._sessions = sessions("chat", RATE, seed, options.duration)
        self._options = options

    async def run(self, happening: Callable[[], Awaitable[None]]) -> list[Record]:
        """Send everything; `happening` begins with the chats and may take as long as it likes."""
        async with asyncio.TaskGroup() as group:
            sent = group.create_task(self.clients.run(self._sessions))
            group.create_task(self._later(happening))
        return sent.result()

    async def _later(self, happening: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._options.duration / self._options.speed / 3)
        await happening()


def killed(options: argparse.Namespace) -> dict[str, float]:
    """kill -9 of one of the proxies under load."""
    with box(PROXIES, options.speed, limit=LIMIT) as running:
        victim = running.proxies[0]
        load = Load(running, options)
        free_after_s: list[float] = []

        async def kill() -> None:
            load.clients.may_fail.add(victim.port)
            os.kill(victim.pid, signal.SIGKILL)
            begun_s = time.perf_counter()
            async with redis_of(running) as store:
                while any(await seats_of(store, f"-{victim.pid}.")):
                    await asyncio.sleep(0.05)
            free_after_s.append(time.perf_counter() - begun_s)

        records = uvloop.run(load.run(kill))
        return {
            "kill_failed_elsewhere": float(load.clients.failed_elsewhere),
            "kill_failed_there": float(load.clients.failed),
            "kill_slots_free_s": free_after_s[0],
            "kill_answered": float(len(records)),
            "overcommit_killed": float(running.most_at_once() - LIMIT),
        }


def store_gone(options: argparse.Namespace, *, gone_s: float = 20.0) -> dict[str, float]:
    """The store killed for some seconds under load, and back empty; beside the same load with a store that stays.

    Clients stay with their proxy, as kept-alive connections do, or roam: then nobody can know what the others did.
    """
    ttft: dict[str, float] = {}
    told: dict[str, float] = {}
    for name, kills, stay in (("up", False, True), ("stay", True, True), ("roam", True, False)):
        with box(PROXIES, options.speed, limit=LIMIT) as running:
            load = Load(running, options, stay=stay)
            gap: list[float] = []

            async def stop_store() -> None:
                assert running.store is not None
                gap.append(load.clients.now_ms())  # noqa: B023
                if kills:  # noqa: B023
                    running.store.stop()
                await asyncio.sleep(gone_s)
                if kills:  # noqa: B023
                    await asyncio.to_thread(running.store.start)
                gap.append(load.clients.now_ms())  # noqa: B023

            records = uvloop.run(load.run(stop_store))
            within = [each.ttft_ms for each in records if gap[0] <= each.arrived_ms <= gap[1]]
            ttft[name] = sum(within) / len(within)
            told[f"store_gone_failed_{name}"] = float(load.clients.failed_elsewhere)
            told[f"overcommit_store_gone_{name}"] = float(running.most_at_once() - LIMIT)
    return told | {
        "store_gone_ttft_ratio": ttft["stay"] / ttft["up"],
        "store_gone_ttft_ratio_roaming": ttft["roam"] / ttft["up"],
        "store_gone_requests": float(len(within)),
    }


@contextlib.asynccontextmanager
async def redis_of(running: Box) -> AsyncIterator[Redis]:
    assert running.store is not None
    store = Redis(unix_socket_path=str(running.store.path))
    try:
        yield store
    finally:
        await store.aclose()


async def seats_of(store: Redis, owner_part: str) -> list[int]:
    """Seats per backend that a proxy holds in the store, told from a part of its name; expired ones do not count."""
    seconds, micros = await store.time()
    now_ms = seconds * 1000 + micros // 1000
    found = []
    async for key in store.scan_iter("*:leases:*"):
        members: list[Any] = await store.zrangebyscore(key, f"({now_ms}", "+inf")
        found.append(sum(owner_part.encode() in member.partition(b"/")[0] for member in members))
    return found


def cost(options: argparse.Namespace) -> dict[str, float]:
    """CPU per short request with the store and with one that does nothing, in turns; and how long the store takes."""
    rounds = max(1, int(options.duration // 60))
    used: dict[str, list[float]] = {"store": [], "none": []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp")))
        engine, _ = start_engine(folder)
        stack.callback(engine.stop)
        store = StoreProcess("valkey", folder)
        store.start()
        stack.callback(store.stop)
        sides = {}
        for name in used:
            own = folder / name
            own.mkdir()
            port = free_port()
            table = f'[store]\nurl = "{store.url}"\n' if name == "store" else ""
            text = SLOTGATE_CONFIG.format(folder=own, engine=f"http://127.0.0.1:{engine.port}", port=port) + table
            sides[name] = side = launch(own, port, text, without_store=name == "none")
            stack.callback(side.stop)
            os.sched_setaffinity(side.pid, {PROXY_CPU})
        time.sleep(1.0)
        for number in range(2 * rounds):
            for name in used if number % 2 else reversed(used):
                side = sides[name]
                count, took = uvloop.run(closed_loop(side.port, 8, 1.5, lambda side=side: cpu_s([side.pid])))  # type: ignore[misc]
                used[name].append(took / count)
        told: dict[str, float] = uvloop.run(store_times(store.url, 2000))
    with_store, without = statistics.median(used["store"]), statistics.median(used["none"])
    return told | {
        "cpu_vs_noop_store": with_store / without,
        "cpu_us_per_request": with_store * 1e6,
        "cpu_us_per_request_noop": without * 1e6,
    }


async def store_times(url: str, calls: int) -> dict[str, float]:
    """What a request waits for the store: one claim, one at a time; its release is not waited for."""
    store = Store(url, fleet="bench", proxy_id="bench")
    await store.start()
    took = []
    news = b"n" * 600
    for number in range(calls):
        begun_s = time.perf_counter()
        await store.claim("engine", f"n{number}", 1, 16, 0, number % 16, news)
        took.append((time.perf_counter() - begun_s) * 1000)
        store.give_back("engine", f"n{number}", news)
    await store.close()
    took.sort()
    return {"store_ms_p50": percentile(took, 0.5), "store_ms_p99": percentile(took, 0.99)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=2.0, help="divides all times (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=120.0, help="seconds of arrivals (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="live runs behind each figure (default: %(default)s)")
    parser.add_argument("--simulated-seeds", type=int, default=5, help="simulated runs (default: %(default)s)")
    parser.add_argument("--parts", default="simulated,together,killed,store,cost", help="default: %(default)s")
    options = parser.parse_args()
    allow_many_files()
    told: dict[str, float] = {}
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "simulated": lambda: simulated(options),
        "together": lambda: compared(options),
        "killed": lambda: killed(options),
        "store": lambda: store_gone(options),
        "cost": lambda: cost(options),
    }
    try:
        for name in options.parts.split(","):
            print(f"{name} ...", file=sys.stderr, flush=True)
            told |= parts[name]()
            print(json.dumps({key: round(value, 4) for key, value in told.items()}), file=sys.stderr, flush=True)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    told["overcommit_max"] = max([0.0, *(value for key, value in told.items() if key.startswith("overcommit"))])
    print(columns(("FIGURE", "VALUE"), [(key, f"{value:.4g}") for key, value in told.items()], gap=2))
    print(json.dumps({key: round(value, 4) for key, value in told.items()}))
    return 0


def compared(options: argparse.Namespace) -> dict[str, float]:
    """Four proxies, four that share nothing, and one: the same chats, in real time."""
    runs: dict[str, list[Figures]] = {"one": [], "four": [], "private": []}
    over: list[int] = []
    for seed in range(1, options.seeds + 1):
        for name, found in runs.items():
            each, most = together(1 if name == "one" else PROXIES, seed, options, shared=name != "private")
            found.append(each)
            if name != "private":
                over.append(most - SLOTS)

    def mean(name: str, field: str) -> float:
        values: list[float] = [getattr(each, field) for each in runs[name]]
        return sum(values) / len(values)

    return {
        "ttft_mean_4_vs_1": mean("four", "ttft_mean_s") / mean("one", "ttft_mean_s"),
        "ttft_p99_4_vs_1": mean("four", "ttft_p99_s") / mean("one", "ttft_p99_s"),
        "hit_difference": mean("four", "hit_rate") - mean("one", "hit_rate"),
        "private_ttft_mean_vs_1": mean("private", "ttft_mean_s") / mean("one", "ttft_mean_s"),
        "private_hit_difference": mean("private", "hit_rate") - mean("one", "hit_rate"),
        "ttft_mean_1_s": mean("one", "ttft_mean_s"),
        "overcommit_together": float(max(over)),
    }


def simulated(options: argparse.Namespace) -> dict[str, float]:
    """The same in virtual time, over several seeds: what the machine that the benchmark runs on does not touch."""
    runs: dict[str, list[Figures]] = {"one": [], "four": [], "leases": [], "private": []}
    shares = {"four": Share.NEWS, "leases": Share.LEASES, "private": Share.NOTHING}
    engine = EngineSettings(slots=SLOTS)
    for seed in range(1, options.simulated_seeds + 1):
        for name, found in runs.items():
            clients = sessions("chat", RATE, seed, 900.0)
            router = (
                ProxiesRouter(OURS, [engine] * CARDS, PROXIES, shares[name])
                if name in shares
                else SchedulerRouter(OURS, [engine] * CARDS)
            )
            found.append(figures(Fleet([engine] * CARDS, router).run(clients), CARDS, SLOTS))
    one = sum(each.ttft_mean_s for each in runs["one"])
    one_p99 = sum(each.ttft_p99_s for each in runs["one"])
    one_hit = sum(each.hit_rate for each in runs["one"])
    told = {"simulated_ttft_mean_1_s": one / len(runs["one"])}
    for name, found in runs.items():
        if name != "one":
            told[f"simulated_{name}_ttft_mean_vs_1"] = sum(each.ttft_mean_s for each in found) / one
            told[f"simulated_{name}_ttft_p99_vs_1"] = sum(each.ttft_p99_s for each in found) / one_p99
            told[f"simulated_{name}_hit_difference"] = (sum(each.hit_rate for each in found) - one_hit) / len(found)
    return told


if __name__ == "__main__":
    sys.exit(main())
