"""What is known of the models on the Ollamas' disks: which model stores there are, what each has, and how soon a change
is seen. Owns no change.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from proxy.backends.fleet import Fleet
from proxy.dialects import ClientError
from proxy.endpoint import is_local
from proxy.model_store.grouping import Holder, ModelStore, model_stores
from proxy.model_store.wishes import Change, Wish
from scheduler.domain import BackendView, Engine, Health
from scheduler.names import canonical

log = structlog.get_logger("slotgate.model-store")

ANSWERING = frozenset({Health.READY, Health.SUSPECT, Health.DRAINING})
SHOWN_WITHIN_S = 3.0
"""The end of a change waits so long for `ollama list` to show it; then it is told all the same."""
_POLL_S = 0.02


class Models:
    """The models of all Ollamas of the fleet."""

    def __init__(self, fleet: Fleet, views: Callable[[], Sequence[BackendView]]) -> None:
        self._fleet = fleet
        self._views = views

    def stores(self) -> tuple[ModelStore, ...]:
        """All model stores. Ollamas that have not told anything yet are not among them: nobody knows theirs.

        Raises:
            ClientError: there are none.
        """
        holders = []
        for view in self._views():
            name, facts = view.backend.id, self._fleet.facts(view.backend.id)
            if facts is None or facts.engine is not Engine.OLLAMA:
                continue
            holders.append(Holder(name, self._fleet.store_id(name), facts.model_store, self._is_here(name)))
        if not holders:
            raise ClientError(501, "no backend is an Ollama: there is no model store to change")
        return model_stores(holders)

    def _is_here(self, backend_id: str) -> bool:
        try:
            endpoint = self._fleet.endpoint(backend_id)
        except LookupError:
            return False
        return endpoint.gate is None and is_local(endpoint)

    def usable(self, store: ModelStore) -> Sequence[str]:
        """Its backends that can be asked at this moment, in its order."""
        answering = {view.backend.id for view in self._views() if view.health in ANSWERING}
        return [name for name in store.backends if name in answering]

    def digests(self, store: ModelStore, model: str) -> frozenset[str]:
        """Of a model there, as its backends told last; more than one: some have not looked since it changed."""
        return frozenset(digest for name in store.backends if (digest := self._digest(name, model)) is not None)

    def loaded_on(self, model: str) -> Sequence[str]:
        """Backends that have a model in memory under this name; it stays there when it is deleted."""
        name = canonical(model)
        return sorted(view.backend.id for view in self._views() if any(each.model == name for each in view.residencies))

    async def changed(self, wish: Wish, stores: Sequence[ModelStore]) -> None:
        """Have all backends of these look at their models at once; returns when that is seen here, or soon."""
        names = [name for store in stores for name in self.usable(store)]
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(SHOWN_WITHIN_S):
                await asyncio.gather(*(self._fleet.list_models(name) for name in names))
                while not all(self._shows(name, wish) for name in names):  # noqa: ASYNC110 - told by other proxies
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            waited_s = round(time.monotonic() - began_s, 1)
            log.info("change of models not seen yet", change=wish.change, model=wish.model, waited_s=waited_s)

    def _shows(self, backend_id: str, wish: Wish) -> bool:
        match wish.change:
            case Change.DELETE:
                return self._digest(backend_id, wish.model) is None
            case Change.COPY:
                return self._digest(backend_id, wish.destination) is not None
            case Change.PULL | Change.CREATE:
                return self._digest(backend_id, wish.model) is not None
        return True

    def _digest(self, backend_id: str, model: str) -> str | None:
        """None: it has none of that name."""
        facts, name = self._fleet.facts(backend_id), canonical(model)
        return next((each.digest for each in facts.models if canonical(each.name) == name), None) if facts else None
