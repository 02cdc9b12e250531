"""Composition root: builds and wires everything, starts it in order and stops it in order. Owns no behaviour itself.

Start: address, store, admin, engines. Stop: no new connections, drain, engines, store. A second signal ends at once.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import uvloop

from proxy import __version__
from proxy.admin import Admin
from proxy.admin_api import StoreStatus
from proxy.admin_policy import AdminPolicy
from proxy.backends.fleet import Fleet
from proxy.backends.launch import LaunchError
from proxy.backends.statedir import StateDirError
from proxy.catalog import Catalog
from proxy.config import Config, LimitsConfig, Paths, resolve
from proxy.config_sources import ConfigError, LoadedConfig
from proxy.dispatcher import Dispatcher
from proxy.endpoint import shown_url
from proxy.inference import Inference
from proxy.journal import Journal
from proxy.listener import ListenError, is_loopback, open_sockets, shown
from proxy.origins import Origins
from proxy.policies import FILE as POLICY_FILE
from proxy.policies import PolicyDocument
from proxy.pools import Pools
from proxy.relay import Frontend, Sweeper
from proxy.requests import RequestBook
from proxy.server import Server
from proxy.store import EmbeddedStore, LostLease, Store, StoreStartError
from proxy.systemd import Notifier, inherited_sockets
from proxy.tasks import Tasks
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.logging import configure, log_format, standard_output
from proxy.tenancy import Tenancy
from scheduler import events
from scheduler.core import Scheduler
from scheduler.domain import BackendView, Health

log = structlog.get_logger("slotgate")

ENGINE_GRACE_S = 10.0
"""After draining, engines get this long between SIGTERM and SIGKILL."""
CUT_S = 1.0
"""Requests that the stop cuts get this long to tell their clients."""
SHUTDOWN_S = 0.1
"""Then what is left of the connections gets this long."""
STATUS_EVERY_S = 5.0
"""How often systemd's status line is refreshed."""

START_ERRORS = (ListenError, StoreStartError, LaunchError, StateDirError, TimeoutError, OSError, ValueError)
"""What may be wrong with the machine or the configuration at start; everything else is a bug and gets its traceback."""


def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig]) -> int:
    """Serve until a signal; returns the process's exit status. `reload` finds the configuration anew, for SIGHUP."""
    output, on_terminal, colors = standard_output()
    form = log_format(loaded.config.log, on_terminal=on_terminal)
    configure(loaded.config.log, output, format_=form, colors=colors)
    access_log = AccessLog(output, form) if loaded.config.log.requests else None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(App(loaded.config, resolve(loaded.config, os.environ), access_log, reload).serve())
    except START_ERRORS as error:
        output.close()
        sys.stderr.write(f"slotgate: {error}\n")
        return 1
    finally:
        output.close()
    return 0


class App:
    """One proxy."""

    def __init__(
        self, config: Config, paths: Paths, access_log: AccessLog | None, reload: Callable[[], LoadedConfig]
    ) -> None:
        self._config = config
        self._find_config = reload
        self._paths = paths
        self.book = RequestBook(access_log)
        self.journal = Journal()
        self.serving = False
        self.listen = ""
        """The address that is really bound; stays known while the proxy drains."""
        self._notifier = Notifier()
        self._tasks = Tasks()
        self._sockets: list[socket.socket] = []
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._idle = asyncio.Event()

    async def serve(self) -> None:
        """Start, serve, drain, stop.

        Raises:
            one of START_ERRORS: it could not be started; everything that was is stopped again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        async with contextlib.AsyncExitStack() as stack:
            if not await self._build_unless_stopped(stack):
                return
            await self._stop.wait()
            self._notifier.stopping("draining")
            await self._drain()
        log.info("stopped")

    async def _build_unless_stopped(self, stack: contextlib.AsyncExitStack) -> bool:
        """Start everything; False: a signal came before that was done."""
        building = asyncio.ensure_future(self._build(stack))  # awaited here: what it raises is the caller's to tell
        stopped = self._tasks.start(self._stop.wait(), "stopped while starting")
        await asyncio.wait({building, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not building.done():
            building.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await building
            return False
        await building
        return True

    async def _build(self, stack: contextlib.AsyncExitStack) -> None:
        """Start everything; the stack holds how each part is stopped, in reverse order."""
        config, limits = self._config, self._config.limits
        _make_state_dir(self._paths.state_dir)
        self._sockets = open_sockets(config.listen, inherited_sockets())
        self.listen = shown(self._sockets)
        stack.callback(self._close_sockets)
        store, embedded = await self._start_store(stack)
        self._policies = policies = PolicyDocument(self._paths.state_dir / POLICY_FILE, config.policy, limits)
        scheduler = Scheduler(policies.policy)
        self._dispatcher = dispatcher = Dispatcher(scheduler, store, self.journal)
        stack.push_async_callback(dispatcher.close)
        dispatcher.on_idle = self._idle.set
        policies.on_change = lambda policy: self.feed(events.PolicyChanged(policy))
        store.on_lost = _lease_lost
        fleet = Fleet(config.backends, state_dir=self._paths.state_dir, emit=dispatcher.feed)
        dispatcher.fleet = fleet
        self._fleet = fleet
        self.pools = Pools(fleet)
        stack.callback(self.pools.close)
        fleet.on_endpoint_changed = self.pools.flush
        self.admin = Admin(
            dispatcher,
            fleet,
            self.book,
            lambda: self._store_status(store, embedded),
            lambda: self.listen,
            AdminPolicy(policies, self.journal, self.book),
        )
        await self.admin.start(self._paths.admin_socket)
        stack.push_async_callback(self.admin.close)
        await fleet.start()
        stack.push_async_callback(self._stop_fleet)
        dispatcher.start()
        self._inference = Inference(dispatcher, fleet, self.pools, limits)
        stack.push_async_callback(self._inference.close)
        catalog = Catalog(dispatcher, fleet)
        tenancy = Tenancy(config.tenancy)
        self._server = Server(self._inference, catalog, self.book, limits, self._origins(config), tenancy)
        await self._listen(self._server, stack)
        self._tasks.start(self._notifier.keep_watchdog(), "watchdog")
        self._tasks.start(self._keep_status(), "status line")
        stack.push_async_callback(self._tasks.close)
        log.info(
            "serving",
            version=__version__,
            listen=self.listen,
            backends=len(fleet.status()),
            store="embedded" if embedded else shown_url(config.store.url or ""),
            admin=str(self._paths.admin_socket),
        )
        self.serving = True
        self._notifier.ready(self._summary())

    def feed(self, event: events.Event) -> None:
        """Tell the scheduler something."""
        self._dispatcher.feed(event)

    def views(self) -> tuple[BackendView, ...]:
        """The fleet as a decision would see it now."""
        return self._dispatcher.scheduler.snapshot(time.monotonic()).backends

    @property
    def requests(self) -> int:
        """Requests waiting or running."""
        return self._dispatcher.requests

    @property
    def seats_taken(self) -> int:
        """Seats of all backends that this proxy holds, abandoned ones included."""
        return sum(lease.seats for lease in self._dispatcher.scheduler.running())

    async def drain(self, backend_id: str, *, drain: bool) -> None:
        """Drain a backend, or give it work again."""
        await self._dispatcher.drain(backend_id, drain=drain)

    def stop(self) -> None:
        """Begin to stop: drain, then end. A second time: end now."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def _start_store(self, stack: contextlib.AsyncExitStack) -> tuple[Store, EmbeddedStore | None]:
        config = self._config.store
        embedded = None
        url = config.url
        if url is None:
            embedded = EmbeddedStore(self._paths.state_dir)
            await embedded.start()
            stack.push_async_callback(embedded.stop)
            url = embedded.url
        store = Store(
            url,
            fleet=self._config.fleet,
            proxy_id=f"{socket.gethostname()}-{os.getpid()}",
            call_timeout_s=config.call_timeout_s,
            lease_ttl_s=config.lease_ttl_s,
        )
        await store.start()
        stack.push_async_callback(store.close)
        return store, embedded

    async def _listen(self, server: Server, stack: contextlib.AsyncExitStack) -> None:
        limits = self._config.limits
        self.frontend = frontend = Frontend(server.answer)
        stack.push_async_callback(frontend.shutdown, SHUTDOWN_S)
        self._sweeper = Sweeper(frontend)
        self._limit_clients(limits)
        self._tasks.start(self._sweeper.run(), "sweeper")
        loop = asyncio.get_running_loop()
        self._listeners = []
        for each in self._sockets:
            if each.family == socket.AF_UNIX:
                listener = await loop.create_unix_server(frontend, sock=each)
            else:
                listener = await loop.create_server(frontend, sock=each)
            self._listeners.append(listener)

    def _limit_clients(self, limits: LimitsConfig) -> None:
        self._sweeper.set_limits(
            header_timeout_s=limits.header_timeout_s,
            body_timeout_s=limits.body_timeout_s,
            idle_timeout_s=limits.keepalive_timeout_s,
            write_timeout_s=limits.write_timeout_s,
        )

    def _origins(self, config: Config) -> Origins:
        return Origins(config.origins, loopback=all(map(is_loopback, self._sockets)))

    def _reload(self) -> None:
        """SIGHUP: take over limits, origins, policy and tenancy as configured now, or nothing if there is an error."""
        if not self.serving:
            return  # it is just being read
        self._notifier.reloading()
        try:
            config = self._find_config().config
        except ConfigError as error:
            log.error("configuration not reloaded", problems=[str(problem) for problem in error.problems])
        except Exception:
            log.exception("configuration not reloaded")
        else:
            names = ("limits", "origins", "policy", "tenancy")
            fixed = {name: getattr(config, name) for name in names}
            others = sorted(type(config).model_fields.keys() - fixed.keys())
            if later := [name for name in others if getattr(config, name) != getattr(self._config, name)]:
                log.warning("changes that need a restart", options=later)
            self._config = self._config.model_copy(update=fixed)
            self._inference.limits = self._server.limits = config.limits
            self._limit_clients(config.limits)
            self._server.origins = self._origins(config)
            self._server.tenancy = Tenancy(config.tenancy)
            self._policies.reconfigure(config.policy, config.limits)
            log.info("configuration reloaded")
        self._notifier.ready(self._summary())

    def _signalled(self, number: int) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        self.stop()

    async def _drain(self) -> None:
        """Take no new connections; let what runs and waits finish, within the configured time."""
        for listener in self._listeners:
            listener.close()
        self.frontend.draining = True
        self.frontend.pre_shutdown()
        self._dispatcher.feed(events.StoppingAnnounced())
        if self._dispatcher.requests:
            self._idle.clear()
            waits = [
                self._tasks.start(self._idle.wait(), "drained"),
                self._tasks.start(self._stop_now.wait(), "second signal"),
            ]
            await asyncio.wait(waits, timeout=self._config.limits.drain_s, return_when=asyncio.FIRST_COMPLETED)
            if self._dispatcher.requests:
                log.warning("requests cut by the stop", requests=self._dispatcher.requests)
                self._idle.clear()
                self._dispatcher.end_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CUT_S):
                        await self._idle.wait()

    async def _stop_fleet(self) -> None:
        await self._fleet.stop(0.0 if self._stop_now.is_set() else ENGINE_GRACE_S)

    def _close_sockets(self) -> None:
        for each in self._sockets:
            if each.family == socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    Path(each.getsockname()).unlink(missing_ok=True)
            each.close()

    def _store_status(self, store: Store, embedded: EmbeddedStore | None) -> StoreStatus:
        url = embedded.url if embedded else self._config.store.url or ""
        return StoreStatus(url_shown=shown_url(url), up=store.up, embedded=embedded is not None)

    def _summary(self) -> str:
        views = self.views()
        ready = sum(view.health in (Health.READY, Health.SUSPECT) for view in views)
        waiting = len(self._dispatcher.scheduler.waiting())
        running = sum(view.seats_leased for view in views)
        return f"{ready}/{len(self._fleet.status())} backends ready, {running} running, {waiting} waiting"

    async def _keep_status(self) -> None:
        before = ""
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            if (summary := self._summary()) != before:
                self._notifier.status(summary)
                before = summary


def _make_state_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateDirError(
            f"cannot make the state directory {path}: {error.strerror}. "
            "How to fix: give this user the right to, or name another with --state-dir or state_dir = ..."
        ) from error


def _lease_lost(lost: LostLease) -> None:
    log.warning("lease lost while its request runs", backend=lost.backend_id, nonce=lost.nonce, reason=lost.reason)
