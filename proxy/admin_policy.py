"""The admin API's part about routing: the policy, and why a request ran where it did. Owns no shape and no rule."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import msgspec
from aiohttp import web

from proxy import admin_api
from proxy.admin_api import ErrorAnswer, PolicyChangedAnswer, PolicyChoice, PolicyReset, PolicySet
from proxy.admin_explain import explain
from proxy.dispatcher import Dispatcher
from proxy.journal import KEPT, Journal
from proxy.policies import PolicyDocument
from proxy.policy_keys import PolicyError
from proxy.requests import RequestBook
from proxy.shared_policy import SharedPolicy

Body = TypeVar("Body", bound=msgspec.Struct)


class AdminPolicy:
    """Answers what the CLI asks and wants of the policy."""

    def __init__(
        self,
        policies: PolicyDocument,
        journal: Journal,
        book: RequestBook,
        dispatcher: Dispatcher,
        shared: SharedPolicy | None = None,
    ) -> None:
        """`shared` makes changes those of the whole fleet; without it they are this proxy's own."""
        self._policies = policies
        self._dispatcher = dispatcher
        self._shared = shared
        self._journal = journal
        self._book = book

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer these paths."""
        router.add_get(admin_api.POLICY, self._show)
        router.add_post(admin_api.POLICY_SET, self._set)
        router.add_post(admin_api.POLICY_PRESET, self._choose)
        router.add_post(admin_api.POLICY_RESET, self._reset)
        router.add_get(admin_api.explain_path("{id}"), self._explain)

    @property
    def problems(self) -> list[str]:
        """What of the kept policy is not in force, and why."""
        return self._policies.problems

    async def _show(self, _request: web.Request) -> web.Response:
        return as_json(self._policies.answer())

    async def _set(self, request: web.Request) -> web.Response:
        return await self._changed(request, PolicySet, lambda body: self._policies.set(body.set))

    async def _choose(self, request: web.Request) -> web.Response:
        return await self._changed(request, PolicyChoice, lambda body: self._policies.choose(body.preset))

    async def _reset(self, request: web.Request) -> web.Response:
        return await self._changed(request, PolicyReset, lambda body: self._policies.reset(body.keys))

    async def _explain(self, request: web.Request) -> web.Response:
        request_id = request.match_info["id"]
        answer = explain(request_id, self._journal, self._book, self._dispatcher)
        if answer is None:
            error = (
                f"nothing is known of request {request_id}: of the last {KEPT} decisions (fewer in a large fleet) none "
                "was about it. The id is in the answer's header X-Slotgate-Request, and in the request log"
            )
            return as_json(ErrorAnswer(error), HTTPStatus.NOT_FOUND)
        return as_json(answer)

    async def _changed(
        self, request: web.Request, kind: type[Body], change: Callable[[Body], PolicyChangedAnswer]
    ) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            return as_json(ErrorAnswer(f"not the JSON that {request.path} takes: {error}"), HTTPStatus.BAD_REQUEST)
        try:
            if self._shared is not None:
                return as_json(await self._shared.change(lambda: change(body)))
            return as_json(change(body))
        except PolicyError as error:
            return as_json(ErrorAnswer(str(error)), HTTPStatus.BAD_REQUEST)


def as_json(answer: msgspec.Struct, status: int = HTTPStatus.OK) -> web.Response:
    """An answer of the admin API."""
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")
