"""Stages for real client programs: slotgate in front of engines of one kind, as processes of their own.

`CLIENTS_DIRECT=1` leaves slotgate out and points the clients at the first engine: for telling whose fault a failure is.
"""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.backends.statedir import free_port
from scheduler.domain import Outcome
from tests.clients.tap import Tap
from tests.real_engine import KEY, MODEL_NAME, smollm2_path, start_engine, stop_engine
from tests.slotgate_process import SlotgateProcess, slotgate
from tests.wait import until, until_sync

_NOTICED = "slotgate noticed that the client left"
_FREE = "the slots are free again"
DIRECT = os.environ.get("CLIENTS_DIRECT") == "1"
KINDS = ["llama-server", "ollama", pytest.param("real", marks=pytest.mark.real)]

QUESTION = "Count from one to five."
TOOL_QUESTION = "Use get_weather for Paris."
"""What makes the real model call the tool at temperature 0, with the template beside this file."""
THING: dict[str, Any] = {
    "title": "Thing",
    "description": "A thing.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
"""A schema that every engine's answer must fit, and that no answer fits by chance."""
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
}
"""What the tool `get_weather` takes."""
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mP8z8BQz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
"""A red square of 10 by 10 pixels: a PNG in base64."""
LONG = 3000
"""Tokens of an answer that nobody waits for: it runs while its client leaves."""


@dataclass(frozen=True)
class Stage:
    """What a client is pointed at."""

    url: str
    engine: str
    """`llama-server`, `ollama`, or `real` (llama-server)."""
    engine_urls: tuple[str, ...]
    engine_key: str
    model: str
    embedder: str
    """A model that gives vectors; empty: none."""
    seer: str
    """A model that sees pictures; empty: none."""
    slotgate: SlotgateProcess | None
    """None: clients go to the first engine directly."""

    @property
    def direct(self) -> bool:
        """Whether clients go to an engine directly."""
        return self.slotgate is None

    def needs(self, dialect: str) -> None:
        """Skip where no slotgate translates between the client's dialect and the engine's."""
        if self.direct and dialect == "ollama" and self.engine != "ollama":
            pytest.skip("an engine of another dialect, and no slotgate before it")

    def needs_routing(self) -> None:
        """Skip where the engine, asked directly, does not look at the model's name."""
        if self.direct and self.engine != "ollama":
            pytest.skip("llama-server takes any model name")

    def needs_embeddings(self) -> str:
        """A model that gives vectors."""
        if not self.embedder:
            pytest.skip("an engine for vectors has a name of its own")
        return self.embedder

    def needs_sight(self) -> str:
        """A model that sees pictures."""
        if not self.seer:
            pytest.skip("the engine's model sees nothing")
        return self.seer

    @contextmanager
    def left(self) -> Iterator[None]:
        """A client leaves an answer in the middle: slotgate says so, and the seat and the engine's slot become free."""
        before = self._departures()
        yield
        until_sync(lambda: self._departures() == before + 1, _NOTICED, timeout_s=30)
        until_sync(self._idle, _FREE, timeout_s=60)

    @asynccontextmanager
    async def left_async(self) -> AsyncIterator[None]:
        """The same, for clients that need their loop to get away."""
        before = self._departures()
        yield
        await until(lambda: self._departures() == before + 1, _NOTICED, timeout_s=30)
        await until(self._idle, _FREE, timeout_s=60)

    def _departures(self) -> int:
        if self.slotgate is None:
            pytest.skip("nobody to ask whether the client left")
        return sum(request.outcome == Outcome.CLIENT_LEFT for request in self.slotgate.admin.recent())

    def _idle(self) -> bool:
        assert self.slotgate is not None
        backends = self.slotgate.status().backends
        if self.slotgate.admin.ps().requests or any(one.running or one.foreign_busy for one in backends):
            return False
        if self.engine == "ollama":
            return True
        slots = [slot for url in self.engine_urls for slot in orjson.loads(_get(f"{url}/slots", self.engine_key))]
        return not any(slot["is_processing"] for slot in slots)

    @contextmanager
    def few_connections(self, most: int = 1) -> Iterator[str]:
        """An address that leads to `url`, for more requests one after the other than connections may be made."""
        with Tap(self.url) as tap:
            yield tap.url
            assert 1 <= tap.connections <= most


def _get(url: str, key: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.HTTPError):
        return b""


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


def _emulated(stack: ExitStack, directory: Path, kind: str, number: int) -> str:
    port = free_port(23000 + 50 * number + os.getpid() % 4000)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "proxy.emulated", "--api", kind, "--listen", f"127.0.0.1:{port}"]
    command += ["--slots", "2", "--speed", "5", "--model", "smol", "--answer-tokens", str(LONG), "--embeddings"]
    if kind == "ollama":
        command += ["--model", "vectors", "--capabilities", "completion,tools,embedding,vision"]
    else:
        command += ["--capabilities", "completion,tools,embedding"]
    process = _start(stack, command, directory / f"engine-{number}.log")
    path = "/api/version" if kind == "ollama" else "/health"

    def ready() -> bool:
        assert process.poll() is None, (directory / f"engine-{number}.log").read_text()
        return bool(_get(url + path))

    until_sync(ready, "the emulated engine answers", timeout_s=30)
    return url


def _real(stack: ExitStack, directory: Path, model: Path, *flags: str) -> str:
    place = directory / f"{model.stem}-{len(list(directory.iterdir()))}"
    place.mkdir()
    engine = start_engine(place, tcp=True, slots=2, model=model, model_name=model.stem, flags=list(flags))
    stack.callback(stop_engine, engine)
    return engine.url


def _real_ones(stack: ExitStack, directory: Path) -> list[str]:
    # One file under two names, as models for text and for vectors are two: clients take what has one digest for one.
    text, vectors = directory / f"{MODEL_NAME}.gguf", directory / "vectors.gguf"
    for name in (text, vectors):
        name.symlink_to(smollm2_path())
    template = Path(__file__).with_name("tools.jinja").read_text()
    chats = [_real(stack, directory, text, "--jinja", "--chat-template", template) for _ in range(2)]
    return [*chats, _real(stack, directory, vectors, "--embeddings", "--pooling", "mean")]


def _slotgate(stack: ExitStack, directory: Path, urls: list[str], key: str) -> SlotgateProcess:
    state = directory / "state"
    config = f'listen = "127.0.0.1:0"\nstate_dir = "{state}"\nadmin_socket = "{state}/admin.sock"\n'
    keys = f'api_key = "{key}"\n' if key else ""
    running = stack.enter_context(
        slotgate(directory, config + "".join(f'[[backends]]\nurl = "{url}"\n{keys}' for url in urls))
    )
    running.wait_ready(len(urls))
    return running


@contextmanager
def set_up(kind: str) -> Iterator[Stage]:
    """Slotgate in front of two engines of a kind, and a third for vectors where a model cannot do both."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slotgate-clients-")))
        model, embedder, seer, key = "smol", "smol", "", ""
        if kind == "real":
            if DIRECT:
                pytest.skip("clients do not know the engine's key")
            model, embedder, key = MODEL_NAME, "vectors", KEY
            urls = _real_ones(stack, directory)
        else:
            if kind == "ollama":
                embedder = seer = "vectors"
            urls = [_emulated(stack, directory, kind, number) for number in range(1 if DIRECT else 2)]
        running = None if DIRECT else _slotgate(stack, directory, urls, key)
        url = urls[0] if running is None else running.url
        yield Stage(url, kind, tuple(urls), key, model, embedder, seer, running)
