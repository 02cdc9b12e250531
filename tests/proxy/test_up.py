"""An emulated box as a user starts it: what runs, that it answers, and that nothing of it stays behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from proxy.admin_client import AdminClient
from proxy.trial import TrialError
from proxy.up import Up, cards_of
from tests.wait import until_sync


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("4x4090", ("4090",) * 4),
        ("4090", ("4090",)),
        ("2x4090, 1xH200,cpu", ("4090", "4090", "h200", "cpu")),
    ],
)
def test_cards(text: str, cards: tuple[str, ...]) -> None:
    assert cards_of(text) == cards


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write COUNTxCARD, such as 4x4090; cards: 4090, h200, cpu"),
        ("0x4090", "write COUNTxCARD"),
        ("100x4090", "no step times of a card '100x4090'"),
        ("4x4080", "no step times of a card '4080'; do you mean 4090?"),
        ("2xmi300", "there are 4090, h200, cpu"),
    ],
)
def test_cards_that_are_none(text: str, words: str) -> None:
    with pytest.raises(TrialError, match=words.replace("?", r"\?")):
        cards_of(text)


@contextmanager
def up(tmp_path: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", Up]]:
    """A running `slotgate up --json`, and what it printed."""
    command = [sys.executable, "-m", "proxy", "up", "--json", "--listen=127.0.0.1:0", "--speed=50", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLOTGATE_")}
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ | {"TMPDIR": str(tmp_path)}
        )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] not in {"}\n", ""}:
            lines.append(process.stdout.readline())
        assert lines[-1], (tmp_path / "errors").read_text()
        yield process, msgspec.convert(json.loads("".join(lines)), Up)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def gone(running: Up) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in (running.pid, *(engine.pid for engine in running.engines)))


@pytest.mark.parametrize(("api", "number"), [("llama-server", signal.SIGINT), ("ollama", signal.SIGTERM)])
def test_it_serves_until_interrupted(tmp_path: Path, api: str, number: signal.Signals) -> None:
    with up(tmp_path, "--emulate=1x4090,1xcpu", "--slots=3", f"--api={api}", "--model=llama3.1:8b") as (box, running):
        assert [(engine.name, engine.gpu_name) for engine in running.engines] == [
            ("4090-0", "NVIDIA GeForce RTX 4090"),
            ("cpu-1", "cpu"),
        ]
        body = {"model": "llama3.1:8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 5
        assert answer.headers["X-Slotgate-Backend"] == "4090-0", "it is told that this card is the faster one"
        with AdminClient(Path(running.admin_socket)) as admin:
            assert [(backend.health, backend.slots) for backend in admin.status().backends] == [("ready", 3)] * 2
        assert httpx.get(f"{running.engines[1].url}/emulated/faults").status_code == 200
        box.send_signal(number)
        assert box.wait(60) == 0
        assert gone(running)
    assert [path.name for path in tmp_path.iterdir()] == ["errors"]


def test_killed_it_leaves_no_process_behind(tmp_path: Path) -> None:
    with up(tmp_path, "--emulate=2x4090") as (box, running):
        assert not gone(running)
        box.kill()
        until_sync(lambda: gone(running), "everything has ended", timeout_s=30)


def test_an_address_that_cannot_be_had(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxy", "up", "--emulate=1x4090", "--listen=256.0.0.1:80"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}, check=False
    )
    assert ended.returncode == 1
    assert "--listen=127.0.0.1:11435" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []
