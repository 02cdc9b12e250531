"""`slotgate up` hands over, and shows what runs."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from proxy.trial import TrialError
from proxy.up import Box, Started, Up
from tests.proxy.cli.conftest import Slotgate

ENGINES = tuple(
    Started(f"4090-{number}", "4090", "NVIDIA GeForce RTX 4090", f"http://127.0.0.1:4000{number}", 100 + number, "/l")
    for number in range(2)
)
RUNNING = Up(
    url="http://127.0.0.1:11434", model="tiny", api="ollama", slots=4, running_limit=4, speed=2.5,
    admin_socket="/tmp/a b/admin.sock", log="/tmp/a b/slotgate.log", pid=99, engines=ENGINES,
)  # fmt: skip


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> list[Box]:
    """The boxes that were asked for; each comes up at once, and is interrupted."""
    asked: list[Box] = []

    def run(box: Box, *, tell: Callable[[str], None], show: Callable[[Up], None]) -> None:
        asked.append(box)
        tell("starting")
        running = RUNNING if box.listen != "unix:/s" else msgspec.structs.replace(RUNNING, url="unix:/s")
        show(running)
        raise KeyboardInterrupt

    monkeypatch.setattr("proxy.up.run", run)
    return asked


def test_hands_over(slotgate: Slotgate, boxes: list[Box]) -> None:
    result = slotgate("up", "--emulate=2x4090", "--slots=4", "--model=tiny", "--speed=2.5", "--api=ollama")
    assert (result.exit_code, result.stderr) == (0, "starting\nstopped\n")
    assert boxes == [Box(cards=("4090", "4090"), slots=4, model="tiny", speed=2.5, api="ollama")]
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["4090-0", "NVIDIA", "GeForce", "RTX", "4090", "http://127.0.0.1:40000", "100"]
    assert "ollama with 4 slots each; speed 2.5" in lines
    assert "clients: http://127.0.0.1:11434" in lines
    assert "  slotgate status --socket='/tmp/a b/admin.sock'" in lines
    assert any(line.startswith("  curl -s http://127.0.0.1:11434/v1/chat/completions -d '{") for line in lines)


def test_over_a_unix_socket(slotgate: Slotgate, boxes: list[Box]) -> None:
    shown = slotgate("up", "--emulate=2x4090", "--listen=unix:/s").stdout
    assert boxes[0].listen == "unix:/s"
    assert "  curl -s --unix-socket /s http://localhost/v1/chat/completions -d" in shown


def test_slots_that_run_nothing_are_told(slotgate: Slotgate, boxes: list[Box], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RUNNING", msgspec.structs.replace(RUNNING, slots=16, running_limit=8))
    shown = slotgate("up", "--emulate=2x4090").stdout
    assert "ollama with 16 slots each, 8 of which run requests at once; speed 2.5\n" in shown


@pytest.mark.usefixtures("boxes")
def test_as_json(slotgate: Slotgate) -> None:
    shown: dict[str, Any] = msgspec.json.decode(slotgate("up", "--emulate=2x4090", "--json").stdout)
    assert msgspec.convert(shown, Up) == RUNNING


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--emulate=4x4080"], "do you mean 4090?"),
        (["--emulate=4x4090", "--api=vllm"], "llama-server or ollama"),
        (["--emulate=4x4090", "--slots=0"], "--slots"),
        (["--emulate=4x4090", "--speed=0"], "--speed"),
        ([], "--emulate"),
    ],
)
def test_wrong_usage(slotgate: Slotgate, boxes: list[Box], arguments: list[str], words: str) -> None:
    result = slotgate("up", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert boxes == []


def test_what_goes_wrong_is_told(slotgate: Slotgate, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(box: Box, **_how: object) -> None:
        raise TrialError(f"cannot listen on {box.listen}")

    monkeypatch.setattr("proxy.up.run", run)
    result = slotgate("up", "--emulate=1x4090")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: cannot listen on 127.0.0.1:11434\n"
