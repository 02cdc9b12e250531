"""Stages for real client programs: slotgate in front of two engines of one kind, as processes of their own.

`CLIENTS_DIRECT=1` leaves slotgate out and points the clients at the first engine: for telling whose fault a failure is.
"""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from proxy.backends.statedir import free_port
from tests.real_engine import KEY, MODEL_NAME, start_engine, stop_engine
from tests.wait import until_sync

DIRECT = os.environ.get("CLIENTS_DIRECT") == "1"
KINDS = ["llama-server", "ollama", pytest.param("real", marks=pytest.mark.real)]


@dataclass(frozen=True)
class Stage:
    """What a client is pointed at."""

    url: str
    engine: str
    """`llama-server`, `ollama`, or `real` (llama-server)."""
    model: str
    embedder: str
    """A model that gives vectors; empty: none."""
    tools: bool
    direct: bool

    def needs(self, dialect: str) -> None:
        """Skip where no slotgate translates between the client's dialect and the engine's."""
        if self.direct and dialect == "ollama" and self.engine != "ollama":
            pytest.skip("an engine of another dialect, and no slotgate before it")

    def needs_routing(self) -> None:
        """Skip where the engine, asked directly, does not look at the model's name."""
        if self.direct and self.engine != "ollama":
            pytest.skip("llama-server takes any model name")

    def needs_tools(self) -> None:
        if not self.tools:
            pytest.skip("the model's template has no tools")

    def needs_embeddings(self) -> str:
        if not self.embedder:
            pytest.skip("the model gives no vectors")
        return self.embedder


def _start(stack: ExitStack, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def stop() -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()

    stack.callback(stop)
    return process


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.HTTPError):
        return b""


def _emulated(stack: ExitStack, directory: Path, kind: str, number: int) -> str:
    port = free_port(23000 + 50 * number + os.getpid() % 4000)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "proxy.emulated", "--api", kind, "--listen", f"127.0.0.1:{port}"]
    command += ["--slots", "2", "--speed", "20", "--model", "smol", "--answer-tokens", "40", "--embeddings"]
    command += ["--capabilities", "completion,tools,embedding"]
    process = _start(stack, command, directory / f"engine-{number}.log")
    path = "/api/version" if kind == "ollama" else "/health"

    def ready() -> bool:
        assert process.poll() is None, (directory / f"engine-{number}.log").read_text()
        return bool(_get(url + path))

    until_sync(ready, "the emulated engine answers", timeout_s=30)
    return url


def _real(stack: ExitStack, directory: Path, number: int) -> str:
    place = directory / f"real-{number}"
    place.mkdir()
    engine = start_engine(place, tcp=True, slots=2)
    stack.callback(stop_engine, engine)
    return engine.url


def _slotgate(stack: ExitStack, directory: Path, urls: list[str], key: str, model: str) -> str:
    port = free_port(27000 + os.getpid() % 4000)
    config = directory / "config.toml"
    keys = f'api_key = "{key}"\n' if key else ""
    config.write_text("".join(f'[[backends]]\nurl = "{url}"\n{keys}\n' for url in urls))
    log = directory / "slotgate.log"
    command = [sys.executable, "-m", "proxy", "serve", f"--listen=127.0.0.1:{port}", f"--config={config}"]
    process = _start(stack, [*command, f"--state-dir={directory / 'state'}"], log)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        listed = _get(f"{url}/api/tags")
        return any(entry["name"].startswith(model) for entry in (orjson.loads(listed)["models"] if listed else []))

    until_sync(ready, "slotgate lists the model", timeout_s=60)
    return url


@pytest.fixture(scope="session", params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Slotgate in front of two engines of each kind in turn."""
    kind: str = request.param
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotgate-clients-")))
        if kind == "real":
            model, key = MODEL_NAME, KEY
            urls = [_real(stack, directory, number) for number in range(1 if DIRECT else 2)]
        else:
            model, key = "smol", ""
            urls = [_emulated(stack, directory, kind, number) for number in range(1 if DIRECT else 2)]
        if DIRECT and key:
            pytest.skip("clients do not know the engine's key")
        url = urls[0] if DIRECT else _slotgate(stack, directory, urls, key, model)
        emulated = kind != "real"
        yield Stage(url, kind, model, "smol" if emulated else "", tools=emulated, direct=DIRECT)


@pytest.fixture
def slotgate_url(stage: Stage) -> str:
    """Where the clients go."""
    return stage.url
