"""Puts the parts of this package together for one process. Owns no behaviour."""

import time
from collections.abc import Callable, Iterator

from proxy.backends.fleet import Fleet
from proxy.dialects import ClientError
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dispatcher import Dispatcher
from proxy.model_store.blobs import Blobs
from proxy.model_store.changes import Changes
from proxy.model_store.conflicts import ConflictLog, Conflicts, DoubtLog, chosen, conflicts
from proxy.model_store.grouping import doubtful
from proxy.model_store.models import Models
from proxy.model_store.single import Singles
from proxy.pools import Pools
from proxy.store import Store
from scheduler.names import canonical


class ModelStores:
    """All that one process does with the models on the Ollamas' disks."""

    def __init__(
        self, dispatcher: Dispatcher, fleet: Fleet, pools: Pools, store: Store, is_pinned: Callable[[str], bool]
    ) -> None:
        """`is_pinned`: whether a model, by its canonical name, must stay loaded."""
        self._dispatcher = dispatcher
        self._fleet = fleet
        self.models = models = Models(fleet, lambda: dispatcher.scheduler.snapshot(time.monotonic()).backends)
        singles = Singles(store.locks, pools, models.usable, store.owner)
        self.changes = Changes(models, singles, is_pinned)
        self.blobs = Blobs(models, pools)
        self._log = ConflictLog()
        self._doubts = DoubtLog()
        self._seen: list[tuple[str, EngineFacts]] = []

    def conflicts(self) -> Conflicts:
        """Models that differ between backends now."""
        return conflicts(self._facts())

    def doubtful(self) -> tuple[str, ...]:
        """Backends that may share a directory without our knowing it."""
        try:
            return doubtful(self.models.stores())
        except ClientError:
            return ()  # there is no Ollama

    def chosen(self, model: str) -> ModelFacts:
        """The copy of a model that lists show, by its canonical name; LookupError: nobody has it."""
        copies = [each for _, facts in self._facts() for each in facts.models if canonical(each.name) == model]
        if not copies:
            raise LookupError(model)
        return chosen(copies)

    def log_conflicts(self) -> None:
        """Say what is new of them; cheap while no backend tells anything new."""
        seen = list(self._facts())
        if len(seen) != len(self._seen) or any(a[1] is not b[1] for a, b in zip(seen, self._seen, strict=True)):
            self._seen = seen
            self._log.see(conflicts(seen))
            self._doubts.see(self.doubtful())

    async def close(self) -> None:
        """End all changes; may be called twice."""
        await self.changes.close()

    def _facts(self) -> Iterator[tuple[str, EngineFacts]]:
        for backend_id in sorted(self._dispatcher.backends):
            if (facts := self._fleet.facts(backend_id)) is not None:
                yield backend_id, facts
