"""Composition root: builds and wires everything, starts it in order and stops it in order. Owns no behaviour itself.

Start: address, store, admin, engines, clients. Stop: no new connections, drain, engines, store. A second signal ends
at once. With `workers` above 1 this is the main process, which leaves clients to them, or one of the workers.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from proxy import __version__
from proxy.admin import Admin
from proxy.admin_api import StoreStatus
from proxy.admin_models import AdminModels
from proxy.admin_policy import AdminPolicy
from proxy.admin_residency import AdminResidency
from proxy.backends.statedir import StateDirError
from proxy.clients import ClientSide
from proxy.config import Config, Paths
from proxy.config_sources import ConfigError, LoadedConfig
from proxy.dispatcher import Dispatcher
from proxy.endpoint import shown_url
from proxy.journal import Journal
from proxy.listener import close_all, open_groups, shown
from proxy.membership import Membership
from proxy.policies import FILE as POLICY_FILE
from proxy.policies import PolicyDocument
from proxy.relay import Frontend
from proxy.requests import RequestBook
from proxy.store import EmbeddedStore, LostLease, Store
from proxy.systemd import Notifier, inherited_sockets
from proxy.tasks import Tasks
from proxy.telemetry.access_log import AccessLog
from proxy.workers.answers import WorkersAdmin
from proxy.workers.crew import Crew
from proxy.workers.duty import Duty
from proxy.workers.orders import Alive
from proxy.workers.post import Post
from scheduler import events
from scheduler.core import Scheduler
from scheduler.domain import BackendView, Health

log = structlog.get_logger("slotgate")

ENGINE_GRACE_S = 10.0
"""After draining, engines get this long between SIGTERM and SIGKILL."""
STATUS_EVERY_S = 5.0
"""How often systemd's status line is refreshed."""


class App:
    """One proxy: the only process of its box, the main one, or a worker."""

    def __init__(
        self,
        config: Config,
        paths: Paths,
        access_log: AccessLog | None,
        reload: Callable[[], LoadedConfig],
        post: Post | None = None,
    ) -> None:
        """`post`: what a worker speaks to the main process by."""
        self._config = config
        self._find_config = reload
        self._paths = paths
        self.book = RequestBook(access_log)
        self.journal = Journal()
        self.serving = False
        self.listen = ""
        """The address that is really bound; stays known while the proxy drains."""
        self._reload_due = False
        """A SIGHUP came before it was of use."""
        self._notifier = Notifier()
        self._tasks = Tasks()
        self._groups: list[list[socket.socket]] = []
        self._own_sockets = False
        """They were opened here."""
        self._crew: Crew | None = None
        self._clients: ClientSide | None = None
        self._duty = None if post is None else Duty(post, self)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def serve(self) -> None:
        """Start, serve, drain, stop.

        Raises:
            one of process.START_ERRORS: it could not be started; everything that was is stopped again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._restart_workers)
        if self._duty is not None:
            self._duty.start()
        async with contextlib.AsyncExitStack() as stack:
            if not await self._build_unless_stopped(stack):
                return
            await self._stop.wait()
            self._notifier.stopping("draining")
            self._close_sockets()
            if self._duty is not None:
                self._duty.leave()
            self._membership.stop_listening()
            await self._membership.model_stores.close()
            for each in (self._crew, self._clients):
                if each is not None:
                    await each.drain(self._stop_now)
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
        config = self._config
        _make_state_dir(self._paths.state_dir)
        self._open_sockets(stack)
        store, embedded = await self._start_store(stack)
        self._policies = policies = self._policy_document()
        scheduler = Scheduler(policies.policy)
        self._dispatcher = dispatcher = Dispatcher(scheduler, store, self.journal)
        stack.push_async_callback(dispatcher.close)
        policies.on_change = lambda policy: self.feed(events.PolicyChanged(policy))
        store.on_lost = _lease_lost
        self._membership = membership = Membership(
            config, self._paths, store, dispatcher, policies, is_worker=self._duty is not None
        )
        stack.callback(membership.dispose)
        self._fleet = fleet = membership.fleet
        self.pools = membership.pools
        if config.workers > 1 and self._duty is None:
            told = self._for_workers(embedded.url if embedded else config.store.url)
            self._crew = Crew(told, self._paths, self._groups, self.usable)
        self.admin = Admin(
            dispatcher,
            fleet,
            self.book,
            lambda: self._store_status(store, embedded),
            lambda: self.listen,
            AdminPolicy(policies, self.journal, self.book, dispatcher, membership.policy),
            WorkersAdmin(self._crew),
            AdminResidency(dispatcher, membership.residencies, fleet.keep_alive_s),
            AdminModels(membership.model_stores),
        )
        await self.admin.start(self._paths.admin_socket)
        stack.push_async_callback(self.admin.close)
        stack.push_async_callback(self._leave)  # also when the start fails half way, or a signal ends it
        await membership.start()
        dispatcher.start()
        await self._begin_to_serve(stack)
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
            **({"workers": config.workers} if self._crew is not None else {}),
        )
        self.serving = True
        self._notifier.ready(self._summary())
        if self._reload_due:
            self._reload()

    def _policy_document(self) -> PolicyDocument:
        file = self._paths.state_dir / POLICY_FILE
        return PolicyDocument(file, self._config.policy, self._config.limits, keeps_file=self._duty is None)

    def _open_sockets(self, stack: contextlib.AsyncExitStack) -> None:
        if self._duty is not None:
            self._groups = self._duty.groups
        else:
            inherited = inherited_sockets()
            self._groups = open_groups(self._config.listen, inherited, self._config.workers)
            self._own_sockets = not inherited
        stack.callback(self._close_sockets)
        self.listen = shown(self._groups[0])

    async def _begin_to_serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Open the door to clients: a worker its own, the main process those of all workers."""
        if self._crew is not None:
            stack.push_async_callback(self._crew.close)
            await self._crew.start()
            return
        residencies = self._membership.residencies
        clients = ClientSide(
            self._config,
            self._sockets,
            self._dispatcher,
            self._fleet,
            self.pools,
            self.book,
            residencies,
            self._membership.model_stores,
        )
        stack.push_async_callback(clients.close)
        if self._duty is not None:
            await self._duty.begin(clients)
            stack.push_async_callback(self._duty.close)
        else:
            await clients.accept_from(self._sockets)
        self._clients = clients

    def _close_sockets(self) -> None:
        """Have new connections refused. What systemd made it keeps open for the next start, and its unix path too."""
        close_all(self._sockets, remove=self._own_sockets)
        self._groups = []

    @property
    def _sockets(self) -> list[socket.socket]:
        return [each for group in self._groups for each in group]

    def _for_workers(self, store_url: str | None) -> Config:
        """What workers are told: the store that is in use, and no engines to start."""
        config = self._config
        store = config.store.model_copy(update={"url": store_url})
        external = [backend for backend in config.backends if backend.url is not None]
        return config.model_copy(update={"store": store, "backends": external})

    @property
    def frontend(self) -> Frontend:
        """Of a process that serves clients."""
        assert self._clients is not None  # noqa: S101 - it serves
        return self._clients.frontend

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

    def _reload(self) -> None:
        """SIGHUP: take over what can change while it runs, as configured now, or nothing if there is an error."""
        if self._duty is not None:
            return  # the main process tells what is in it
        if not self.serving:
            self._reload_due = True
            return
        self._notifier.reloading()
        try:
            config = self._find_config().config
        except ConfigError as error:
            log.error("configuration not reloaded", problems=[str(problem) for problem in error.problems])
        except Exception:
            log.exception("configuration not reloaded")
        else:
            self.reconfigure(config)
        self._notifier.ready(self._summary())

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration, as far as that goes while it runs."""
        names = ("limits", "model_store", "origins", "policy", "residency", "tenancy")
        fixed = {name: getattr(config, name) for name in names}
        others = sorted(type(config).model_fields.keys() - fixed.keys())
        if later := [name for name in others if getattr(config, name) != getattr(self._config, name)]:
            log.warning("changes that need a restart", options=later)
        self._config = self._config.model_copy(update=fixed)
        if self._clients is not None:
            self._clients.reconfigure(self._config)
        self._policies.reconfigure(config.policy, config.limits)
        self._membership.reload(config.residency)
        if self._crew is not None:
            self._crew.reconfigure(fixed)
        log.info("configuration reloaded")

    def _restart_workers(self) -> None:
        """SIGUSR2."""
        if self._crew is not None:
            self._crew.restart()
        elif self._duty is None:
            log.warning("there are no workers to restart", fix="set workers = 2 or more")

    def _signalled(self, number: int) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        self.stop()

    async def _leave(self) -> None:
        await self._membership.close(0.0 if self._stop_now.is_set() else ENGINE_GRACE_S)

    def _store_status(self, store: Store, embedded: EmbeddedStore | None) -> StoreStatus:
        url = embedded.url if embedded else self._config.store.url or ""
        trouble = (
            "" if store.trouble is None else f"{store.trouble.kind}: {store.trouble.detail}; {store.trouble.advice}"
        )
        return StoreStatus(
            url_shown=shown_url(url),
            up=store.up,
            embedded=embedded is not None,
            fleet=self._config.fleet,
            proxies=max(1, len(store.proxies)),
            trouble=trouble,
        )

    def usable(self) -> list[str]:
        """Backends that can take requests now."""
        return [view.backend.id for view in self.views() if view.health in (Health.READY, Health.SUSPECT)]

    def alive(self) -> Alive:
        """What this process has to do."""
        return Alive(
            connections=self._clients.connections if self._clients is not None else 0,
            running=self.seats_taken,
            waiting=len(self._dispatcher.scheduler.waiting()),
            requests=self.requests,
            served=self._clients.served if self._clients is not None else 0,
        )

    def _summary(self) -> str:
        does = [self.alive()] + ([worker.alive for worker in self._crew.workers] if self._crew is not None else [])
        running, waiting = sum(each.running for each in does), sum(each.waiting for each in does)
        text = f"{len(self.usable())}/{len(self._fleet.status())} backends ready, {running} running, {waiting} waiting"
        return text if self._crew is None else f"{len(does) - 1} workers, {text}"

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
