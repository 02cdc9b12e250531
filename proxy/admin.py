"""The admin API on its unix socket: what the CLI asks and wants done. Owns the filling-in of `admin_api`'s shapes."""

import asyncio
import os
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

from proxy import __version__, admin_api
from proxy.admin_api import (
    BackendStatus,
    DrainAnswer,
    ErrorAnswer,
    GpuStatus,
    KnownModel,
    LiveRequest,
    LoadedModel,
    ModelsAnswer,
    PsAnswer,
    RecentAnswer,
    RestartAnswer,
    StatusAnswer,
    StoreStatus,
)
from proxy.admin_models import AdminModels
from proxy.admin_policy import AdminPolicy, as_json
from proxy.admin_residency import AdminResidency
from proxy.backends.fleet import Fleet
from proxy.backends.member import MemberStatus
from proxy.dialects.times import unix_seconds
from proxy.dispatcher import Dispatcher
from proxy.listener import unix_socket
from proxy.requests import RequestBook
from proxy.tasks import Tasks
from proxy.workers.answers import WorkersAdmin
from scheduler.domain import BackendView, Gpu
from scheduler.names import canonical, short


class Admin:
    """Answers the CLI."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: Fleet,
        book: RequestBook,
        store: Callable[[], StoreStatus],
        listen: Callable[[], str],
        policy: AdminPolicy,
        workers: WorkersAdmin,
        residency: AdminResidency,
        models: AdminModels,
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._book = book
        self._store = store
        self._listen = listen
        self._policy = policy
        self._workers = workers
        self._residency = residency
        self._changes = models
        self._started_s = time.monotonic()
        self._tasks = Tasks()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, path: Path) -> None:
        """Listen on a unix socket that only its owner and group may use.

        Raises:
            ListenError: the socket cannot be made there, or another slotgate listens on it.
        """
        app = web.Application(middlewares=self._workers.middlewares)
        app.router.add_get(admin_api.STATUS, self._status)
        app.router.add_get(admin_api.PS, self._ps)
        app.router.add_get(admin_api.MODELS, self._models)
        app.router.add_get(admin_api.RECENT, self._recent)
        app.router.add_get(admin_api.HEALTHZ, self._healthz)
        app.router.add_post(admin_api.drain_path("{name}"), self._drain)
        app.router.add_post(admin_api.undrain_path("{name}"), self._undrain)
        app.router.add_post(admin_api.restart_path("{name}"), self._restart)
        self._policy.add_routes(app.router)
        self._workers.add_routes(app.router)
        self._residency.add_routes(app.router)
        self._changes.add_routes(app.router)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101 - set up above
        self._listener = await asyncio.get_running_loop().create_unix_server(server, sock=unix_socket(path))
        self._path = path

    async def close(self) -> None:
        """Stop listening; removes the socket."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        await self._tasks.close()

    def _views(self) -> dict[str, BackendView]:
        return {view.backend.id: view for view in self._dispatcher.scheduler.snapshot(time.monotonic()).backends}

    async def _status(self, _request: web.Request) -> web.Response:
        return as_json(self.status())

    def status(self) -> StatusAnswer:
        """The fleet as it is now."""
        views = self._views()
        scheduler = self._dispatcher.scheduler
        warnings = [self._fleet.discovery.problem] if self._fleet.discovery.problem else []
        warnings += self._policy.problems
        warnings += self._changes.warnings
        return StatusAnswer(
            version=__version__,
            listen=self._listen(),
            uptime_s=time.monotonic() - self._started_s,
            pid=os.getpid(),
            policy_version=scheduler.policy.version,
            store=self._store(),
            waiting=len(scheduler.waiting()),
            running=len(scheduler.running()),
            backends=[self._backend_status(known, views.get(known.name)) for known in self._fleet.status()],
            warnings=warnings,
            estimates=scheduler.outlook.estimates.table(
                time.monotonic(), {view.backend.id: view.backend.running_limit for view in views.values()}
            ),
        )

    def _backend_status(self, known: MemberStatus, view: BackendView | None) -> BackendStatus:
        """`view` None: the scheduler does not know it yet."""
        return BackendStatus(
            name=known.name,
            engine=known.engine,
            managed=known.managed,
            endpoint=known.endpoint,
            health=self._dispatcher.scheduler.health(known.name).value if view else "starting",
            draining=bool(view and view.draining),
            gpu=_gpu(view.backend.gpu) if view else None,
            slots=view.backend.slots if view else known.slots or 0,
            running_limit=view.backend.running_limit if view else known.running_limit or 0,
            running=view.seats_leased if view else 0,
            elsewhere=view.seats_elsewhere if view else 0,
            foreign_busy=view.foreign_busy if view else 0,
            deferred=known.deferred,
            slot_source=known.slot_source,
            slot_source_why=known.slot_source_why,
            epoch=known.epoch,
            restarts=known.restarts,
            pid=known.pid,
            models=sorted(short(name) for name in known.models),
            last_error=known.last_error or None,
            warnings=[*known.warnings, *self._changes.doubts(known.name)],
            state=known.state,
            version=known.version,
            slot_context_tokens=known.slot_context_tokens,
            wanted=list(known.wanted),
            taken=known.taken,
            log_path=known.log_path,
            looked_s_ago=known.looked_s_ago,
            gpu_free_bytes=self._free_bytes(known.name),
            names_slots=bool(view and view.names_slots),
            resident=self._residency.resident(view) if view else [],
            context_exceeded=self._residency.exceeded(known.name),
        )

    def _free_bytes(self, backend_id: str) -> int | None:
        memory = self._dispatcher.scheduler.outlook.loads.memory(backend_id, time.monotonic())
        return None if memory is None else memory.free_bytes

    async def _ps(self, _request: web.Request) -> web.Response:
        models: list[LoadedModel] = []
        for view in self._views().values():
            backend = view.backend
            facts = self._fleet.facts(backend.id)
            digests = {canonical(model.name): model.digest for model in facts.models} if facts else {}
            states = {each.name: each for each in self._residency.resident(view)}
            models += [
                LoadedModel(
                    name=short(residency.model),
                    backend=backend.id,
                    digest=digests.get(residency.model) or None,
                    size_bytes=residency.size_bytes,
                    gpu_bytes=residency.gpu_bytes,
                    context_tokens=residency.context_tokens,
                    expires_at_unix_s=residency.expires_at_unix_s,
                    gpu=_gpu(backend.gpu),
                    slots_busy=min(view.taken, backend.slots),
                    slots=backend.slots,
                    state=states[short(residency.model)].state,
                    pinned=states[short(residency.model)].pinned,
                )
                for residency in view.residencies
            ]
            models += [
                LoadedModel(
                    each.name,
                    backend.id,
                    digests.get(canonical(each.name)) or None,
                    context_tokens=each.context_tokens,
                    gpu=_gpu(backend.gpu),
                    state=each.state,
                    pinned=each.pinned,
                )
                for each in states.values()
                if each.state == "loading"
            ]
        return as_json(PsAnswer(models=models, requests=self._live(), pins=self._residency.pins()))

    def _live(self) -> list[LiveRequest]:
        now_s = time.monotonic()
        scheduler = self._dispatcher.scheduler
        running = {lease.request_id: lease.backend_id for lease in scheduler.running()}
        outlooks = {request.id: scheduler.outlook_of(request.id, now_s) for request in self._dispatcher.live()}
        return [
            LiveRequest(
                id=request.id,
                state="running" if request.id in running else "waiting",
                dialect=request.dialect.value,
                operation=request.operation.value,
                model=short(request.model) if request.model else None,
                age_s=now_s - request.arrived_s,
                backend=running.get(request.id),
                tenant=request.tenant,
                priority=request.priority,
                position=None if (outlook := outlooks[request.id]) is None else outlook[0],
                expected_wait_s=None if outlook is None else outlook[1],
            )
            for request in self._dispatcher.live()
        ]

    async def _models(self, _request: web.Request) -> web.Response:
        models: dict[str, KnownModel] = {}
        for backend_id, view in self._views().items():
            facts = self._fleet.facts(backend_id)
            loaded = {residency.model for residency in view.residencies}
            for model in facts.models if facts else ():
                name = canonical(model.name)
                known = models.setdefault(
                    name,
                    KnownModel(
                        name=short(name),
                        backends=[],
                        digest=model.digest or None,
                        size_bytes=model.size_bytes or None,
                        modified_at_unix_s=unix_seconds(model.modified_at),
                        pinned=self._residency.is_pinned(name),
                    ),
                )
                known.backends.append(backend_id)
                if name in loaded:
                    known.loaded_on.append(backend_id)
        self._changes.mark(models)
        return as_json(ModelsAnswer(models=[models[name] for name in sorted(models)]))

    async def _recent(self, _request: web.Request) -> web.Response:
        return as_json(RecentAnswer(self._book.recent()))

    async def _healthz(self, _request: web.Request) -> web.Response:
        """200 while at least one backend can take requests."""
        usable = any(view.health.value in {"ready", "suspect"} for view in self._views().values())
        return web.Response(status=HTTPStatus.OK if usable else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _drain(self, request: web.Request) -> web.Response:
        return await self._set_draining(request.match_info["name"], drain=True)

    async def _undrain(self, request: web.Request) -> web.Response:
        return await self._set_draining(request.match_info["name"], drain=False)

    async def _set_draining(self, name: str, *, drain: bool) -> web.Response:
        if name not in self._views():
            return self._unknown(name)
        await self._dispatcher.drain(name, drain=drain)
        view = self._views().get(name)
        return self._unknown(name) if view is None else as_json(DrainAnswer(name, view.draining, _seats_taken(view)))

    async def _restart(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        known = next((status for status in self._fleet.status() if status.name == name), None)
        if known is None:
            return self._unknown(name)
        if not known.managed:
            external = f"{name} is external: slotgate did not start it and cannot restart it; restart it where it runs"
            theirs = f"{name} is looked after by the proxy {known.owner} on box {known.box}: restart it there"
            error = theirs if known.owner else external
            return as_json(ErrorAnswer(error), HTTPStatus.CONFLICT)
        view = self._views().get(name)
        answer = RestartAnswer(name, known.state, _seats_taken(view) if view else 0)
        self._tasks.start(self._fleet.restart(name), f"restart of {name}")  # an engine may take long to end
        return as_json(answer)

    def _unknown(self, name: str) -> web.Response:
        known = sorted(status.name for status in self._fleet.status())
        return as_json(ErrorAnswer(f"no backend {name!r}", known), HTTPStatus.NOT_FOUND)


def _seats_taken(view: BackendView) -> int:
    return view.seats_leased + view.seats_elsewhere


def _gpu(gpu: Gpu | None) -> GpuStatus | None:
    return None if gpu is None else GpuStatus(gpu.index, gpu.name, gpu.uuid, gpu.memory_bytes)
