"""Which processes an Ollama's are: real ones, and made tables for what cannot be had at will."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.backends import ollama_children
from proxy.backends.ollama_children import Finder, Found, blob, parse
from proxy.backends.processes import Denied, Holders, Process, ProcessTable
from proxy.endpoint import Endpoint, Gate, parse_endpoint
from tests.proxy.backends.played_ollama import OTHER, SMOL, PlayedOllama
from tests.wait import until_sync

PROCESS = Process(123, 100, 7)
BLOB = f"/m/sha256-{OTHER}"
CAPTURED = (
    f"/usr/lib/ollama/llama-server --model /models/blobs/sha256-{SMOL} --port 34327 --host 127.0.0.1 --no-webui "
    "--offline -c 8192 -np 2 --log-verbosity 4 --no-log-prefix --no-log-timestamps --no-jinja --chat-template chatml "
    "--load-mode none --flash-attn auto -b 1024 -ub 1024 --context-shift --keep 4"
)
"""captures/ollama/110, with paths where it has none."""


def test_the_captured_command_line() -> None:
    child = parse(CAPTURED.split(), PROCESS)
    assert child is not None
    assert (child.pid, child.started, child.port) == (123, 7, 34327)
    assert (child.weights, child.model) == (SMOL, f"/models/blobs/sha256-{SMOL}")
    assert (child.slots, child.context_tokens, child.batch_tokens) == (2, 4096, 1024)
    assert (child.gpu_layers, child.threads, child.context_shift) == (None, None, True)


def test_other_ways_to_write_it() -> None:
    words = ["llama-server", f"--model=/m/sha256:{OTHER}", "--port=1", "--ctx-size=512", "-ngl", "33", "--threads=4"]
    child = parse(words, PROCESS)
    assert child is not None
    assert (child.weights, child.port, child.slots, child.context_tokens) == (OTHER, 1, 1, 512)
    assert (child.gpu_layers, child.threads, child.context_shift) == (33, 4, False)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="gone"),
        pytest.param(["/usr/lib/ollama/llama-server", "--list-devices"], id="looks-for-gpus"),
        pytest.param(["llama-server", "--port", "1", "--host", "127.0.0.1"], id="without-a-model"),
        pytest.param(["llama-server", "--model", BLOB], id="without-a-port"),
        pytest.param(["llama-server", "--port", "1", "--model"], id="cut-off"),
        pytest.param(["llama-server", "--model", BLOB, "--port", "many"], id="no-number"),
        pytest.param(["llama-server", "--model", BLOB, "--port", "1", "--host", "10.0.0.1"], id="elsewhere"),
        pytest.param(["llama-server", "--model", "/m/a.gguf", "--port", "1"], id="somebody-elses"),
        pytest.param(["ollama", "runner", "--mlx-engine", "--model", BLOB, "--port", "1"], id="of-another-format"),
    ],
)
def test_what_is_no_loaded_model(arguments: list[str]) -> None:
    assert parse(arguments, PROCESS) is None


def test_blobs() -> None:
    assert blob(f"sha256-{SMOL}") == SMOL
    assert blob("model.gguf") == blob(f"sha256-{SMOL}-partial") == blob("sha256-abc") == ""


async def test_the_children_of_one_that_somebody_else_runs(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path, OLLAMA_NUM_PARALLEL="2") as ollama:
        finder = Finder(parse_endpoint(ollama.url))
        found = finder.find()
        assert (found.why, found.children) == ("", ())
        assert found.ollama is not None
        assert found.ollama.pid == ollama.pid
        assert found.environment is not None
        assert found.environment["OLLAMA_NUM_PARALLEL"] == "2"
        smol = await ollama.load("smol:latest", SMOL)
        other = await ollama.load("other:latest", OTHER, 1024, parallel=1)
        found = finder.find()
        assert sorted((child.pid, child.port, child.weights, child.slots) for child in found.children) == sorted(
            [(smol.pid, smol.port, SMOL, 2), (other.pid, other.port, OTHER, 1)]
        )
        assert finder.holds(found)
        await ollama.unload("smol:latest")
        assert not finder.holds(found)
        assert [child.pid for child in finder.find().children] == [other.pid]
        os.kill(other.pid, signal.SIGKILL)
        until_sync(lambda: not finder.find().children, "it is dead, and nobody has waited for it")
    assert not finder.holds(found)
    assert "nobody listens" in finder.find().why


async def test_the_children_of_one_that_slotgate_runs(tmp_path: Path) -> None:
    """Its own number leads to it, whoever listens at its address."""
    async with PlayedOllama(tmp_path) as ollama:
        child = await ollama.load("smol:latest", SMOL)
        finder = Finder(parse_endpoint("http://127.0.0.1:1"), lambda: ollama.pid)
        assert [found.pid for found in finder.find().children] == [child.pid]
        assert Finder(parse_endpoint(ollama.url), lambda: None).find() == Found(why="its process is not running")


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        (parse_endpoint("http://box7:11434"), "it is on another host"),
        (parse_endpoint("http://10.1.2.3:11434"), "it is on another host"),
        (parse_endpoint("unix:/run/ollama.sock"), "reached over a unix socket"),
        (Endpoint("127.0.0.1:1", 1, "127.0.0.1", gate=Gate("box", 1, "x")), "it is on another host"),
    ],
    ids=str,
)
def test_where_processes_cannot_be_seen(endpoint: Endpoint, why: str) -> None:
    found = Finder(endpoint).find()
    assert why in found.why
    assert found.ollama is None


def test_one_that_passes_on_is_no_ollama() -> None:
    """Such as what lets clients into a container: its environment and children say nothing of the Ollama behind it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        endpoint = parse_endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}")
        found = Finder(endpoint).find()
        assert found.why.startswith(f"PID {os.getpid()} (python")
        assert "is no Ollama" in found.why


def test_no_process_table(tmp_path: Path) -> None:
    finder = Finder(parse_endpoint("http://127.0.0.1:1"), table=ProcessTable(tmp_path))
    assert finder.find().why == "there is no process table of Linux to read here"


class Guarded(ProcessTable):
    """The real table, of which one user may not read all."""

    def __init__(self, holders: Holders, command: tuple[str, ...] = (), user: int = 0) -> None:
        super().__init__()
        self.given = holders
        self.command = command
        self.whose = user
        self.networks: dict[int | None, str] = {}
        self.denied: set[str] = set()

    def holders(self, inodes: set[int]) -> Holders:
        return self.given

    def command_line(self, pid: int) -> tuple[str, ...]:
        return self.command or super().command_line(pid)

    def user(self, pid: int) -> int | None:
        return self.whose

    def environment(self, pid: int) -> dict[str, str]:
        if "environment" in self.denied:
            raise Denied
        return super().environment(pid)

    def network(self, pid: int | None = None) -> str:
        if "network" in self.denied:
            raise Denied
        return self.networks.get(pid) or super().network(pid)


@pytest.fixture
def listening_endpoint() -> Iterator[Endpoint]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield parse_endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}")


def test_without_permission_it_says_whose_it_is(listening_endpoint: Endpoint) -> None:
    user = os.getuid()
    table = Guarded(Holders((), (123,)), ("/usr/local/bin/ollama", "serve"), user)
    found = Finder(listening_endpoint, table=table).find()
    assert found.why.startswith("no permission to read the process of PID 123 (run slotgate as the same user, ")
    table = Guarded(Holders((), (123, 45)), ("/usr/local/bin/ollama", "serve"), user)
    assert "the process of PID 45 or 123 (" in Finder(listening_endpoint, table=table).find().why
    table = Guarded(Holders((), (123,)), ("/usr/bin/nginx",), user)
    assert "slotgate cannot see which process of user" in Finder(listening_endpoint, table=table).find().why
    table = Guarded(Holders((), ()))  # another process name space, or one that hides others' processes
    assert "slotgate cannot see which process of user" in Finder(listening_endpoint, table=table).find().why


def test_of_several_that_hold_the_socket_the_ollama_is_meant(listening_endpoint: Endpoint) -> None:
    ours, parent = os.getpid(), os.getppid()
    only = Guarded(Holders((1, ours), ()), ("ollama", "serve"))  # systemd holds the sockets that it made
    found = Finder(listening_endpoint, table=only).find()
    assert found.ollama is not None
    assert found.ollama.pid == ours
    both = Guarded(Holders((parent, ours), ()), ("ollama", "serve"))
    assert "several processes listen" in Finder(listening_endpoint, table=both).find().why
    gone = Guarded(Holders((2**22 + 1,), ()))
    assert Finder(listening_endpoint, table=gone).find().why == "its process has just ended"


async def test_a_child_that_cannot_be_reached(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path) as ollama:
        child = await ollama.load("smol:latest", SMOL)
        table = Guarded(Holders((ollama.pid,), ()))
        finder = Finder(parse_endpoint(ollama.url), table=table)
        assert [found.pid for found in finder.find().children] == [child.pid]
        table.networks[child.pid] = "net:[1]"
        found = finder.find()
        assert (found.children, f"PID {child.pid}, is in another network name space" in found.why) == ((), True)
        assert found.ollama is not None
        table.denied = {"network"}
        assert f"no permission to read the process of PID {child.pid}" in finder.find().why
        table.denied, table.networks = {"environment"}, {}
        found = finder.find()
        assert (found.environment, found.why) == (None, "")


@pytest.mark.parametrize(
    ("command", "is_ollama", "is_told"),
    [
        ("/usr/local/bin/ollama serve", True, True),
        ("python3 -m proxy.emulated --slots 4 --model a --faults --api ollama --listen 127.0.0.1:1", True, False),
        ("/v/bin/python -X dev -m proxy.emulated --listen :1 --api=ollama", True, False),
        ("python -m proxy.emulated --api ollama --children --as-ollama serve", True, True),
        ("python -m proxy.emulated --api llama-server --model ollama", False, False),
        ("python -m proxy.emulated", False, False),
        ("nginx -c ollama.conf", False, False),
    ],
)
def test_an_idle_one_is_known_by_its_command_line(
    listening_endpoint: Endpoint, command: str, is_ollama: bool, is_told: bool
) -> None:
    """An emulated one has the settings of its options, so its environment tells nothing, unless it is in the place."""
    found = Finder(listening_endpoint, table=Guarded(Holders((os.getpid(),), ()), tuple(command.split()))).find()
    assert (found.ollama is not None, found.environment is not None) == (is_ollama, is_told)


AS_NOBODY = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(Finder(parse_endpoint(sys.argv[1])).find().why)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
async def test_another_user_is_told_who_to_be(tmp_path: Path) -> None:
    """The real thing: Ollama runs as one user, slotgate as another."""
    imports = "from proxy.backends.ollama_children import Finder; from proxy.endpoint import parse_endpoint"
    async with PlayedOllama(tmp_path) as ollama:
        await ollama.load("smol:latest", SMOL)
        command = [sys.executable, "-c", imports + AS_NOBODY, ollama.url]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        found = re.match(
            r"no permission to read the process of PID ([\d or]+) \(run slotgate as the same user, root;", said
        )
        assert found, said
        assert str(ollama.pid) in found[1].split(" or ")  # this machine may run more of them


def test_the_module_says_where_to_read_more() -> None:
    assert (Path(__file__).parents[3] / ollama_children.SEE.removeprefix("see ")).exists()
