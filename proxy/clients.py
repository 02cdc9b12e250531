"""The client side of one process: accepts connections, answers requests, drains. Owns no rule about a request.

What is answered is `server`'s business, which sockets there are `listener`'s, when to stop `app`'s.
"""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

import structlog

from proxy.backends.fleet import Fleet
from proxy.catalog import Catalog
from proxy.config import Config, LimitsConfig
from proxy.dispatcher import Dispatcher
from proxy.inference import Inference
from proxy.listener import BACKLOG, is_loopback
from proxy.model_store.serving import Serving
from proxy.model_store.whole import ModelStores
from proxy.origins import Origins
from proxy.pools import Pools
from proxy.relay import Frontend, Sweeper
from proxy.requests import RequestBook
from proxy.residency import Residencies
from proxy.server import Server
from proxy.tasks import Tasks
from proxy.tenancy import Tenancy
from scheduler import events

log = structlog.get_logger("slotgate")

CUT_S = 1.0
"""Requests that the stop cuts get this long to tell their clients."""
SHUTDOWN_S = 0.1
"""Then what is left of the connections gets this long."""
LINGER_S = 0.5
"""On stop, a connection without a request stays open so long: one may be on its way, or not be read yet."""
RETIRED_POLL_S = 0.1
"""How often a process that accepts nothing more looks whether its last connection is gone."""


class ClientSide:
    """Clients of one process, from accepting their connections to draining them."""

    def __init__(
        self,
        config: Config,
        sockets: Sequence[socket.socket],
        dispatcher: Dispatcher,
        fleet: Fleet,
        pools: Pools,
        book: RequestBook,
        residencies: Residencies,
        model_stores: ModelStores,
    ) -> None:
        """Make everything; `accept_from` begins. `sockets` are all those of the proxy, whichever are accepted from."""
        self._config = config
        self._loopback = all(map(is_loopback, sockets))
        self._dispatcher = dispatcher
        self._book = book
        self._idle = asyncio.Event()
        dispatcher.on_idle = self._idle.set
        limits = config.limits
        self._inference = Inference(dispatcher, fleet, pools, limits, residencies)
        catalog, tenancy = Catalog(dispatcher, fleet, pools.gates), Tenancy(config.tenancy)
        self._changes = Serving(model_stores.changes, model_stores.blobs, config, tenancy)
        self._server = Server(self._inference, catalog, book, limits, self._origins(config), tenancy, self._changes)
        self.frontend = Frontend(self._server.answer)
        self._sweeper = Sweeper(self.frontend)
        self._limit_clients(limits)
        self._tasks = Tasks()
        self._tasks.start(self._sweeper.run(), "sweeper")
        self._listeners: dict[int, asyncio.Server] = {}
        """By the file descriptor of the socket that was given."""

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return len(self.frontend.clients)

    @property
    def served(self) -> int:
        """Requests that ended."""
        return self._server.served

    async def accept_from(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from exactly these sockets. They stay open whatever happens: others may accept from them too."""
        loop = asyncio.get_running_loop()
        wanted = {each.fileno(): each for each in sockets}
        for number in self._listeners.keys() - wanted.keys():
            self._listeners.pop(number).close()
        for number in wanted.keys() - self._listeners.keys():
            shared = wanted[number].dup()  # a listener closes what it listens on
            shared.setblocking(False)
            if shared.family == socket.AF_UNIX:
                listener = await loop.create_unix_server(self.frontend, sock=shared, backlog=BACKLOG)
            else:
                listener = await loop.create_server(self.frontend, sock=shared, backlog=BACKLOG)
            if self.frontend.draining:
                listener.close()
                return
            self._listeners[number] = listener

    def reconfigure(self, config: Config) -> None:
        """Take over limits, origins, tenancy and who may change models."""
        self._config = config
        self._inference.limits = self._server.limits = config.limits
        self._limit_clients(config.limits)
        self._server.origins = self._origins(config)
        self._server.tenancy = tenancy = Tenancy(config.tenancy)
        self._changes.reconfigure(config, tenancy)

    def stop_accepting(self) -> None:
        """Take no new connections; those that wait in the kernel's queues are left for others."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self.frontend.draining = True

    async def retired(self) -> None:
        """Take no new connections, and return once the last one is gone.

        An idle connection is not closed, since its client may be sending a request just now: its next answer closes it.
        """
        self.stop_accepting()
        while self.connections or self._dispatcher.requests:  # noqa: ASYNC110 - aiohttp does not tell of the last one
            await asyncio.sleep(RETIRED_POLL_S)

    async def drain(self, stop_now: asyncio.Event) -> None:
        """Take no new connections; let what runs and waits finish, within the configured time."""
        self.stop_accepting()
        if any(client.waiting for client in self.frontend.clients):
            stopping = self._tasks.start(stop_now.wait(), "second signal")
            await asyncio.wait([stopping], timeout=min(LINGER_S, self._config.limits.drain_s))
            stopping.cancel()
        self.frontend.pre_shutdown()
        self._dispatcher.feed(events.StoppingAnnounced())
        if not self._dispatcher.requests:
            return
        self._idle.clear()
        waits = [
            self._tasks.start(self._idle.wait(), "drained"),
            self._tasks.start(stop_now.wait(), "second signal"),
        ]
        await asyncio.wait(waits, timeout=self._config.limits.drain_s, return_when=asyncio.FIRST_COMPLETED)
        if self._dispatcher.requests:
            log.warning("requests cut by the stop", requests=self._dispatcher.requests)
            self._idle.clear()
            self._dispatcher.end_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_S):
                    await self._idle.wait()

    async def close(self) -> None:
        """End what is left."""
        for listener in self._listeners.values():
            listener.close()
        await self.frontend.shutdown(SHUTDOWN_S)
        await self._tasks.close()

    def _limit_clients(self, limits: LimitsConfig) -> None:
        self._sweeper.set_limits(
            header_timeout_s=limits.header_timeout_s,
            body_timeout_s=limits.body_timeout_s,
            idle_timeout_s=limits.keepalive_timeout_s,
            write_timeout_s=limits.write_timeout_s,
        )

    def _origins(self, config: Config) -> Origins:
        return Origins(config.origins, loopback=self._loopback)
