"""The field's own analysis script, round after round, on two real engines: does it keep working, and does memory stay?

`python -m tests.bench.field [--rounds=100]` prints a table and ends with one JSON line. Exit status 1 if a request
failed or the proxy's memory grew by more than a tenth (and 8 MiB) after the first tenth of the rounds.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from tests.real_engine import MODEL_NAME
from tests.slotgate_process import real_config, slotgate

PARALLEL = 10
GROWTH_ALLOWED_BYTES = 8 * 1024 * 1024


def body(number: int) -> dict[str, object]:
    """One short request."""
    return {"model": MODEL_NAME, "prompt": f"Hello {number % 20}", "stream": False, "options": {"num_predict": 4}}


async def one_round(client: httpx.AsyncClient, number: int) -> int:
    """One question, ten at once, and the slots' states; returns how many answers were wrong."""
    answers = [await client.post("/api/generate", json=body(number))]
    answers += await asyncio.gather(
        *(client.post("/api/generate", json=body(number * PARALLEL + each)) for each in range(PARALLEL))
    )
    ps = (await client.get("/api/ps")).json()
    wrong = sum(not (answer.status_code == 200 and answer.json().get("eval_count")) for answer in answers)
    states = {slot["state"] for model in ps["models"] for slot in model["slots"]}
    return wrong + (not states <= {"idle", "busy"} or not states)


async def rounds(url: str, pid: int, count: int) -> dict[str, object]:
    """Run them all; returns what was measured."""
    process = psutil.Process(pid)
    settled = max(1, count // 10)
    wrong = early = 0
    began_s = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for number in range(count):
            wrong += await one_round(client, number)
            memory = process.memory_info().rss
            if number + 1 == settled:
                early = memory
            if (number + 1) % settled == 0:
                print(
                    f"  round {number + 1:4d}  {memory / 2**20:6.1f} MiB  {time.monotonic() - began_s:6.1f} s",
                    flush=True,
                )
    last = process.memory_info().rss
    return {
        "rounds": count,
        "requests": count * (PARALLEL + 1),
        "wrong": wrong,
        "rss_settled_mib": round(early / 2**20, 1),
        "rss_last_mib": round(last / 2**20, 1),
        "stable": last <= max(early * 1.1, early + GROWTH_ALLOWED_BYTES),
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    count = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="slotgate-field-") as name:
        directory = Path(name)
        print(f"{count} rounds of {PARALLEL + 1} requests on two real engines")
        with slotgate(directory, real_config(directory / "state")) as running:
            running.wait_ready(2)
            measured = asyncio.run(rounds(running.url, running.process.pid, count))
    print(json.dumps(measured))
    return 0 if measured["stable"] and not measured["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main())
