"""One worker as the main process sees it: its process, what it told, its end. Owns no decision about it."""

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from proxy.tasks import Tasks
from proxy.workers.orders import Alive, Leaving, Orders, Ready, ToWorker, from_worker, line

log = structlog.get_logger("slotgate.workers")

SILENT_S = 20.0
"""A worker that tells nothing for so long hangs, and is killed. As long as systemd waits for the main process."""
LOOK_EVERY_S = 1.0
ROOT = Path(__file__).parents[2]
"""Where the package is found: a worker runs there, so that it imports this one and no other that is called the same."""


class WorkerError(Exception):
    """A worker did not come up; the message says why and what to do."""


class Worker:
    """A process that serves clients."""

    def __init__(self, number: int, admin_socket: Callable[[int], Path]) -> None:
        """Nothing is started yet. `admin_socket`: where a worker with that pid has its admin socket."""
        self.number = number
        self.pid = 0
        self.started_s = time.monotonic()
        self.alive = Alive()
        """What it told last."""
        self.warm = False
        self.retiring = False
        """It was told to accept nothing more."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """It accepts nothing more, whoever told it so."""
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit status; negative: the signal that ended it."""
        self._admin_socket = admin_socket
        self._heard_s = self.started_s
        self._process: asyncio.subprocess.Process | None = None
        self._channel: asyncio.StreamWriter | None = None
        self._tasks = Tasks()

    @property
    def admin_socket(self) -> Path:
        """Where it answers what the main process asks."""
        return self._admin_socket(self.pid)

    @property
    def is_ready(self) -> bool:
        """It accepts connections."""
        gone = self.retiring or self.leaving.done() or self.ended.done()
        return self.ready.done() and not gone

    async def start(self, orders: Callable[[Path], Orders], descriptors: Sequence[int]) -> None:
        """Start the process and give it its orders, made for its admin socket.

        Raises:
            WorkerError: no process could be started.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise WorkerError(f"cannot start worker {self.number}: {error}") from error
        ours.setblocking(False)
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "proxy", "serve"),
                    *(f"--worker={self.number}", f"--channel={theirs.fileno()}"),
                    cwd=ROOT,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *descriptors),
                    start_new_session=True,  # a Ctrl-C in the terminal is for the main process, which ends this one
                )
            except OSError as error:
                ours.close()
                raise WorkerError(f"cannot start worker {self.number}: {error}") from error
        self.pid = self._process.pid
        reader, self._channel = await asyncio.open_unix_connection(sock=ours)
        self.tell(orders(self.admin_socket))
        self._tasks.start(self._watch(self._process), f"end of worker {self.number}")
        self._tasks.start(self._hear(reader), f"words of worker {self.number}")
        self._tasks.start(self._listen_for_silence(), f"silence of worker {self.number}")

    def tell(self, order: ToWorker) -> None:
        """Give it an order; one that is gone hears nothing."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(line(order))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def close(self) -> None:
        """Kill it if it is still there, and forget it."""
        self.signal(signal.SIGKILL)
        if self._process is not None and not self.ended.done():
            await asyncio.wait([self.ended])
        await self._tasks.close()
        if self._channel is not None:
            self._channel.close()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if self._channel is not None:
            self._channel.close()
        self.admin_socket.unlink(missing_ok=True)  # a killed one left it
        if not self.ended.done():
            self.ended.set_result(status)

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while text := await reader.readline():
                self._heard_s = time.monotonic()
                try:
                    message = from_worker.decode(text)
                except msgspec.MsgspecError as error:
                    log.error("a worker's words are not understood", worker=self.number, error=str(error))
                    continue
                if isinstance(message, Alive):
                    self.alive = message
                elif isinstance(message, Ready) and not self.ready.done():
                    self.warm = message.warm
                    self.ready.set_result(None)
                elif isinstance(message, Leaving) and not self.leaving.done():
                    self.leaving.set_result(None)

    async def _listen_for_silence(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.ready.done() and time.monotonic() - self._heard_s > SILENT_S:
                log.error("worker hangs, killing it", worker=self.number, pid=self.pid, silent_s=SILENT_S)
                self.signal(signal.SIGKILL)
                return
