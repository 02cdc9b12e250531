"""Owns finding the processes of an Ollama on this host: `ollama serve`, and the llama-server that it runs for each
loaded model. Never guesses: a process counts as an Ollama's because slotgate started it, or because it holds the socket
that the backend's address leads to.

The port of such a llama-server changes with every load and is told by no API; its command line says it. Source:
Ollama 0.33, llm/llama_server.go:348-440.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

import msgspec

from proxy.backends.processes import Denied, Listener, Process, ProcessTable, user_name
from proxy.endpoint import Endpoint, is_local

_BLOB = re.compile(r"sha256[-:]([0-9a-f]{64})")
_FLAGS = {
    "-m": "model",
    "--model": "model",
    "--port": "port",
    "--host": "host",
    "-c": "context",
    "--ctx-size": "context",
    "-np": "slots",
    "--parallel": "slots",
    "-b": "batch",
    "--batch-size": "batch",
    "-ngl": "layers",
    "--gpu-layers": "layers",
    "--n-gpu-layers": "layers",
    "-t": "threads",
    "--threads": "threads",
}
_EMULATED = "proxy.emulated"
"""The module behind an interpreter's `-m`; see docs/emulated.md."""
_IN_ITS_PLACE = "--as-ollama"
SEE = "see docs/ollama.md"


class Child(msgspec.Struct, frozen=True):
    """A llama-server that an Ollama runs, as its command line describes it."""

    pid: int
    started: int
    """See `processes.Process`."""
    model: str
    """Path of what it loaded: a blob of Ollama's store."""
    port: int
    slots: int = 1
    context_tokens: int | None = None
    """Of one slot."""
    batch_tokens: int | None = None
    gpu_layers: int | None = None
    """None: as many as fit."""
    threads: int | None = None
    context_shift: bool = False

    @property
    def weights(self) -> str:
        """What it loaded, as `scheduler.domain.Backend.weights`."""
        return blob(PurePath(self.model).name)


class Found(msgspec.Struct, frozen=True):
    """An Ollama's processes, as they were a moment ago."""

    ollama: Process | None = None
    """None: not known, and `why` says why."""
    children: tuple[Child, ...] = ()
    why: str = ""
    """Why its children are not known; empty: they are. One sentence without its full stop."""
    environment: dict[str, str] | None = None
    """What `ollama serve` was started with; None: not known."""
    unit: str = ""
    """The systemd service that it belongs to."""


def blob(text: str) -> str:
    """The digest in the name of a blob, hex; empty: it is none."""
    match = _BLOB.fullmatch(text)
    return match[1] if match else ""


def parse(arguments: Sequence[str], process: Process) -> Child | None:
    """Read a command line; None: it is no llama-server that has loaded a model.

    Ollama also starts llama-servers without a model for a moment, to find out what GPUs there are; and `ollama runner`,
    which has no slots to ask for, for models of other formats. One whose model is no blob is not Ollama's.
    """
    if "runner" in arguments[1:2]:
        return None
    said = dict(_settings(arguments))
    model, port, slots = said.get("model", ""), _number(said, "port"), _number(said, "slots") or 1
    if (
        not blob(PurePath(model).name)
        or not port
        or said.get("host", "127.0.0.1") not in {"127.0.0.1", "localhost", "0.0.0.0"}
    ):
        return None
    context = _number(said, "context")
    return Child(
        pid=process.pid,
        started=process.started,
        model=model,
        port=port,
        slots=slots,
        context_tokens=context // slots if context else None,
        batch_tokens=_number(said, "batch"),
        gpu_layers=_number(said, "layers"),
        threads=_number(said, "threads"),
        context_shift="--context-shift" in arguments,
    )


def _settings(arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
    for index, argument in enumerate(arguments):
        flag, mark, value = argument.partition("=")
        if name := _FLAGS.get(flag):
            yield name, value if mark else "".join(arguments[index + 1 : index + 2])


def _number(said: dict[str, str], name: str) -> int | None:
    with contextlib.suppress(ValueError):
        return int(said.get(name, ""))
    return None


class Finder:
    """Finds one Ollama's processes. Its methods block: call them in a thread."""

    def __init__(
        self, endpoint: Endpoint, own_pid: Callable[[], int | None] | None = None, table: ProcessTable | None = None
    ) -> None:
        """`own_pid` tells the process of an Ollama that slotgate started; None: somebody else did."""
        self._endpoint = endpoint
        self._own_pid = own_pid
        self._table = table or ProcessTable()

    def find(self) -> Found:
        """Look for all of it anew."""
        process, why = self._ollama()
        if process is None:
            return Found(why=why)
        below = self._table.below(process.pid)
        children = [child for each in below if (child := parse(self._table.command_line(each.pid), each))]
        command = self._table.command_line(process.pid)
        if not (children or self._own_pid or _is_ollama(command)):
            return Found(why=self._passes_on(process.pid))
        try:
            environment = self._table.environment(process.pid) or None
        except Denied:
            environment = None
        if _EMULATED in command and _IN_ITS_PLACE not in command:
            environment = None  # it reads its options instead
        found = Found(process, tuple(children), "", environment, self._table.unit(process.pid))
        why = self._unreachable(children)
        return msgspec.structs.replace(found, children=(), why=why) if why else found

    def holds(self, found: Found) -> bool:
        """Whether the processes that were found are still there. Cheap; says nothing of new ones."""
        known: list[Process | Child] = [*found.children, *([found.ollama] if found.ollama else [])]
        for each in known:
            now = self._table.process(each.pid)
            if now is None or now.started != each.started:
                return False
        return found.ollama is not None

    def _ollama(self) -> tuple[Process | None, str]:
        """`ollama serve`, or why it is not known."""
        if self._own_pid is not None:
            pid = self._own_pid()
            process = self._table.process(pid) if pid else None
            return process, "" if process else "its process is not running"
        endpoint = self._endpoint
        if endpoint.unix_path is not None:
            return None, "it is reached over a unix socket, and whose process answers there is not known"
        if endpoint.gate is not None or not is_local(endpoint):
            return None, "it is on another host: its address is no loopback address"
        try:
            listeners = self._table.listeners(endpoint.address, endpoint.port)
        except (OSError, ValueError):
            return None, "there is no process table of Linux to read here"
        if not listeners:
            where = "slotgate's own network name space, so it must be in another, such as a container's"
            return None, f"nobody listens on port {endpoint.port} in {where}"
        return self._holder(listeners)

    def _holder(self, listeners: list[Listener]) -> tuple[Process | None, str]:
        port = self._endpoint.port
        holders = self._table.holders({listener.inode for listener in listeners})
        pids = [pid for pid in holders.pids if pid != 1]  # systemd keeps the sockets that it made
        if len(pids) > 1:
            pids = [pid for pid in pids if _is_ollama(self._table.command_line(pid))] or pids
        if len(pids) > 1:
            return None, f"several processes listen on port {port}: {', '.join(map(str, sorted(pids)))}"
        if pids:
            process = self._table.process(pids[0])
            return process, "" if process else "its process has just ended"
        user = user_name(listeners[0].user)
        hidden = [pid for pid in holders.hidden if self._table.user(pid) == listeners[0].user]
        if hidden := [pid for pid in hidden if _is_ollama(self._table.command_line(pid))]:
            which = " or ".join(map(str, sorted(hidden)))
            return (
                None,
                f"no permission to read the process of PID {which} (run slotgate as the same user, {user}; {SEE})",
            )
        cure = f"run it as the same user, and not in a container; {SEE}"
        return None, f"slotgate cannot see which process of user {user} listens on port {port} ({cure})"

    def _passes_on(self, pid: int) -> str:
        name = PurePath("".join(self._table.command_line(pid)[:1]) or "gone").name
        listens = f"which listens on port {self._endpoint.port}"
        return f"PID {pid} ({name}), {listens}, is no Ollama: it may pass on to one, such as in a container"

    def _unreachable(self, children: Sequence[Child]) -> str:
        for child in children:
            try:
                other = self._table.network(child.pid)
                if other and other != self._table.network():
                    return f"its llama-server, PID {child.pid}, is in another network name space, such as a container's"
            except Denied:
                return f"no permission to read the process of PID {child.pid} (run slotgate as the same user; {SEE})"
        return ""


def _is_ollama(arguments: Sequence[str]) -> bool:
    """Whether a command line is `ollama serve`, run by itself or by an interpreter, or an emulated one."""
    if _EMULATED in arguments:
        return "--api=ollama" in arguments or ("--api", "ollama") in itertools.pairwise(arguments)
    names = [os.path.basename(each) for each in arguments[:4]]  # noqa: PTH119 - arguments, most of them no paths
    return any(name.startswith("ollama") for name in names) and bool({"serve", "start"} & set(arguments))
