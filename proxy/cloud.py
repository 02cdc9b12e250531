"""Which requests are for cloud models, and the backend that passes those on. Decides nothing else about them."""

from collections.abc import Iterable, Mapping

import msgspec

from proxy import dialects
from proxy.backends.fleet import Fleet
from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Backend, Engine, Request
from scheduler.names import canonical


class CloudModels:
    """Tells cloud models by their names, and by the entries that stand for them in an Ollama's list."""

    def __init__(self, backends: Mapping[str, Backend], fleet: Fleet) -> None:
        """`backends` are all that the scheduler knows, kept up to date by their owner."""
        self._backends = backends
        self._fleet = fleet
        self._read: EngineFacts | None = None
        self._stubs: frozenset[str] = frozenset()

    @property
    def backend(self) -> str | None:
        """The Ollama that has to do with cloud models; None: there is none."""
        return next((backend.id for backend in self._backends.values() if backend.cloud), None)

    def runs(self, model: str | None) -> str | None:
        """The backend that is asked for a model because that runs elsewhere; None: it is a model like any other."""
        backend_id = self.backend
        if model is None or backend_id is None or dialects.named_local(model):
            return None
        name = canonical(model)
        if dialects.named_cloud(model):
            # A llama-server's model may be called anything.
            here = any(each.engine is Engine.LLAMA_SERVER and name in each.models for each in self._backends.values())
            return None if here else backend_id
        return backend_id if name in self._stubs_of(backend_id) else None

    def meant(self, request: Request, model: str | None) -> Request:
        """The request as one for a cloud model, if it is that: it takes no seat, and nothing is known of its prompt."""
        if self.runs(model) is None:
            return request
        return msgspec.structs.replace(
            request, cloud=True, seats=0, divisible=False, prompt=None, runner=None, can_name_slot=False
        )

    def _stubs_of(self, backend_id: str) -> frozenset[str]:
        facts = self._fleet.facts(backend_id)
        if facts is not self._read:
            self._read, self._stubs = facts, stubs(facts.models if facts is not None else ())
        return self._stubs


def stubs(models: Iterable[ModelFacts]) -> frozenset[str]:
    """The canonical names of those that stand for a model elsewhere."""
    return frozenset(canonical(model.name) for model in models if dialects.is_stub(model.listing))
