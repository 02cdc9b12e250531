"""Rolling restarts of all workers under streams: `python -m tests.bench.restarts`. No stream may be cut, none refused.

Emulated engines, slotgate with several workers, and clients that each read one streamed answer after another, always
over a new connection; meanwhile `slotgate workers restart` again and again. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import uvloop

from proxy.admin_client import AdminClient, AdminError
from tests.bench.processes import CPUS, Missing, Process, allow_many_files, free_port

ENGINES, SLOTS = 4, 64
CONFIG = """\
listen = "127.0.0.1:{port}"
state_dir = "{folder}/slotgate"
admin_socket = "{folder}/slotgate/admin.sock"
workers = {workers}
[log]
format = "json"
"""
BACKEND = """\
[[backends]]
name = "gpu{number}"
url = "http://127.0.0.1:{port}"
slots = {slots}
running_limit = {slots}
"""


class Seen:
    """What the clients saw."""

    def __init__(self) -> None:
        self.whole = 0
        self.refused = 0
        """Connections that were not accepted, or closed before an answer began."""
        self.cut = 0
        """Answers that began and did not end."""
        self.failed = 0
        """Answers with another status than 200."""
        self.examples: Counter[str] = Counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200, help="at once (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=10, help="of all workers (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--speed", type=float, default=0.5, help="of the engines (default: %(default)s)")
    options = parser.parse_args()
    allow_many_files()
    with tempfile.TemporaryDirectory(prefix="restarts-") as folder:
        try:
            told = _run(Path(folder), options)
        except (Missing, AdminError) as error:
            print(error, file=sys.stderr)
            return 1
    print(json.dumps(told))
    return 0 if told["cut_streams"] == told["refused_connections"] == told["failed_requests"] == 0 else 1


def _run(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    everywhere = set(CPUS)
    ports = [free_port() for _ in range(ENGINES)]
    processes: list[Process] = []
    try:
        for number, port in enumerate(ports):
            command = [sys.executable, "-m", "proxy.emulated", f"--listen=127.0.0.1:{port}", "--uvloop", "--model=m"]
            command += ["--api=ollama", "--card=4090", f"--slots={SLOTS}", f"--speed={options.speed}"]
            processes.append(Process(f"engine{number}", command, everywhere, folder))
        for process, port in zip(processes, ports, strict=True):
            process.listen(port)
        port = free_port()
        text = CONFIG.format(port=port, folder=folder, workers=options.workers)
        text += "".join(BACKEND.format(number=number, port=each, slots=SLOTS) for number, each in enumerate(ports))
        (folder / "slotgate.toml").write_text(text)
        command = [sys.executable, "-m", "proxy", "serve", f"--config={folder}/slotgate.toml"]
        slotgate = Process("slotgate", command, everywhere, folder)
        processes.append(slotgate)
        slotgate.listen(port)
        with AdminClient(folder / "slotgate" / "admin.sock") as admin:
            _wait_ready(admin)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_load(admin, port, options))
    finally:
        for process in reversed(processes):
            process.stop()


def _wait_ready(admin: AdminClient) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            if all(backend.health == "ready" for backend in admin.status().backends):
                return
        except AdminError:
            pass
        time.sleep(0.1)
    raise Missing("the backends do not get ready within 60 s")


async def _load(admin: AdminClient, port: int, options: argparse.Namespace) -> dict[str, float]:
    seen, done = Seen(), asyncio.Event()
    took: list[float] = []
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(options.streams):
            group.create_task(_client(number, port, seen, done))
        while seen.whole < options.streams // 2:
            await asyncio.sleep(0.1)
        for number in range(options.restarts):
            before_s = time.monotonic()
            answer = await asyncio.to_thread(admin.restart_workers)
            while answer.restarting:
                await asyncio.sleep(0.1)
                answer = await asyncio.to_thread(admin.workers)
            if answer.problem:
                raise Missing(f"restart {number + 1}: {answer.problem}")
            took.append(time.monotonic() - before_s)
            retiring = sum(worker.state == "retiring" for worker in answer.workers)
            print(f"restart {number + 1}: {took[-1]:.1f} s, {retiring} old workers finish, {seen.whole} streams read")
        done.set()
    for example, count in seen.examples.most_common(5):
        print(f"{count} times: {example}", file=sys.stderr)
    return {
        "cut_streams": seen.cut,
        "refused_connections": seen.refused,
        "failed_requests": seen.failed,
        "whole_streams": seen.whole,
        "streams_at_once": options.streams,
        "restarts": options.restarts,
        "workers": options.workers,
        "restart_s": round(sum(took) / len(took), 2) if took else 0.0,
        "seconds": round(time.monotonic() - began_s, 1),
    }


async def _client(number: int, port: int, seen: Seen, done: asyncio.Event) -> None:
    body = {"model": "m", "prompt": f"client {number}: once upon a time", "options": {"num_predict": 100}}
    while not done.is_set():
        begun = False
        try:
            connector = aiohttp.TCPConnector(force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(300)) as session,
                session.post(f"http://127.0.0.1:{port}/api/generate", json=body) as answer,
            ):
                if answer.status != 200:
                    seen.failed += 1
                    seen.examples[f"status {answer.status}: {(await answer.text())[:200]}"] += 1
                    continue
                last = b""
                async for line in answer.content:
                    begun, last = True, line
            if b'"done":true' in last:
                seen.whole += 1
            else:
                seen.cut += 1
                seen.examples[f"ended with {last[-200:]!r}"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            seen.cut += begun
            seen.refused += not begun
            seen.examples[repr(error)] += 1


if __name__ == "__main__":
    sys.exit(main())
