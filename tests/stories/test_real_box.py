"""The main job on real engines: two llama-servers on the CPU, started and kept by slotgate, behind one address.

Living documentation: each test is one thing that a user of the box relies on.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.real_engine import MODEL_NAME
from tests.slotgate_process import SlotgateProcess, real_config, slotgate
from tests.stories.gauges import gauges
from tests.wait import until, until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

LIMIT = 2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlotgateProcess]:
    directory = tmp_path_factory.mktemp("box")
    with slotgate(directory, real_config(directory / "state", running_limit=LIMIT)) as process:
        process.wait_ready(2)
        yield process


def body(prompt: str, tokens: int = 8, **more: object) -> dict[str, object]:
    return {"model": MODEL_NAME, "prompt": prompt, "stream": False, "options": {"num_predict": tokens}} | more


async def test_a_hundred_at_once_use_both_backends_and_never_the_engines_queues(running: SlotgateProcess) -> None:
    async with (
        gauges(running) as seen,
        httpx.AsyncClient(base_url=running.url, timeout=240, limits=httpx.Limits(max_connections=100)) as client,
    ):
        answers = await asyncio.gather(
            *(client.post("/api/generate", json=body(f"Story number {number}")) for number in range(100))
        )

    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json()["done"] for answer in answers)
    used = [sum(answer.headers["X-Slotgate-Backend"] == name for answer in answers) for name in ("cpu-0", "cpu-1")]
    assert min(used) >= 40, used
    assert seen.samples > 4
    assert seen.processing <= LIMIT
    assert seen.deferred == 0


def test_the_script_of_the_field_works_unchanged(running: SlotgateProcess, tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("jq") is None:
        pytest.skip("curl and jq are not installed (apt install curl jq)")
    script = f"""
        HOST={running.url}
        BODY='{{"model":"{MODEL_NAME}","prompt":"Hello","stream":false,"options":{{"num_predict":4}}}}'
        ask() {{ curl -s $HOST/api/generate -d "$BODY"; }}
        ask | jq '.eval_count, .eval_duration'
        for i in 1 2 3 4 5 6 7 8 9 10; do ask > answer.$i & done; wait
        cat answer.* | jq .done
        curl -s $HOST/api/ps | jq '.models[].slots[].state'
    """
    out = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    lines = out.stdout.split()

    assert int(lines[0]) == 4
    assert int(lines[1]) > 0
    assert lines[2:12] == ["true"] * 10
    assert len(lines[12:]) == 8, "two backends with four slots each"
    assert set(lines[12:]) <= {'"idle"', '"busy"'}


async def test_a_second_turn_finds_its_prompt_cached(running: SlotgateProcess) -> None:
    text = "The museum of computing has five rooms. " * 20
    async with httpx.AsyncClient(base_url=running.url, timeout=120) as client:
        names = {backend.name for backend in running.backends()}
        for _ in names | {"again"}:  # once per backend, and once more: by then every backend has seen it
            answer = await client.post("/v1/chat/completions", json=_chat(text))

    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def _chat(text: str) -> dict[str, object]:
    return {"model": MODEL_NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "seed": 1}


async def test_a_client_that_leaves_during_prefill_frees_its_slot(running: SlotgateProcess) -> None:
    long = "word " * 1500
    async with httpx.AsyncClient(base_url=running.url, timeout=120) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/api/generate", json=body(long, 200), timeout=0.5)

    def free() -> bool:
        return all(backend.running == 0 for backend in running.backends())

    await until(lambda: asyncio.to_thread(free), "all slots are free again", 60)
    assert running.admin.recent()[-1].termination in {"CH", "CD"}


async def test_a_killed_backend_costs_no_request_that_had_not_begun(running: SlotgateProcess) -> None:
    victim = running.backends()[0]
    assert victim.pid is not None
    async with httpx.AsyncClient(base_url=running.url, timeout=240, limits=httpx.Limits(max_connections=30)) as client:
        asked = [
            asyncio.ensure_future(client.post("/api/generate", json=body(f"Tale {number}", 16))) for number in range(24)
        ]
        await until(lambda: running.admin.status().backends[0].running > 0, "the backend runs something")
        os.kill(victim.pid, signal.SIGKILL)
        answers = await asyncio.gather(*asked)

    # Whole answers are put together before they go out, so none of them had begun.
    assert {answer.status_code for answer in answers} == {200}
    await asyncio.to_thread(running.wait_ready, 2)
    back = running.backends()[0]
    assert back.restarts == victim.restarts + 1
    assert back.pid != victim.pid


def engines_of(state_dir: Path) -> list[int]:
    """Processes of engines that were started for this state directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(state_dir) in part for part in process.info["cmdline"] or []) and process.is_running()
    ]


def test_nothing_is_left_of_a_killed_slotgate(tmp_path: Path) -> None:
    config = real_config(tmp_path / "state", backends=1)
    with slotgate(tmp_path, config) as first:
        first.wait_ready(1)
        assert engines_of(first.state_dir)
        first.kill()
        until_sync(
            lambda: not [pid for pid in engines_of(first.state_dir) if pid != first.process.pid], "no orphan", 30
        )
    with slotgate(tmp_path, config) as second:
        second.wait_ready(1)
        answer = httpx.post(f"{second.url}/api/generate", json=body("Hello", 2), timeout=60)
        assert answer.status_code == 200
