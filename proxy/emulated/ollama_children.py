"""The hidden children of an emulated Ollama: one real process per runner, as the process table shows the real ones.

Owns starting, hearing and ending them. Must not know when a model is loaded, or what a child answers.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog

from proxy.emulated import ollama_child
from proxy.emulated.engine import SlotEngine
from proxy.emulated.ollama_child_answers import ChildAnswers
from proxy.emulated.ollama_runner import Shape, command_line
from proxy.emulated.ollama_store import StoredModel

log = structlog.get_logger("slotgate.emulated")

_REAP_S = 0.02
_END_S = 5.0


class ChildProcess:
    """One child: a process, and the channel over which it asks what to answer."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, port: int, answers: ChildAnswers
    ) -> None:
        self.process, self.port = process, port
        self.pid = process.pid
        self.died: Callable[[], None] = lambda: None
        self.program: Path | None = None
        """The link that it was started by, which it takes away itself unless it is killed too early."""
        self._channel: socket.socket | None = channel
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._heard = b""
        self._unsent = b""
        channel.setblocking(False)
        self._loop.add_reader(channel, self._hear)

    def ready(self, engine: SlotEngine) -> None:
        """It tells of these slots from now on; and what it is to say when its parent is no more."""
        self._answers.engine = engine
        for path in ("/health", "/slots", "/props", "/metrics"):
            last = self._answers.answer("GET", path, keep=True)
            self._send(b"*%s %d\n%s" % (path.encode(), len(last), last))

    def end(self) -> None:
        """Kill it."""
        self.let_go()
        if self.process.poll() is None:
            self.process.kill()
            self._reap()
        self.tidy_up()

    def tidy_up(self) -> None:
        """Once it is killed: what it left."""
        if self.program is not None:
            self.program.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self.program.parent.rmdir()

    def let_go(self) -> None:
        """Leave it alone: it lives on."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.remove_reader(channel)
            self._loop.remove_writer(channel)
            channel.close()

    def _reap(self) -> None:
        """Soon, so that it does not stay in the process table."""
        if self.process.poll() is None and not self._loop.is_closed():
            self._loop.call_later(_REAP_S, self._reap)

    def _hear(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            data = channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.let_go()
            self._reap()
            self.tidy_up()
            log.info("child died", pid=self.pid, port=self.port)
            self.died()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            number, method, target, keep = line.split(b" ")
            answer = self._answers.answer(method.decode("latin-1"), target.decode("latin-1"), keep=keep == b"1")
            self._send(b"%s %d\n%s" % (number, len(answer), answer))

    def _send(self, data: bytes) -> None:
        """A child that stands still is waited for without standing still here."""
        self._unsent += data
        channel = self._channel
        if channel is None:
            return
        try:
            sent = channel.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has gone, which reading tells
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(channel, self._send, b"")
        else:
            self._loop.remove_writer(channel)


class Children:
    """Starts children.

    Args:
        place: where the blob with a digest lies.
        metrics_on: whether their /metrics are on.
    """

    def __init__(self, place: Callable[[str], str], *, metrics_on: bool) -> None:
        self._place, self._metrics_on = place, metrics_on
        self.started: list[ChildProcess] = []

    def spawn(self, model: StoredModel, shape: Shape, died: Callable[[], None]) -> ChildProcess:
        """Start one.

        Raises:
            OSError: no process, port or directory is to be had.
        """
        self.started = [child for child in self.started if child.process.poll() is None]
        path = self._place(model.blob)
        listening = socket.create_server(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        port = listening.getsockname()[1]
        embeds = "completion" not in model.facts.capabilities
        own = ["-I", "-S", ollama_child.__file__]
        program = _link()
        with listening, theirs:
            process = subprocess.Popen(
                [str(program), *own, *command_line(shape, model_path=path, port=port, embeds=embeds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"EMULATED_CHILD": f"{listening.fileno()},{theirs.fileno()}"},
                pass_fds=(listening.fileno(), theirs.fileno()),
            )
        answers = ChildAnswers(model.facts, path, metrics_on=self._metrics_on)
        child = ChildProcess(process, ours, port, answers)
        child.program = program
        child.died = died
        self.started.append(child)
        return child

    def let_go(self) -> None:
        """Leave all alone, as the parent's death does."""
        for child in self.started:
            child.let_go()

    def close(self) -> None:
        """Kill all, orphans too, and wait until they are gone."""
        for child in self.started:
            child.let_go()
            child.process.kill()
            child.process.wait(_END_S)
            child.tidy_up()
        self.started.clear()


def _link() -> Path:
    """Python by the name of llama-server, in a directory of its own; the child takes both away once it runs."""
    program = Path(tempfile.mkdtemp(prefix="slotgate-emulated-")) / "llama-server"
    base = getattr(sys, "_base_executable", sys.executable)  # a virtual environment's cannot be linked to
    program.symlink_to(Path(base).resolve())
    return program
