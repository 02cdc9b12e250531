"""The processes of the residency benchmark: four emulated Ollamas and a proxy in front; what the engines tell of loads.

Must not know who asks what.
"""

import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxy.admin_client import AdminClient, AdminError
from scheduler.policy import Policy
from tests.bench.processes import CPUS, Missing, Process, free_port, serve, start_nginx
from tests.bench.residency_figures import Stay

BACKENDS, SLOTS = 4, 4
LOAD_S = 5.0
"""Loading a model, in the engines' time: an 8B Q4 model out of the page cache onto a card."""
DEFAULTS = Policy()
LOAD_TIMES = ("load_ms", "demand_window_s", "residence_s", "idle_residence_s", "load_retry_s")
"""Keys of the policy that are times of loads and of the demand for models."""
LOADS_PATH = "/emulated/state"


class Setting(NamedTuple):
    """What a run's engines and proxy are like."""

    models: tuple[str, ...]
    context: int
    """The engines' own default (OLLAMA_CONTEXT_LENGTH)."""
    speed: float
    backends: int = BACKENDS
    slots: int = SLOTS


class Front(NamedTuple):
    """A proxy to compare."""

    name: str
    residency: str = ""
    """slotgate's table of that name."""

    @property
    def is_slotgate(self) -> bool:
        """Else it is nginx."""
        return self.name != "nginx"


NGINX = Front("nginx")
SLOTGATE = Front("slotgate")
AS_ASKED = Front("as_asked", '[residency]\ncontext_buckets = [1]\noptions = "keep"\n')
"""slotgate that rounds nothing and leaves nothing out."""


class Fleet:
    """Engines and the proxy in front of them, while they run."""

    def __init__(self, front: Front, setting: Setting, folder: Path, ports: Sequence[int], proxy: Process) -> None:
        self.front = front
        self.setting = setting
        self.port = proxy.port
        self._folder = folder
        self._ports = ports
        self._log = proxy.log

    def number(self, backend: str) -> int:
        """Which engine it is that a proxy names so; -1: none."""
        if self.front.is_slotgate:
            return int(backend.rpartition("-")[2]) if backend else -1
        port = backend.rpartition(":")[2]  # several, by comma, where nginx tried several: the last one answered
        return self._ports.index(int(port)) if port.isdigit() else -1

    def stays(self) -> list[Stay]:
        """All loads of all engines so far."""
        return [stay for number, port in enumerate(self._ports) for stay in stays_of(number, _get(port, LOADS_PATH))]

    def queued_s(self) -> dict[str, float]:
        """Of each request that left slotgate's line, by slotgate's name for it: how long it waited there."""
        waited = {}
        for line in self._log.read_bytes().splitlines():
            if b'"event":"request"' in line:
                fields = json.loads(line)
                if fields["queue_ms"] is not None:
                    waited[fields["request"]] = fields["queue_ms"] / 1000
        return waited

    def problems(self) -> list[str]:
        """What slotgate logged as an error."""
        if not self.front.is_slotgate:
            return []
        return [line for line in self._log.read_text().splitlines() if '"level":"error"' in line or "Traceback" in line]


def stays_of(backend: int, told: dict[str, Any]) -> Iterator[Stay]:
    """What an engine's record of loads says."""
    open_stays: dict[str, Stay] = {}
    for event in told["events"]:
        if event["event"] == "loaded":
            open_stays[event["model"]] = Stay(backend, event["model"], event["context"], event["at_s"])
        elif event["event"] == "unloaded" and (stay := open_stays.pop(event["model"], None)) is not None:
            yield stay._replace(to_s=event["at_s"])
    yield from open_stays.values()


@contextlib.contextmanager
def fleet(folder: Path, front: Front, setting: Setting) -> Iterator[Fleet]:
    """Start everything, and stop it.

    Raises:
        Missing: something did not start.
    """
    folder.mkdir()
    started: list[Process] = []
    try:
        ports = [free_port() for _ in range(setting.backends)]
        for number, port in enumerate(ports):
            started.append(Process(f"gpu-{number}", engine_command(setting, port), set(CPUS), folder))
        for port, engine in zip(ports, started, strict=True):
            engine.listen(port)
        if front.is_slotgate:
            port = free_port()
            proxy = serve(folder, port, slotgate_config(folder, front, setting, port, ports))
        else:
            location = "proxy_set_header Host localhost; add_header X-Backend $upstream_addr always;"
            proxy = start_nginx(folder, *(f"127.0.0.1:{port}" for port in ports), location=location)
        started.append(proxy)
        os.sched_setaffinity(proxy.pid, set(CPUS))
        if front.is_slotgate:
            _wait_ready(folder, setting.backends)
        yield Fleet(front, setting, folder, ports, proxy)
    finally:
        for process in reversed(started):
            process.stop()


def engine_command(setting: Setting, port: int) -> list[str]:
    """An Ollama that holds one model at a time, on a card of its own.

    Its process looks like one, so that slotgate finds it and reads from its environment what it was told.
    """
    return [
        *("/usr/bin/env", f"OLLAMA_HOST=127.0.0.1:{port}", f"OLLAMA_NUM_PARALLEL={setting.slots}"),
        *("OLLAMA_MAX_LOADED_MODELS=1", f"OLLAMA_CONTEXT_LENGTH={setting.context}", "LLAMA_ARG_CACHE_RAM=0"),
        *("bash", "-c", 'exec -a "$0" "$@"', str(Path(sys.executable).with_name("ollama"))),
        *(sys.executable, "-m", "proxy.emulated", "--api=ollama", "--card=4090", "--uvloop", "--faults"),
        *(f"--model={name}" for name in setting.models),
        *(f"--load={LOAD_S}", "--answer-tokens=1200", f"--speed={setting.speed}", "--as-ollama", "serve"),
    ]


def slotgate_config(folder: Path, front: Front, setting: Setting, port: int, ports: Sequence[int]) -> str:
    """slotgate in front of these engines; times of its policy that are about loads go as fast as the engines do."""
    tables = [
        f'[[backends]]\nname = "gpu-{number}"\nurl = "http://127.0.0.1:{each}"\nengine = "ollama"\n'
        f'slots = {setting.slots}\nrunning_limit = {setting.slots}\ngpu_name = "RTX 4090"\n'
        for number, each in enumerate(ports)
    ]
    faster = "".join(f"{key} = {getattr(DEFAULTS, key) / setting.speed}\n" for key in LOAD_TIMES)
    return (
        f'listen = "127.0.0.1:{port}"\nstate_dir = "{folder}/slotgate"\nadmin_socket = "{folder}/admin.sock"\n'
        f'[log]\nformat = "json"\nrequests = true\n[limits]\nmax_waiting = 100000\n[policy.set]\n{faster}'
        f"{front.residency}{''.join(tables)}"
    )


def _wait_ready(folder: Path, backends: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    with AdminClient(folder / "admin.sock") as admin:
        while True:
            with contextlib.suppress(AdminError):
                if sum(backend.health == "ready" for backend in admin.status().backends) == backends:
                    return
            if time.monotonic() > deadline:
                raise Missing("slotgate's backends do not become ready")
            time.sleep(0.1)


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)
