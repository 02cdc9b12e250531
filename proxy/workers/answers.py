"""The admin API's part about workers: their list, their restart, and answers that are put together from theirs.

The main process knows the backends; what requests wait, run and ended is known where they are served. So its own answer
is completed with those of all workers, whatever it is about. Owns no shape.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeVar

import httpx
import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from proxy import admin_api
from proxy.admin_api import (
    BackendStatus,
    ErrorAnswer,
    PsAnswer,
    RecentAnswer,
    StatusAnswer,
    WorkersAnswer,
    WorkerStatus,
)
from proxy.admin_policy import as_json
from proxy.workers.crew import Crew
from proxy.workers.worker import Worker

log = structlog.get_logger("slotgate.workers")

Answer = TypeVar("Answer")

ASK_TIMEOUT_S = 3.0
"""A worker that does not answer by then is left out."""


class WorkersAdmin:
    """Answers what is asked about workers, and completes what is asked about requests."""

    def __init__(self, crew: Crew | None) -> None:
        """`crew` None: this process serves clients itself."""
        self._crew = crew

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer these paths."""
        router.add_get(admin_api.WORKERS, self._list)
        router.add_post(admin_api.WORKERS_RESTART, self._restart)

    @property
    def middlewares(self) -> Sequence[Middleware]:
        """What completes other answers."""
        return [] if self._crew is None else [self._complete]

    def answer(self) -> WorkersAnswer:
        """All workers, as they are now."""
        crew = self._crew
        if crew is None:
            return WorkersAnswer([])
        return WorkersAnswer(statuses(crew), crew.rolling, crew.replaced, crew.problem)

    async def _list(self, _request: web.Request) -> web.Response:
        return as_json(self.answer())

    async def _restart(self, _request: web.Request) -> web.Response:
        if self._crew is None:
            error = "there are no workers to restart: one process does everything. Set workers = 2 or more"
            return as_json(ErrorAnswer(error), HTTPStatus.CONFLICT)
        if not self._crew.restart():
            error = "workers are being restarted already, or slotgate stops; `slotgate workers` shows how far it is"
            return as_json(ErrorAnswer(error), HTTPStatus.CONFLICT)
        return as_json(self.answer())

    @property
    def _complete(self) -> Middleware:
        @web.middleware
        async def complete(request: web.Request, handler: Handler) -> web.StreamResponse:
            own = await handler(request)
            path = request.path
            if not isinstance(own, web.Response):
                return own
            if request.method == "GET" and path.startswith("/requests/"):
                return await self._first(path) or own
            if own.status != HTTPStatus.OK or not isinstance(own.body, bytes):
                return own
            if path == admin_api.STATUS:
                return as_json(await self._status(msgspec.json.decode(own.body, type=StatusAnswer)))
            if path == admin_api.PS:
                answer = msgspec.json.decode(own.body, type=PsAnswer)
                told = await self._ask(path, PsAnswer)
                return as_json(PsAnswer(answer.models, [live for each in told for live in each.requests]))
            if path == admin_api.RECENT:
                ended = [one for each in await self._ask(path, RecentAnswer) for one in each.requests]
                return as_json(RecentAnswer(sorted(ended, key=lambda one: one.ended_at_unix_s)))
            return own

        return complete

    async def _status(self, answer: StatusAnswer) -> StatusAnswer:
        told = await self._ask(admin_api.STATUS, StatusAnswer)
        answer.workers = self.answer().workers
        answer.waiting = sum(each.waiting for each in told)
        answer.running = sum(each.running for each in told)
        for backend in answer.backends:
            same = [one for each in told for one in each.backends if one.name == backend.name]
            _complete_backend(backend, same)
        return answer

    async def _ask(self, path: str, kind: type[Answer]) -> list[Answer]:
        """The answers of all workers that give one."""
        found = []
        for response in await asyncio.gather(*(self._get(worker, path) for worker in self._serving())):
            if response is not None and response.status_code == HTTPStatus.OK:
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(response.content, type=kind))
        return found

    async def _first(self, path: str) -> web.Response | None:
        """What the worker says that knows the request."""
        for response in await asyncio.gather(*(self._get(worker, path) for worker in self._serving())):
            if response is not None and response.status_code == HTTPStatus.OK:
                return web.Response(body=response.content, content_type="application/json")
        return None

    def _serving(self) -> list[Worker]:
        return [worker for worker in self._crew.workers if worker.ready.done()] if self._crew is not None else []

    @staticmethod
    async def _get(worker: Worker, path: str) -> httpx.Response | None:
        transport = httpx.AsyncHTTPTransport(uds=str(worker.admin_socket), verify=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=ASK_TIMEOUT_S) as http:
            try:
                return await http.get(path)
            except httpx.HTTPError as error:
                if not worker.ended.done():
                    log.warning("a worker does not answer", worker=worker.number, error=str(error) or repr(error))
                return None


def statuses(crew: Crew) -> list[WorkerStatus]:
    """All workers: those in their places, those being started, those that finish what they have."""
    found = []
    for place in crew.places:
        here = [worker for worker in crew.workers if worker.number == place.number]
        found += [_worker_status(worker, place.restarts) for worker in here]
        if not here:
            found.append(WorkerStatus(place.number, 0, "down", 0.0, warm=False, restarts=place.restarts))
    return found


def _worker_status(worker: Worker, restarts: int) -> WorkerStatus:
    alive = worker.alive
    return WorkerStatus(
        number=worker.number,
        pid=worker.pid,
        state="retiring" if worker.retiring else "serving" if worker.ready.done() else "starting",
        uptime_s=time.monotonic() - worker.started_s,
        warm=worker.warm,
        connections=alive.connections,
        running=alive.running,
        waiting=alive.waiting,
        requests=alive.requests,
        served=alive.served,
        restarts=restarts,
    )


def _complete_backend(backend: BackendStatus, told: list[BackendStatus]) -> None:
    """Seats of this box's workers are not elsewhere."""
    running = sum(each.running for each in told)
    backend.elsewhere = max(0, backend.elsewhere - running)
    backend.running += running
    backend.context_exceeded += sum(each.context_exceeded for each in told)
