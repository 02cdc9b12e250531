"""`slotgate pull`, `rm` and `cp`."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from proxy.admin_client import AdminClient
from proxy.cli import pull
from tests.proxy.admin_stand_in import AdminStandIn
from tests.proxy.cli.conftest import Slotgate

DIGEST = f"sha256:365c0bd3c000{'a' * 52}"
PROGRESS: list[dict[str, object]] = [
    {"store": "gpu-0, gpu-1", "status": "pulling manifest"},
    {"store": "gpu-2", "status": "pulling manifest"},
    {"store": "gpu-0, gpu-1", "status": "pulling 365c", "digest": DIGEST, "total": 1000},
    {"store": "gpu-0, gpu-1", "status": "pulling 365c", "digest": DIGEST, "total": 1000, "completed": 400},
    {"store": "gpu-2", "status": "success"},
    {"store": "gpu-0, gpu-1", "status": "success"},
    {"status": "success"},
]


def test_pull(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = PROGRESS
    result = slotgate("pull", "llama3")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "gpu-0, gpu-1: pulling manifest",
        "gpu-2: pulling manifest",
        "gpu-0, gpu-1: pulling 365c",
        "gpu-0, gpu-1: pulling 365c 40 %",
        "gpu-2: success",
        "gpu-0, gpu-1: success",
    ]
    assert stand_in.asked == ["POST /models/pull"]
    assert stand_in.bodies == [{"model": "llama3"}]


def test_without_a_terminal_each_tenth_of_a_blob_is_told_once(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    blobs = [f"sha256:{letter * 64}" for letter in "ab"]
    stand_in.progress = [
        {"store": "g", "status": f"pulling {digest[7:9]}", "digest": digest, "total": 1000, "completed": completed}
        for completed in range(1, 1001, 3)
        for digest in blobs
    ] + [{"store": "g", "status": "success"}, {"status": "success"}]
    told = slotgate("pull", "llama3").stderr.splitlines()
    for name in ("aa", "bb"):
        assert [line for line in told if name in line] == [
            f"g: pulling {name}", *(f"g: pulling {name} {tenth}0 %" for tenth in range(1, 11))
        ]  # fmt: skip


def test_notes(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = [{"note": "set store\x1b"}, {"store": "gpu-0", "status": "success"}, {"status": "success"}]
    result = slotgate("pull", "llama3")
    assert (result.exit_code, result.stderr) == (0, "note: set store?\ngpu-0: success\n")
    result = slotgate("pull", "llama3", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)
    console = Console(file=io.StringIO(), width=80)
    with Progress(console=console, auto_refresh=False) as bars:
        assert pull.Bars(bars).show(iter(stand_in.progress)) is None
    assert "note: set store" in console.file.getvalue()  # type: ignore[attr-defined]


def test_json_is_one_object_per_line(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = PROGRESS
    result = slotgate("pull", "llama3", "--json", "--insecure")

    assert [json.loads(line) for line in result.stdout.splitlines()] == PROGRESS
    assert stand_in.bodies == [{"model": "llama3", "insecure": True}]


def test_an_error_ends_it(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = [{"store": "gpu-0", "status": "pulling manifest"}, {"error": "gpu-0: no such host\x1b[31m"}]
    for arguments in (("pull", "x"), ("pull", "x", "--json"), ("rm", "x"), ("cp", "x", "y")):
        result = slotgate(*arguments)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == "error: gpu-0: no such host?[31m"


def test_a_connection_that_breaks_is_no_success(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = PROGRESS[:3]
    for arguments in (("pull", "x"), ("pull", "x", "--json")):
        result = slotgate(*arguments)
        assert result.exit_code == 1
        assert "before it was done" in result.stderr


def test_a_refusal(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.refusal = "invalid model name"
    result = slotgate("pull", "../x")
    assert (result.exit_code, result.stderr) == (1, "error: invalid model name\n")


def test_interrupted(slotgate: Slotgate, stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_client: AdminClient, _change: str, _body: object) -> Iterator[dict[str, Any]]:
        yield dict(PROGRESS[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(AdminClient, "change_models", interrupted)
    result = slotgate("pull", "llama3")
    assert result.exit_code == 130
    assert result.stderr.endswith("stopped; what has come is kept: `slotgate pull llama3` goes on from there\n")


def test_rm_and_cp(slotgate: Slotgate, stand_in: AdminStandIn) -> None:
    stand_in.progress = [{"store": "gpu-0", "status": "success"}, {"status": "success"}]
    assert slotgate("rm", "a").stdout == "deleted a\n"
    assert slotgate("cp", "a", "b").stdout == "copied a to b\n"
    assert json.loads(slotgate("rm", "a", "--json").stdout.splitlines()[-1]) == {"status": "success"}
    assert stand_in.asked == ["POST /models/delete", "POST /models/copy", "POST /models/delete"]
    assert stand_in.bodies[:2] == [{"model": "a"}, {"source": "a", "destination": "b"}]


def test_bars() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Progress(console=console, auto_refresh=False) as bars:
        assert pull.Bars(bars).show(iter(PROGRESS)) is None
        [task] = bars.tasks
    assert (task.description, task.total, task.completed) == ("gpu-0, gpu-1: 365c0bd3c000", 1000, 400)


def test_bars_show_what_failed() -> None:
    with Progress(console=Console(file=io.StringIO()), auto_refresh=False) as bars:
        assert pull.Bars(bars).show(iter([{"store": "a", "error": "x"}, {"error": "a: x"}])) == "a: x"
        assert pull.Bars(bars).show(iter([])) is not None
