"""CPU, latency and memory of the proxy beside nginx, in one run: `make bench-relay`.

All proxies are alive at once, on one CPU; engine and clients share another. Slices of each take turns, and each ratio
is taken within its round, so that what else the machine does hits both. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.bench.load import Broken, Streams, closed_loop, open_loop
from tests.bench.processes import (
    CPUS,
    LOAD_CPU,
    Missing,
    Process,
    allow_many_files,
    cpu_s,
    pss_bytes,
    start_bare,
    start_engine,
    start_nginx,
    start_slotgate,
)

STREAMS = 100
PACE_MS = 10
SLICE_S = 1.5
LONGEST_S = 60.0
"""No further round is begun after this, unless it is the second."""


class Side:
    """One proxy and what was measured of it."""

    def __init__(self, process: Process, pids: list[int], others: list[int]) -> None:
        self.name = process.name
        self.port = process.port
        self.pids = pids
        """What counts as the proxy."""
        self.others = others
        """Its store: reported beside it."""
        self.per_chunk_us: list[float] = []
        self.per_short_us: list[float] = []
        self.store_per_short_us: list[float] = []
        self.chunks_per_s: list[float] = []
        self.shorts_per_s: list[float] = []
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []
        self.bytes_per_stream = 0.0

    def cpu_s(self) -> float:
        return cpu_s(self.pids)


async def stream_slice(side: Side) -> None:
    """100 paced streams; measured from the moment when all have begun."""
    chunks = int((SLICE_S + 0.6) * 1000 / PACE_MS)
    streams = Streams(side.port)
    await streams.start(STREAMS, chunks)
    await streams.all_begun()
    before, counted, start_s = side.cpu_s(), streams.chunks, time.perf_counter()
    await asyncio.sleep(SLICE_S)
    used, count, took_s = side.cpu_s() - before, streams.chunks - counted, time.perf_counter() - start_s
    deadline = time.perf_counter() + 5
    while streams.ended < STREAMS and time.perf_counter() < deadline:
        await asyncio.sleep(0.01)
    streams.close()
    if streams.ended < STREAMS:
        raise Broken(f"{STREAMS - streams.ended} streams through {side.name} did not end")
    side.per_chunk_us.append(used / count * 1e6)
    side.chunks_per_s.append(count / took_s)


async def short_slice(side: Side) -> None:
    """32 connections that ask short questions as fast as they are answered."""
    store_before = cpu_s(side.others)
    count, used = await closed_loop(side.port, 32, 1.0, side.cpu_s)
    side.per_short_us.append(used / count * 1e6)
    side.store_per_short_us.append((cpu_s(side.others) - store_before) / count * 1e6)
    side.shorts_per_s.append(float(count))


async def latency_slice(side: Side, per_s: int) -> None:
    took = sorted(await open_loop(side.port, per_s, 1.5))
    side.p50_ms.append(took[len(took) // 2] * 1e3)
    side.p99_ms.append(took[int(len(took) * 0.99)] * 1e3)


async def memory(side: Side, count: int) -> None:
    """Growth of the proxy's memory per stream that is open and silent."""
    warm = Streams(side.port)
    await warm.start(50, -1)
    await warm.all_begun()
    before = pss_bytes(side.pids)
    streams = Streams(side.port)
    await streams.start(count, -1)
    await streams.all_begun()
    side.bytes_per_stream = (pss_bytes(side.pids) - before) / count
    streams.close()
    warm.close()
    await asyncio.sleep(0.3)


def paired(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(sides: list[Side], nginx: Side, direct: Side) -> None:
    head = ("", "us/chunk", "vs nginx", "chunk/s", "us/short", "vs nginx", "short/s", "+p50 ms", "+p99 ms", "B/stream")
    print("".join(f"{each:>11}" for each in head))
    middle = statistics.median
    for side in sides:
        row = (
            f"{middle(side.per_chunk_us):.1f}",
            f"{paired(side.per_chunk_us, nginx.per_chunk_us):.2f}",
            f"{middle(side.chunks_per_s):.0f}",
            f"{middle(side.per_short_us):.1f}",
            f"{paired(side.per_short_us, nginx.per_short_us):.2f}",
            f"{middle(side.shorts_per_s):.0f}",
            f"{middle(side.p50_ms) - middle(direct.p50_ms):.2f}",
            f"{middle(side.p99_ms) - middle(direct.p99_ms):.2f}",
            f"{side.bytes_per_stream:.0f}",
        )
        print(f"{side.name:>11}" + "".join(f"{each:>11}" for each in row))
        if side.others:
            print(f"{'its store':>11}{'':>33}{middle(side.store_per_short_us):>11.1f}   (a process of its own)")
    print(f"direct to the engine: p50 {middle(direct.p50_ms):.2f} ms, p99 {middle(direct.p99_ms):.2f} ms")
    spread = max(nginx.per_chunk_us) / min(nginx.per_chunk_us)
    if spread > 1.3:
        print(f"noisy: nginx's own cost per chunk varied by {spread:.2f}x between rounds; trust ratios, not values")


async def run(options: argparse.Namespace, folder: Path, started: list[Process]) -> dict[str, float]:
    engine, unix = start_engine(folder)
    started.append(engine)
    url = f"http://127.0.0.1:{engine.port}"
    started.append(start_nginx(folder, f"127.0.0.1:{engine.port}"))
    if not options.bare_only:
        started.append(start_slotgate(folder, url))
    if options.bare or options.bare_only:
        started.append(start_bare("relay", folder, url))
    if options.bare:
        started.append(start_bare("relay-unix", folder, f"unix:{unix}"))
    direct = Side(engine, [engine.pid], [])
    sides: list[Side] = []
    for process in started[1:]:
        children = process.children()
        nginx_like = process.name == "nginx"
        sides.append(Side(process, [process.pid, *(children if nginx_like else [])], [] if nginx_like else children))
    nginx, product = sides[0], sides[1]
    await ready(product.port)
    for side in sides:
        await closed_loop(side.port, 8, 0.2, side.cpu_s)
    start_s = time.monotonic()
    for number in range(options.rounds):
        for side in sides if number % 2 else sides[::-1]:
            await stream_slice(side)
            await short_slice(side)
            await latency_slice(side, options.rate)
        await latency_slice(direct, options.rate)
        if number and time.monotonic() - start_s > LONGEST_S:
            print(f"stopped after {number + 1} rounds: the machine is slow or busy", file=sys.stderr)
            break
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    for side in sides:
        await memory(side, options.idle_streams)
    table(sides, nginx, direct)
    middle = statistics.median
    return {
        "cpu_per_chunk_vs_nginx": round(paired(product.per_chunk_us, nginx.per_chunk_us), 3),
        "cpu_per_short_request_vs_nginx": round(paired(product.per_short_us, nginx.per_short_us), 3),
        "added_ttfb_p50_ms": round(middle(product.p50_ms) - middle(direct.p50_ms), 3),
        "added_ttfb_p99_ms": round(middle(product.p99_ms) - middle(direct.p99_ms), 3),
        "bytes_per_open_stream": round(product.bytes_per_stream),
    }


async def ready(port: int, timeout_s: float = 30.0) -> None:
    """Wait until the proxy passes a request on: it may still be looking at its engine."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await closed_loop(port, 1, 0.05, time.monotonic)
        except (Broken, OSError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


def isolate(realtime: bool) -> None:
    """Put this process and those that it starts before other work on the machine, as far as it is allowed to."""
    os.sched_setaffinity(0, {LOAD_CPU})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    else:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=1000, help="requests/s of the latency slices")
    parser.add_argument("--idle-streams", type=int, default=1000)
    parser.add_argument("--bare", action="store_true", help="measure the relay alone too, over TCP and a unix socket")
    parser.add_argument("--bare-only", action="store_true", help="measure the relay alone instead of the product")
    parser.add_argument("--realtime", action="store_true", help="real-time priority (root); other work starves")
    options = parser.parse_args()
    allow_many_files()
    isolate(options.realtime)
    if len(CPUS) < 2:
        print("only one CPU: proxies, engine and clients share it; latencies say little", file=sys.stderr)
    started: list[Process] = []
    with tempfile.TemporaryDirectory(prefix="slotgate-bench-") as folder:
        try:
            result = uvloop.run(run(options, Path(folder), started))
        except (Missing, Broken) as error:
            print(error, file=sys.stderr)
            for process in started:
                print(f"--- {process.log.name}\n{process.log.read_text()[-1500:]}", file=sys.stderr)
            return 1
        finally:
            for process in reversed(started):
                process.stop()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
