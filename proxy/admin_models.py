"""The admin API's part about changing models: `slotgate pull`, `rm` and `cp`. Owns no shape and no rule.

Whoever reaches the admin socket may. Answers are lines of JSON as they come: what each model store says, with its
backends as `store`; what is worth knowing besides, as `note`; and at the end one line with neither, with `status`
"success" or with `error`.
"""

import contextlib
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from proxy import admin_api
from proxy.admin_api import ErrorAnswer, KnownModel
from proxy.admin_policy import as_json
from proxy.dialects import ClientError
from proxy.dialects.times import unix_seconds
from proxy.model_store.conflicts import warning
from proxy.model_store.grouping import doubt, doubtful
from proxy.model_store.listening import Listener
from proxy.model_store.whole import ModelStores
from proxy.model_store.wishes import Change, Wish, read_wish
from scheduler.names import short

LEFT_POLL_S = 0.5
"""How often is looked whether the command is still there, which nothing else tells while there is nothing to say."""


class AdminModels:
    """Changes models for the CLI."""

    def __init__(self, stores: ModelStores) -> None:
        self.stores = stores

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer these paths."""
        for change in (Change.PULL, Change.DELETE, Change.COPY):
            router.add_post(f"{admin_api.MODELS}/{change}", self._change)

    @property
    def warnings(self) -> list[str]:
        """Models that are not the same everywhere, one line each."""
        return [warning(model, digests) for model, digests in sorted(self.stores.conflicts().items())]

    def doubts(self, backend_id: str) -> list[str]:
        """What an operator should say about the directory of a backend's models, if anything."""
        backends = self.stores.doubtful()
        if backend_id not in backends:
            return []
        return [f"the directory of its models is not known, so it counts as its own: {doubt(backends)}"]

    def mark(self, models: Mapping[str, KnownModel]) -> None:
        """Put the digests of those into a list, by their canonical names, and show the copy that all lists show."""
        for name, digests in self.stores.conflicts().items():
            if name in models:
                shown = self.stores.chosen(name)
                models[name].digests = dict(sorted(digests.items()))
                models[name].digest, models[name].size_bytes = shown.digest, shown.size_bytes
                models[name].modified_at_unix_s = unix_seconds(shown.modified_at)

    async def _change(self, request: web.Request) -> web.StreamResponse:
        try:
            wish = read_wish(Change(request.path.rpartition("/")[2]), await request.read(), admin=True)
            listener = self.stores.changes.begin(wish, detailed=True)
        except ClientError as error:
            return as_json(ErrorAnswer(error.message), error.status)
        try:
            return await self._tell(request, listener, wish)
        finally:
            self.stores.changes.leave(listener)

    def _before(self, wish: Wish) -> str:
        """What is worth knowing before a change ends; empty: nothing."""
        backends = doubtful(self.stores.models.stores()) if wish.change is Change.PULL else ()
        if not backends:
            return ""
        return f"the models go to {', '.join(backends)} one by one, as to a directory each; {doubt(backends)}"

    def _after(self, wish: Wish) -> str:
        """What is worth knowing once it is done; empty: nothing."""
        backends = self.stores.models.loaded_on(wish.model) if wish.change is Change.DELETE else ()
        if not backends:
            return ""
        name = short(wish.model)
        return (
            f"{name} is still loaded on {', '.join(backends)}, until its time is over: "
            "an Ollama unloads nothing that it does not have on disk"
        )

    async def _tell(self, request: web.Request, listener: Listener, wish: Wish) -> web.StreamResponse:
        answer = web.StreamResponse(status=HTTPStatus.OK, headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            if note := self._before(wish):
                await answer.write(msgspec.json.encode({"note": note}) + b"\n")
            async for text in listener.lines(LEFT_POLL_S):
                if text:
                    await answer.write(text)
                elif request.transport is None or request.transport.is_closing():
                    return answer
            outcome = await listener.outcome()
            if outcome.ok and (note := self._after(wish)):
                await answer.write(msgspec.json.encode({"note": note}) + b"\n")
            end = {"status": "success"} if outcome.ok else {"error": outcome.error}
            await answer.write(msgspec.json.encode(end) + b"\n")
            await answer.write_eof()
        return answer
