"""One proxy's part in its fleet: its backends and those of others, its policy, its gate; wires what is told and heard.

Start: the fleet's policy, this proxy's own backends, the registry, what the others know, the gate. Only then does it
take traffic. Stop: no other box's requests, then the backends; others hear that they are gone before it falls silent.
"""

import asyncio
import socket
from urllib.parse import urlsplit

import structlog

from proxy.backends.boxes import this_box
from proxy.backends.fleet import Fleet
from proxy.box import read_secret, way_in
from proxy.config import Config, Paths
from proxy.config_residency import ResidencyConfig
from proxy.config_rules import box_warnings
from proxy.direct.circle import Circle
from proxy.direct.place import listening
from proxy.dispatcher import Dispatcher
from proxy.gate import GateListener
from proxy.gate_client import GateClient
from proxy.listener import ListenError, close_all, open_sockets
from proxy.loads import Loads
from proxy.model_store.whole import ModelStores
from proxy.pins import Pins
from proxy.policies import PolicyDocument
from proxy.pools import Pools
from proxy.residency import Residencies
from proxy.shared_policy import SharedPolicy
from proxy.sharing import Sharing
from proxy.store import Store, StoreStartError
from proxy.tasks import Tasks
from scheduler.news import Hello, PinsSet, PolicySet

log = structlog.get_logger("slotgate.membership")

REGISTRY_EVERY_S = 1.0
SOON_S = 0.2
"""What many backends want at once is done once, after this time."""


class Membership:
    """A proxy among the others that name the same store and fleet."""

    def __init__(
        self,
        config: Config,
        paths: Paths,
        store: Store,
        dispatcher: Dispatcher,
        policies: PolicyDocument,
        *,
        is_worker: bool,
    ) -> None:
        """Make everything; `start` begins.

        Args:
            config: of the proxy.
            paths: where its state is.
            store: the fleet's, connected.
            dispatcher: is given the backends and those who speak for it.
            policies: this proxy's, made the fleet's.
            is_worker: another process of this box looks after its backends, and has the gate.

        Raises:
            ValueError: the gate's secret or certificates cannot be used.
            ListenError: the gate's address cannot be listened on.
        """
        secret = read_secret(config.box)
        self._config = config
        self._store = store
        self._sockets: list[socket.socket] = []
        if config.box.gate is not None and not is_worker:
            self._sockets = open_sockets(config.box.gate, [])
        port = self._sockets[0].getsockname()[1] if self._sockets else 0
        self.fleet = fleet = Fleet(
            [] if is_worker else config.backends,
            known=config.backends if is_worker else (),
            state_dir=paths.state_dir,
            emit=dispatcher.feed,
            box=this_box(config.box.name),
            gate=way_in(config.box, port, *_place(config.store.url)),
            lease_ttl_s=config.store.lease_ttl_s,
        )
        self.pools = Pools(fleet, GateClient(secret, config.box.tls_ca))
        self.policy = SharedPolicy(policies, store)
        dispatcher.loads = loads = Loads(fleet, store.locks, dispatcher.feed, self.pools.gates, dispatcher.clock)
        pins = Pins(store.pins, dispatcher, dispatcher.feed)
        self.residencies = Residencies(config.residency, dispatcher, loads, pins)
        self.model_stores = ModelStores(dispatcher, fleet, self.pools, store, pins.is_pinned)
        self._logs_conflicts = not is_worker
        self.gate: GateListener | None = None
        if self._sockets:
            own = config.box
            self.gate = GateListener(fleet.own, secret, box=fleet.box.name, tls_cert=own.tls_cert, tls_key=own.tls_key)
        self._state_dir = paths.state_dir
        self._circle = circle = Circle(config.fleet, store.owner)
        self._sharing = sharing = Sharing(
            store, dispatcher.scheduler, dispatcher, dispatcher.feed, dispatcher.clock, circle, fleet.box.id
        )
        sharing.on_circle = dispatcher.ask_occupancy
        self._tasks = Tasks()
        self._refresh_now = asyncio.Event()
        self._has_fleet = False
        self._hello_due: asyncio.TimerHandle | None = None
        dispatcher.fleet = fleet
        dispatcher.sharing = sharing
        sharing.backends = fleet
        sharing.on_policy = lambda _version: self.policy.heard()
        self.policy.on_set = lambda version: sharing.tell(PolicySet(version))
        sharing.on_loaded = fleet.loaded_by_default
        sharing.on_pins = lambda _version: pins.heard()
        pins.on_set = lambda version: sharing.tell(PinsSet(version))
        fleet.announce = dispatcher.announce
        fleet.on_endpoint_changed = self.pools.flush
        fleet.outside.tell = sharing.tell
        fleet.outside.want_refresh = self._refresh_now.set
        store.on_change = self._store_changed

    async def start(self) -> None:
        """Begin with the backends, and take in what the fleet knows.

        Raises:
            as `Fleet.start`.
        """
        await self.policy.agree()
        await self.fleet.start()
        self._has_fleet = True
        await self.residencies.pins.start()
        await self._refresh()
        self.fleet.outside.joined = lambda _backend_id: self._hello_soon()
        await self._listen_directly()
        await self._sharing.start()
        self._tasks.start(self._keep_registry(), "registry of the fleet")
        if self.gate is not None:
            await self.gate.start(self._sockets)
            for _, what, fix in box_warnings(self._config.box):
                log.warning(what, fix=fix)
            if self._config.store.url is None:
                log.warning("nobody will use the gate: no other box sees the embedded store", fix="set store.url")

    def stop_listening(self) -> None:
        """No other box comes in any more."""
        if self.gate is not None:
            self.gate.stop_listening()

    async def close(self, grace_s: float) -> None:
        """Leave the fleet; managed engines get so many seconds to end. Also after a start that failed."""
        await self._tasks.close()
        if self._hello_due is not None:
            self._hello_due.cancel()
        if self.gate is not None:
            await self.gate.close()
        await self.model_stores.close()
        await self.residencies.pins.close()
        await self.residencies.loads.close()
        if self._has_fleet:
            await self.fleet.stop(grace_s)
        await self._sharing.close()
        await self._circle.close()
        await self.policy.close()

    def dispose(self) -> None:
        """Close what was opened before the start."""
        close_all(self._sockets, remove=True)
        self.pools.close()

    def reload(self, residency: ResidencyConfig) -> None:
        """Another configuration is in force, or renewed certificates are there."""
        self.policy.heard()
        self.residencies.configure(residency)
        if self.gate is not None:
            try:
                self.gate.renew_certificate()
            except ValueError as error:
                log.error("certificate of the gate not renewed", problem=str(error))

    async def _listen_directly(self) -> None:
        try:
            opened, path = listening(self._state_dir, self._store.owner)
            await self._circle.start(opened, path)
        except (StoreStartError, ListenError, OSError) as error:
            log.warning(
                "other proxies of this box cannot tell this one anything while the store is away", why=str(error)
            )

    def _store_changed(self, up: bool) -> None:
        self._sharing.store_changed(up)
        if up:
            self.policy.heard()
            self.residencies.pins.heard()
            self._refresh_now.set()

    def _hello_soon(self) -> None:
        """A backend is known now: what others told of it before was not understood."""
        if self._hello_due is None:
            self._hello_due = asyncio.get_running_loop().call_later(SOON_S, self._hello)

    def _hello(self) -> None:
        self._hello_due = None
        self._sharing.tell(Hello())

    async def _keep_registry(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REGISTRY_EVERY_S):
                    await self._refresh_now.wait()
                await asyncio.sleep(SOON_S)
            except TimeoutError:
                pass
            self._refresh_now.clear()
            try:
                await self._refresh()
            except Exception:
                log.exception("registry not read")

    async def _refresh(self) -> None:
        self.fleet.refresh(await self._store.backends(), self._store.proxies, up=self._store.up)
        if self._logs_conflicts:
            self.model_stores.log_conflicts()


def _place(store_url: str | None) -> tuple[tuple[str, int]] | tuple[()]:
    """Where a store on the network is: other boxes speak to it as well."""
    parts = urlsplit(store_url or "")
    first = parts.netloc.rpartition("@")[2].partition(",")[0]
    host, _, port = first.rpartition(":") if first.rpartition(":")[2].isdigit() else (first, "", "6379")
    return ((host.strip("[]"), int(port)),) if parts.scheme.startswith("redis") and host else ()
