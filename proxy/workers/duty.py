"""What a worker does for the main process: begins when it is warm, and follows orders. Owns no connection."""

import asyncio
import socket
from typing import Protocol

import structlog

from proxy.clients import ClientSide
from proxy.config import Config
from proxy.tasks import Tasks
from proxy.workers.orders import Accept, Alive, Leaving, Ready, Reload, Retire, ToWorker
from proxy.workers.post import Post

log = structlog.get_logger("slotgate.worker")

WARM_S = 20.0
"""A worker that does not see what it should by then serves all the same: some answers are better than none."""
WARM_POLL_S = 0.02


class Proxy(Protocol):
    """What is needed of the proxy in this process."""

    def usable(self) -> list[str]:
        """Backends that can take requests now."""
        ...

    def alive(self) -> Alive:
        """What it has to do."""
        ...

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration, as far as that goes while it runs."""
        ...

    def stop(self) -> None:
        """Drain and end; a second time: end now."""
        ...


class Duty:
    """The duty of one worker."""

    def __init__(self, post: Post, proxy: Proxy) -> None:
        self.groups: list[list[socket.socket]] = post.groups
        """The listening sockets of the box."""
        self._post = post
        self._proxy = proxy
        self._clients: ClientSide | None = None
        self._early: list[ToWorker] = []
        self._also: list[int] = []
        self._retiring = False
        self._accepting = asyncio.Lock()
        self._tasks = Tasks()

    def start(self) -> None:
        """Hear what the main process says; if it is gone, end."""
        self._post.start(self._obey, self._orphaned)

    async def begin(self, clients: ClientSide) -> None:
        """Accept connections, as soon as this process sees what the main one sees."""
        warm = await self._warm()
        self._clients = clients
        early, self._early = self._early, []
        await self._accept()
        for order in early:
            self._obey(order)
        self._post.tell(Ready(warm))
        self._post.keep_telling(self._proxy.alive)

    def leave(self) -> None:
        """Tell that this process begins to drain: somebody else has to accept what comes."""
        self._post.tell(Leaving())

    async def close(self) -> None:
        """No more of it."""
        await self._post.close()
        await self._tasks.close()

    async def _warm(self) -> bool:
        wanted = set(self._post.orders.ready)
        try:
            async with asyncio.timeout(WARM_S):
                while missing := wanted - set(self._proxy.usable()):  # noqa: ASYNC110 - looks tell it in many ways
                    await asyncio.sleep(WARM_POLL_S)
        except TimeoutError:
            log.warning("begins to serve although it does not see all backends", missing=sorted(missing))
            return False
        return True

    def _obey(self, order: ToWorker) -> None:
        if self._clients is None:
            self._early.append(order)
            return
        match order:
            case Accept():
                self._also = order.groups
                self._tasks.start(self._accept(), "accepting for others")
            case Reload():
                self._proxy.reconfigure(Config.model_validate(order.config))
            case Retire():
                self._retiring = True
                self._tasks.start(self._retire(self._clients, order.within_s), "retiring")
            case _:
                log.error("order not understood", order=type(order).__name__)

    async def _accept(self) -> None:
        async with self._accepting:
            if self._clients is not None and not self._retiring:
                groups = [self._post.orders.group, *self._also]
                await self._clients.accept_from([each for group in groups for each in self.groups[group]])

    async def _retire(self, clients: ClientSide, within_s: float) -> None:
        log.info("retires", connections=clients.connections)
        try:
            async with asyncio.timeout(within_s):
                await clients.retired()
        except TimeoutError:
            log.warning("retires although clients are left", connections=clients.connections)
        self._proxy.stop()

    def _orphaned(self) -> None:
        log.error("the main process is gone: this worker ends")
        self._proxy.stop()
        self._proxy.stop()
