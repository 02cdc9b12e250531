"""Models on disk, changed through slotgate with the real `ollama` client. Two Ollamas share a directory, one does not.

Everything is a process of its own: slotgate, the emulated Ollamas, and where it matters the store.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.proxy.store.store_process import StoreProcess
from tests.slotgate_process import SlotgateProcess, slotgate
from tests.wait import until_sync

KEY = "let-me-change-models"
SIZE = 6_000_000
SLOW = 3_000_000
"""Bytes per second: a pull takes two seconds."""


class Ollamas:
    """The emulated Ollamas, by name: `left` and `right` share a directory, `apart` has its own."""

    def __init__(self, directory: Path, speed: float) -> None:
        self.directory = directory
        self.speed = speed
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.urls: dict[str, str] = {}

    def start(self, name: str) -> None:
        models, told = self.models(name), self.directory / f"{name}.address"
        told.unlink(missing_ok=True)
        command = ["ollama", "-m", "proxy.emulated", "--api", "ollama", "--faults", "--model", "smol"]
        command += ["--registry", f"tiny,size={SIZE}", "--registry", f"other,size={SIZE}"]
        command += ["--registry-speed", str(self.speed), "--address-file", str(told), "--as-ollama", "serve"]
        # Under the name of an Ollama, by which slotgate finds it; Python then needs to be told where its packages are.
        environ = os.environ | {"OLLAMA_MODELS": str(models), "OLLAMA_HOST": "127.0.0.1:0", "OLLAMA_NOPRUNE": "1"}
        environ |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.processes[name] = subprocess.Popen(
            command, executable=sys.executable, env=environ, stdout=subprocess.DEVNULL
        )
        until_sync(lambda: told.exists() and told.read_text().strip(), f"{name} listens", 30)
        self.urls[name] = told.read_text().strip()

    def models(self, name: str) -> Path:
        models = self.directory / ("apart" if name == "apart" else "shared")
        models.mkdir(exist_ok=True)
        return models

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def has(self, name: str) -> list[str]:
        listed = httpx.get(f"{self.urls[name]}/api/tags").json()["models"]
        return sorted(each["name"].removesuffix(":latest") for each in listed)

    def pulls(self, name: str) -> bool:
        """Whether it is being asked for something now, beyond slotgate's looks."""
        return any(self.models(name).rglob("*-partial-0"))


@contextlib.contextmanager
def ollamas(directory: Path, speed: float = float("inf")) -> Iterator[Ollamas]:
    running = Ollamas(directory, speed)
    try:
        for name in ("left", "right", "apart"):
            running.start(name)
        yield running
    finally:
        for process in running.processes.values():
            process.kill()
            process.wait()


def config(engines: Ollamas, state_dir: Path, store: str = "") -> str:
    backends = "".join(
        f'[[backends]]\nname = "{name}"\nurl = "{url}"\nengine = "ollama"\n' for name, url in engines.urls.items()
    )
    url = f'[store]\nurl = "{store}"\nlease_ttl_s = 2.0\n' if store else ""
    keys = f'[tenancy.keys]\n"{KEY}" = {{ name = "ops", admin = true }}\n'
    place = f'listen = "127.0.0.1:0"\nstate_dir = "{state_dir}"\nadmin_socket = "{state_dir}/admin.sock"\n'
    return place + backends + url + keys


@contextlib.contextmanager
def serving(directory: Path, engines: Ollamas, head: str = "", store: str = "") -> Iterator[SlotgateProcess]:
    directory.mkdir(exist_ok=True)
    with slotgate(directory, head + config(engines, directory / "state", store)) as running:
        running.wait_ready(3)
        yield running


def client(running: SlotgateProcess, key: str = KEY) -> ollama.Client:
    return ollama.Client(host=running.url, headers={"Authorization": f"Bearer {key}"})


def listed(asked: ollama.Client) -> list[str]:
    return sorted(str(each.model).removesuffix(":latest") for each in asked.list().models)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_that_the_ollama_client_can_do_with_models(tmp_path: Path, workers: int) -> None:
    with ollamas(tmp_path) as engines, serving(tmp_path / "a", engines, f"workers = {workers}\n") as running:
        asked = client(running)
        until_sync(lambda: listed(asked) == ["smol"], "the workers know the models", 30)
        progress = list(asked.pull("tiny", stream=True))
        assert listed(asked) == ["smol", "tiny"], "seen at once"
        asked.copy("tiny", "mine/copied")
        assert listed(asked) == ["mine/copied", "smol", "tiny"]
        assert asked.show("mine/copied").details is not None
        asked.delete("tiny")
        assert listed(asked) == ["mine/copied", "smol"]
        created = asked.create("made", from_="smol", system="Be brief.", stream=False)
        blob = tmp_path / "blob"
        blob.write_bytes(os.urandom(300_000))
        digest = asked.create_blob(blob)
        asked.create("from-file", files={"model.gguf": digest}, stream=False)
        assert listed(asked) == ["from-file", "made", "mine/copied", "smol"]
        assert [engines.has(name) for name in engines.urls] == [listed(asked)] * 3
        with pytest.raises(ollama.ResponseError, match="not found") as missing:
            asked.delete("nope")

    assert progress[0].status == "pulling manifest"
    assert progress[-1].status == "success"
    bars = [each for each in progress if each.digest]
    assert {each.total for each in bars if each.total and each.total > SIZE} == {2 * SIZE}, "of both directories"
    assert max(each.completed or 0 for each in bars) == 2 * SIZE
    assert created.status == "success"
    assert digest == f"sha256:{hashlib.sha256(blob.read_bytes()).hexdigest()}"
    assert missing.value.status_code == 404


def test_it_is_closed_to_others(tmp_path: Path) -> None:
    with ollamas(tmp_path) as engines, serving(tmp_path / "a", engines) as running:
        with pytest.raises(ollama.ResponseError, match="admin") as refused:
            client(running, "another-key").pull("tiny")
        assert refused.value.status_code == 403
        assert engines.has("left") == ["smol"]


def test_an_ollama_that_is_killed_in_the_middle_is_replaced_by_the_one_it_shares_with(tmp_path: Path) -> None:
    with ollamas(tmp_path, SLOW) as engines, serving(tmp_path / "a", engines) as running:
        stream = client(running).pull("tiny", stream=True)
        before = next(each for each in stream if each.completed)
        writer = min(("left", "right"), key=lambda name: _number(running, name))
        engines.kill(writer)
        rest = list(stream)
        other = "right" if writer == "left" else "left"
        assert engines.has(other) == engines.has("apart") == ["smol", "tiny"]

    assert rest[-1].status == "success"
    assert max(each.completed or 0 for each in rest) >= (before.completed or 0)


def test_slotgate_pull_shows_each_store_and_goes_on_where_a_killed_slotgate_left(tmp_path: Path) -> None:
    with ollamas(tmp_path, SLOW) as engines:
        with serving(tmp_path / "a", engines) as running:
            command = subprocess.Popen(_pull(running, "tiny", "--json"), stdout=subprocess.PIPE)
            assert command.stdout is not None
            lines = (json.loads(line) for line in command.stdout)
            told = next(each for each in lines if each.get("completed", 0) > SIZE / 4)
            running.kill()
            rest = list(lines)
            assert command.wait() == 1
        until_sync(lambda: not _asked(engines), "the Ollamas have stopped", 30)
        with serving(tmp_path / "b", engines) as running:
            done = subprocess.run(_pull(running, "tiny", "--json"), capture_output=True, check=True, text=True)
        again = [json.loads(line) for line in done.stdout.splitlines()]

    assert rest == [] or all("status" in each for each in rest)
    assert {each["store"] for each in again[:-1]} == {"left, right", "apart"}
    assert again[-1] == {"status": "success"}
    first = {each["store"]: each["completed"] for each in reversed(again) if each.get("completed", 0) > 100}
    assert first[told["store"]] >= told["completed"], "it went on from there"


def test_two_slotgates_pull_one_after_the_other(tmp_path: Path, short_dir: Path) -> None:
    """At once they would destroy each other's parts: the emulated Ollama says `digest mismatch` then, as a real one."""
    store = StoreProcess("valkey", short_dir)
    store.start()
    try:
        with (
            ollamas(tmp_path, SLOW) as engines,
            serving(tmp_path / "a", engines, store=store.url) as one,
            serving(tmp_path / "b", engines, store=store.url) as two,
        ):
            commands = [
                subprocess.Popen(_pull(running, "tiny", "--json"), stdout=subprocess.PIPE, text=True)
                for running in (one, two)
            ]
            told = [[json.loads(line) for line in command.communicate()[0].splitlines()] for command in commands]
            assert [command.returncode for command in commands] == [0, 0], told
            assert [engines.has(name) for name in engines.urls] == [["smol", "tiny"]] * 3
    finally:
        store.stop()

    waited = [any("waiting for another change" in each.get("status", "") for each in lines) for lines in told]
    assert any(waited)


def _pull(running: SlotgateProcess, model: str, *options: str) -> list[str]:
    socket = f"--socket={running.state_dir / 'admin.sock'}"
    return [sys.executable, "-m", "proxy", "pull", model, *options, socket]


def _number(running: SlotgateProcess, name: str) -> str:
    """What the order of backends goes by: their addresses."""
    return next(each.endpoint for each in running.backends() if each.name == name)


def _asked(engines: Ollamas) -> list[Any]:
    return [name for name, url in engines.urls.items() if httpx.get(f"{url}/emulated/state").json()["open_requests"]]
