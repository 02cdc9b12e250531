"""A worker's end of its conversation with the main process. Owns the worker's end should the main process be gone.

Orders are read by a thread: it notices the main process's end also while the event loop hangs.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import msgspec
import structlog

from proxy.tasks import Tasks
from proxy.workers.orders import Alive, FromWorker, Orders, ToWorker, line, to_worker

log = structlog.get_logger("slotgate.worker")

LAST_WORDS_S = 5.0
"""When the main process is gone, clients get this long to be told."""
ALIVE_EVERY_S = 1.0


class OrdersMissing(Exception):
    """The first message of the main process did not come, or is not understood."""


class Post:
    """The conversation."""

    def __init__(self, channel: socket.socket, end: Callable[[int], object] = os._exit) -> None:
        """Read the orders; waits for them.

        Args:
            channel: to the main process.
            end: how this process is ended if the main one is gone and nothing else does.

        Raises:
            OrdersMissing: there are none.
        """
        channel.setblocking(True)
        self._channel = channel
        self._end = end
        self._lines = channel.makefile("rb")
        try:
            orders = to_worker.decode(self._lines.readline())
        except (OSError, msgspec.MsgspecError) as error:
            raise OrdersMissing(f"the main process's orders are not understood: {error}") from error
        if not isinstance(orders, Orders):
            raise OrdersMissing("the main process did not begin with orders")
        self.orders = orders
        self.groups: list[list[socket.socket]] = [[_inherited(fd) for fd in group] for group in orders.sockets]
        """The listening sockets."""
        self._tasks = Tasks()

    def start(self, on_order: Callable[[ToWorker], None], on_gone: Callable[[], None]) -> None:
        """Hear further orders, in the running loop; `on_gone`: the main process is no more, or let go of this one."""
        loop = asyncio.get_running_loop()
        listening = threading.Thread(target=self._listen, args=(loop, on_order, on_gone), name="orders", daemon=True)
        listening.start()

    def tell(self, message: FromWorker) -> None:
        """Say something. It is small and read at once, so this does not block for long."""
        try:
            self._channel.sendall(line(message))
        except OSError:
            log.debug("the main process does not listen")

    def keep_telling(self, how: Callable[[], Alive]) -> None:
        """Say from now on that this worker is alive, and how it is."""
        self._tasks.start(self._keep_telling(how), "telling the main process")

    async def close(self) -> None:
        """Say nothing more."""
        await self._tasks.close()

    async def _keep_telling(self, how: Callable[[], Alive]) -> None:
        while True:
            self.tell(how())
            await asyncio.sleep(ALIVE_EVERY_S)

    def _listen(
        self, loop: asyncio.AbstractEventLoop, on_order: Callable[[ToWorker], None], on_gone: Callable[[], None]
    ) -> None:
        try:
            for text in self._lines:
                loop.call_soon_threadsafe(on_order, to_worker.decode(text))
        except (OSError, msgspec.MsgspecError) as error:
            problem = str(error)
            _in_loop(loop, lambda: log.error("orders not understood", error=problem))
        _in_loop(loop, on_gone)
        threading.Event().wait(LAST_WORDS_S)
        self._end(1)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # closed: this process ends already
        return


def _inherited(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)
