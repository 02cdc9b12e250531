"""The figures of the simulator again, in real time: emulated engines over HTTP, and the real proxy in front.

`make bench-routing-live`. The same clients (workload, rate, seed) are sent through slotgate and through nginx's
least_conn, one after the other, and simulated beside that. Engines and clients run `--speed` times as fast as the
cards they stand for; times are told as those of the cards. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec
import uvloop

from proxy.admin_client import AdminClient, AdminError
from proxy.cli.tables import columns
from proxy.emulated.text import WORDS
from proxy.simulations import Router
from scheduler.simulation.conversations import Session
from scheduler.simulation.records import Record
from scheduler.simulation.runs import run
from scheduler.simulation.statistics import figures
from scheduler.simulation.workloads import sessions
from tests.bench.processes import CPUS, Missing, Process, allow_many_files, free_port, serve, start_nginx
from tests.bench.routing_figures import OURS
from tests.bench.saturation import hungry, throughput

MOST_FAILED = 100
"""Failed requests after which a run is given up."""
CARDS, SLOTS, CONTEXT = 4, 16, 16_384
ENGINE = ("--card=4090", f"--slots={SLOTS}", f"--context={CONTEXT}", "--answer-tokens=1200", "--uvloop", "--faults")


class Case(NamedTuple):
    """One kind of traffic."""

    name: str
    workload: str
    rate: float


CASES = (Case("chat", "chat", 1.2), Case("rag", "rag", 4.0), Case("overload", "chat", 1.4))
BURST = "burst"
"""100 clients that ask again as soon as they are answered, against a quarter of them on one card."""
BURST_CLIENTS, BURST_TOKENS = 100, 3000


class Side(NamedTuple):
    """One proxy: as it runs, and as it is simulated."""

    name: str
    policy: str
    """The preset that slotgate runs; empty: it is nginx."""
    router: Router


SIDES = (Side("slotgate", "balanced", OURS), Side("nginx", "", "leastconn"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=2.0, help="divides all times (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=300.0, help="seconds of arrivals (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="runs behind each figure (default: %(default)s)")
    parser.add_argument("--cases", default="chat,rag,burst", help="also: overload (default: %(default)s)")
    options = parser.parse_args()
    allow_many_files()
    wanted = options.cases.split(",")
    told: dict[str, float] = {}
    rows = []
    try:
        for case in [case for case in CASES if case.name in wanted]:
            for name, row in compare(case, options).items():
                told |= {f"{case.name}_{key}_{name}": value for key, value in row.items()}
                rows.append((case.name, name, *(f"{value:.3f}" for value in row.values())))
        if BURST in wanted:
            told |= burst()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    print(f"{CARDS} emulated RTX 4090s of {SLOTS} slots, {options.duration:.0f} s of arrivals, {options.seeds} seeds,")
    print(f"in real time at {options.speed:g} times the speed; ratios are slotgate over nginx\n")
    print(columns(("TRAFFIC", "WHERE", "MEAN S", "P99 S", "NGINX MEAN S", "NGINX P99 S", "MEAN", "P99"), rows, gap=2))
    print(json.dumps({key: round(value, 4) for key, value in told.items()}))
    return 0


def compare(case: Case, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures of a case as lived and as simulated."""
    seeds = range(1, options.seeds + 1)
    results: dict[str, dict[str, float]] = {}
    for where in ("live", "simulated"):
        row: dict[str, float] = {}
        for side in SIDES:
            runs = []
            for seed in seeds:
                clients = sessions(case.workload, case.rate, seed, options.duration)
                if where == "simulated":
                    records = run(side.router, clients, 0.0, SLOTS)
                else:
                    print(f"{case.name}, seed {seed}, through {side.name} ...", file=sys.stderr, flush=True)
                    records = live(side, clients, options.speed)
                runs.append(figures(records, CARDS, SLOTS))
            row[f"{side.name}_mean_s"] = sum(each.ttft_mean_s for each in runs) / len(runs)
            row[f"{side.name}_p99_s"] = sum(each.ttft_p99_s for each in runs) / len(runs)
        row["mean_ratio"] = row["slotgate_mean_s"] / row["nginx_mean_s"]
        row["p99_ratio"] = row["slotgate_p99_s"] / row["nginx_p99_s"]
        results[where] = row
    return results


def burst() -> dict[str, float]:
    """Tokens per second of four cards over those of one, lived at the cards' own speed, and simulated."""
    told: dict[str, float] = {}
    for where in ("live", "simulated"):
        loops = {}
        for cards, count in ((CARDS, BURST_CLIENTS), (1, BURST_CLIENTS // CARDS)):
            clients = hungry(1, (count,), BURST_TOKENS)
            if where == "live":
                print(f"burst, {cards} cards, through slotgate ...", file=sys.stderr, flush=True)
                records = live(SIDES[0], clients, 1.0, cards)
            else:
                records = run(OURS, clients, 0.0, SLOTS, cards=cards)
            loops[cards] = throughput(records, cards)
        told[f"burst_cards_{where}"] = loops[CARDS].tokens_per_s / loops[1].tokens_per_s
        told[f"burst_imbalance_{where}"] = loops[CARDS].imbalance
        told[f"burst_tokens_per_s_{where}"] = loops[CARDS].tokens_per_s
    return told


def live(side: Side, clients: Sequence[Session], speed: float, cards: int = CARDS) -> list[Record]:
    """Send the clients through a proxy in front of fresh engines, in real time."""
    with tempfile.TemporaryDirectory() as name, fleet(Path(name), side, speed, cards) as port:
        records: list[Record] = uvloop.run(Clients([port], speed).run(clients))
        return records


@contextlib.contextmanager
def fleet(folder: Path, side: Side, speed: float, cards: int) -> Iterator[int]:
    """Engines and a proxy; gives the port of the proxy."""
    with engines(folder, speed, cards) as ports:
        proxy = start_proxy(folder, side, ports)
        try:
            if side.policy:
                wait_ready(folder, cards)
            yield proxy.port
        finally:
            proxy.stop()


@contextlib.contextmanager
def engines(folder: Path, speed: float, cards: int = CARDS) -> Iterator[list[int]]:
    """Emulated cards; gives their ports."""
    started: list[Process] = []
    try:
        ports = [free_port() for _ in range(cards)]
        for number, port in enumerate(ports):
            command = [
                sys.executable,
                "-m",
                "proxy.emulated",
                *ENGINE,
                f"--speed={speed}",
                f"--listen=127.0.0.1:{port}",
            ]
            started.append(Process(f"card-{number}", command, set(CPUS), folder))
        for port, engine in zip(ports, started, strict=True):
            engine.listen(port)
        yield ports
    finally:
        for process in reversed(started):
            process.stop()


def start_proxy(folder: Path, side: Side, ports: Sequence[int]) -> Process:
    if not side.policy:
        proxy = start_nginx(folder, *(f"127.0.0.1:{port}" for port in ports))
    else:
        port = free_port()
        proxy = serve(folder, port, slotgate_config(folder, port, ports, f'[policy]\npreset = "{side.policy}"\n'))
    os.sched_setaffinity(proxy.pid, set(CPUS))
    return proxy


def slotgate_config(folder: Path, port: int, ports: Sequence[int], rest: str, running_limit: int = SLOTS) -> str:
    """A proxy in front of emulated cards; `rest`: further tables."""
    tables = [
        f'[[backends]]\nname = "card-{number}"\nurl = "http://127.0.0.1:{each}"\nengine = "llama-server"\n'
        f'slots = {SLOTS}\nrunning_limit = {running_limit}\ngpu_name = "NVIDIA GeForce RTX 4090"\n'
        for number, each in enumerate(ports)
    ]
    return (
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{folder}/slotgate"\nadmin_socket = "{folder}/admin.sock"\n'
        f"[limits]\nmax_waiting = 100000\n{rest}{''.join(tables)}"
    )


def wait_ready(folder: Path, cards: int, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    with AdminClient(folder / "admin.sock") as admin:
        while True:
            with contextlib.suppress(AdminError):
                if sum(backend.health == "ready" for backend in admin.status().backends) == cards:
                    return
            if time.monotonic() > deadline:
                raise Missing("slotgate's backends do not become ready")
            time.sleep(0.1)


class Clients:
    """Sessions over HTTP; keeps a record of each request, in milliseconds of the cards' time."""

    def __init__(self, ports: Sequence[int], speed: float, *, stay: bool = False) -> None:
        """`stay`: a session stays with one proxy, as kept-alive connections do; else each request goes to the next."""
        self.may_fail: set[int] = set()
        """Ports of proxies that are being killed: nobody is sent there any more."""
        self.failed = 0
        """Requests cut by such a proxy."""
        self.failed_elsewhere = 0
        """Requests that failed at any other one."""
        self._ports = itertools.cycle(ports)
        self._stay = stay
        self._homes: dict[str, int] = {}
        """Of sessions that stay: their proxies' ports."""
        self._speed = speed
        self._records: list[Record] = []
        self._start_s = 0.0

    async def run(self, clients: Sequence[Session]) -> list[Record]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as http:
            self._start_s = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for session in clients:
                    group.create_task(self._session(http, session))
        return self._records

    def now_ms(self) -> float:
        """Since the start, in the cards' time."""
        return (time.perf_counter() - self._start_s) * 1000 * self._speed

    async def _session(self, http: aiohttp.ClientSession, session: Session) -> None:
        due_ms = session.arrives_ms
        messages: list[dict[str, str]] = []
        said = 0
        for number, turn in enumerate(session.turns):
            # The last message of the content is the answer; what else is new was said by the client.
            for index in range(said, len(turn.content.ends) - 1):
                length = turn.content.ends[index] - (turn.content.ends[index - 1] if index else 0)
                role = "user" if index or len(turn.content.ends) == 2 else "system"
                messages.append({"role": role, "content": words(turn.content.hashes[index], length)})
            said = len(turn.content.ends)
            await asyncio.sleep(max(0.0, (due_ms - self.now_ms()) / 1000 / self._speed))
            answer = await self._turn(http, session, number, messages)
            messages.append({"role": "assistant", "content": answer})
            if number + 1 < len(session.turns):
                due_ms = self.now_ms() + session.turns[number + 1].think_ms

    async def _turn(
        self, http: aiohttp.ClientSession, session: Session, number: int, messages: list[dict[str, str]]
    ) -> str:
        """Ask until somebody answers."""
        name = f"{session.id}.{number}"
        while True:
            port = self._homes.get(session.id) if self._stay else None
            if port is None or port in self.may_fail:
                port = self._homes[session.id] = next(each for each in self._ports if each not in self.may_fail)
            try:
                return await self._ask(http, port, name, session.tenant, messages, session.turns[number].output_tokens)
            except (aiohttp.ClientError, OSError, Missing) as error:
                if port in self.may_fail:
                    self.failed += 1
                    continue
                self.failed_elsewhere += 1
                if self.failed_elsewhere > MOST_FAILED:
                    raise Missing(f"{name}: {error!r}") from error

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        port: int,
        name: str,
        tenant: str,
        messages: list[dict[str, str]],
        tokens: int,
    ) -> str:
        body = {"model": "emulated", "messages": messages, "max_tokens": tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        arrived_ms = self.now_ms()
        first_ms, answer, usage, backend = 0.0, "", _Usage(), 0
        async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
            backend = int(response.headers.get("X-Slotgate-Backend", "card-0").rpartition("-")[2])
            if response.status != 200:
                raise Missing(f"{name}: {response.status} {await response.text()}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = _EVENTS.decode(line[6:])
                usage = event.usage or usage
                if event.choices and (piece := event.choices[0].delta.content):
                    first_ms = first_ms or self.now_ms()
                    answer += piece
        ended_ms = self.now_ms()
        if usage.completion_tokens != tokens:
            raise Missing(f"{name}: {usage.completion_tokens} tokens of {tokens} were answered")
        self._records.append(
            Record(
                name,
                tenant,
                arrived_ms,
                usage.prompt_tokens,
                tokens,
                backend=backend,
                started_ms=first_ms,
                first_token_ms=first_ms,
                ended_ms=ended_ms,
                cached_tokens=usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0,
            )
        )
        return answer


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_EVENTS = msgspec.json.Decoder(_Event)


@cache
def words(name: int, count: int) -> str:
    """The text of a message: a token of the emulated engine per word; the same name, the same text."""
    return "".join(f" {word}" for word in Random(name).choices(WORDS, k=count))


if __name__ == "__main__":
    sys.exit(main())
