"""What Ollamas have loaded, in truth, and what may be asked of them: played beside the scheduler, always checked."""

from typing import TYPE_CHECKING

import msgspec

from scheduler import effects, events
from scheduler.domain import Backend, Engine, Operation, Request, Residency
from scheduler.runner import Runner, context_of, fits, shares

if TYPE_CHECKING:
    from tests.scheduler.world import World


class PlayedLoads:
    """The loaded models of all Ollamas, and the loads that were asked for and have not ended."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.loaded: dict[str, dict[str, Residency]] = {}
        self.under_way: dict[str, effects.Load] = {}
        self.count = 0
        self.strict = True
        """Nothing but loads and restarts changes what is loaded: then nothing may be sent where its model is not."""

    def of(self, backend: Backend) -> tuple[Residency, ...]:
        """What a look shows: an Ollama's own, of others all that they have."""
        if backend.engine is not Engine.OLLAMA:
            return tuple(Residency(model) for model in sorted(backend.models))
        return tuple(
            msgspec.structs.replace(one, asked=None, runner=None) for one in self.loaded.get(backend.id, {}).values()
        )

    def put(self, backend_id: str, *residencies: Residency) -> None:
        """These are loaded there, and nothing else."""
        self.loaded[backend_id] = {one.model: one for one in residencies}

    def gone(self, backend_id: str) -> None:
        """The engine ended."""
        self.loaded.pop(backend_id, None)
        for nonce in [nonce for nonce, load in self.under_way.items() if load.backend_id == backend_id]:
            del self.under_way[nonce]

    def asked(self, load: effects.Load) -> None:
        """What must be true of a load that is asked for."""
        backend = self._world.backends[load.backend_id]
        assert backend.engine is Engine.OLLAMA
        assert load.model in backend.models
        there = [other for other in self.under_way.values() if other.backend_id == load.backend_id]
        assert not there, f"one load at a time at {load.backend_id}: {there} and {load}"
        view = self._world.view(load.backend_id)
        assert view.health.value in ("ready", "suspect"), "down and draining ones get no loads"
        assert view.loading == load.model
        here = self.loaded.get(load.backend_id, {})
        replaced = [one for one in here.values() if shares(load.model, one, backend)]
        leaving = [here[model] for model in load.unload if model in here]
        for one in leaving:
            assert not any(shares(one.model, other, backend) for other in replaced), "named apart from what it replaces"
        suits = any(_is_same(load, one, backend) for one in replaced)
        for one in [*leaving, *([] if suits else replaced)]:
            self._may_go(one, backend)
        left = len(here) - len(leaving) - len(replaced) + 1
        if self.strict and backend.max_loaded:
            assert left <= backend.max_loaded, f"it holds no more models than it may: {load} {here} {view.residencies}"
        self.under_way[load.nonce] = load

    def unloads(self, unload: effects.Unload) -> None:
        """An operator's wish is carried out."""
        backend = self._world.backends[unload.backend_id]
        here = self.loaded.get(unload.backend_id, {})
        if unload.model in here:
            self._may_go(here[unload.model], backend, pinned=True)
            del here[unload.model]

    def end(
        self, nonce: str, *, loaded: bool = True, refused: bool = False, detail: str = ""
    ) -> tuple[effects.Effect, ...]:
        """A load ends."""
        load = self.under_way.pop(nonce)
        backend = self._world.backends[load.backend_id]
        if not refused:
            here = self.loaded.setdefault(load.backend_id, {})
            for model in load.unload:
                here.pop(model, None)
            if loaded and any(_is_same(load, one, backend) for one in here.values()):
                pass  # it stays as it is, under the name that it has
            elif loaded:
                self.count += 1
                for one in [one for one in here.values() if shares(load.model, one, backend)]:
                    del here[one.model]
                context = context_of(load.runner, load.model, backend)
                weights = backend.weights.get(load.model, "")
                here[load.model] = Residency(load.model, context, weights=weights, asked=load.runner)
        detail = detail or ("" if loaded else "another proxy of the fleet loads" if refused else "no such file")
        return self._world.feed(
            events.LoadEnded(load.backend_id, load.model, nonce, loaded, detail, 1000.0 if loaded else None, refused)
        )

    def dispatched(self, dispatch: effects.Dispatch, request: Request) -> None:
        """A request goes only where its model is loaded, and is told with what."""
        backend = self._world.backends[dispatch.backend_id]
        if backend.engine is not Engine.OLLAMA or request.model is None or request.operation is Operation.UNLOAD:
            assert dispatch.runner is None
            return
        if request.cloud:
            assert backend.cloud
            return
        if not self.strict:
            return
        here = [one for one in self.loaded.get(backend.id, {}).values() if fits(request, one, backend)]
        assert here, f"{request.id} goes to {backend.id}, which has {self.loaded.get(backend.id)}"
        if request.runner is not None and here[0].context_tokens is not None:
            assert dispatch.runner is not None
            assert dispatch.runner.num_ctx == here[0].context_tokens
        else:
            assert request.runner is not None or dispatch.runner is None

    def _may_go(self, one: Residency, backend: Backend, *, pinned: bool = False) -> None:
        busy = [
            lease.nonce
            for lease in (*self._world.scheduler.running(), *self._world.scheduler.elsewhere()[1])
            if lease.backend_id == backend.id and lease.counted and shares(lease.model or "", one, backend)
        ]
        assert not busy, f"{one.model} at {backend.id} goes while {busy} run on it"
        for pin in () if pinned else self._world.scheduler.pins:
            if pin.backend_id == backend.id:
                assert not fits(_wants(pin.model, pin.runner), one, backend), f"{one.model} is pinned to {backend.id}"


def _is_same(load: effects.Load, one: Residency, backend: Backend) -> bool:
    """Whether the engine takes what it is told for what it has loaded: it compares numbers."""
    if not shares(load.model, one, backend):
        return False
    context = context_of(load.runner, load.model, backend)
    said = msgspec.structs.replace(load.runner, num_ctx=None, exact=False)
    had = msgspec.structs.replace(one.asked or Runner(), num_ctx=None, exact=False)
    return (context, said) == (one.context_tokens, had)


def _wants(model: str, runner: Runner) -> Request:
    from tests.scheduler.world import request

    return msgspec.structs.replace(request(model=model), runner=runner)
