"""Which models an emulated Ollama has and holds loaded, and who waits for a load. Must not know any API's shapes."""

import asyncio
import hashlib
import time
from typing import Any

import msgspec

from proxy.emulated.engine import SlotEngine
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.options import EmulatedModel, Options

_FOR_EVER_S = 292 * 365.25 * 86400
"""What Go's longest duration comes to."""
_KV_BYTES_PER_TOKEN = 131_072
"""An 8B model in f16."""
RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
"""A request that differs in one of these from what is loaded reloads the model."""
_BUSY = "server busy, please try again.  maximum pending requests exceeded"


class Loaded:
    """One model in memory: with its options, its own slots, and those who use it."""

    def __init__(
        self, name: str, model: EmulatedModel, context: int, signature: tuple[Any, ...], engine: SlotEngine
    ) -> None:
        self.name = name
        self.model = model
        self.context = context
        self.signature = signature
        self.engine = engine
        self.users = 0
        self.keep_alive_s = 0.0
        self.expires_ns = 0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def size_bytes(self) -> int:
        """Weights and KV."""
        return self.model.size_bytes + self.context * len(self.engine.slots) * _KV_BYTES_PER_TOKEN


class Use(msgspec.Struct):
    """One request's hold on a loaded model."""

    loaded: Loaded
    waited_s: float
    """Waiting for the load, the load itself included."""


class Models:
    """The store of models and the scheduler of loads: one load at a time, in order, evicting what is idle."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.present = {model.tagged: model for model in options.models}
        self.modified_ns = time.time_ns()
        self.loaded: dict[str, Loaded] = {}
        self.deferred_max = 0
        self._pending = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    def find(self, name: str) -> EmulatedModel | None:
        """A model by its name, with or without the tag, in any case."""
        tagged = name if ":" in name else f"{name}:latest"
        return next((model for key, model in self.present.items() if key.lower() == tagged.lower()), None)

    @staticmethod
    def digest(model: EmulatedModel) -> str:
        """The manifest's digest."""
        return hashlib.sha256(model.tagged.encode()).hexdigest()

    async def use(self, model: EmulatedModel, runner: dict[str, Any], keep_alive_s: float | None) -> Use:
        """Hold a model, loading it first if need be. Give it back with `release`.

        Raises:
            OllamaError: too many requests wait for loads.
        """
        begin = time.monotonic()
        context = min(int(runner.get("num_ctx") or self.options.context), model.train_context)
        signature = (context, *(runner.get(name) for name in RUNNER_OPTIONS[1:]))
        held = self._hold(model, signature, keep_alive_s)
        if held is None:
            # One load is worked on; the others wait in a queue of bounded length.
            if self._pending > self.options.max_queue:
                raise OllamaError(503, _BUSY)
            self._pending += 1
            try:
                async with self._turn:
                    held = self._hold(model, signature, keep_alive_s)
                    if held is None:
                        await self._load(model, context, signature)
                        held = self._hold(model, signature, keep_alive_s)
            finally:
                self._pending -= 1
        if held is None:
            raise OllamaError(500, "model was unloaded while it was loading")
        return Use(held, time.monotonic() - begin)

    def release(self, loaded: Loaded) -> None:
        """A request is done with a model: the time until it is unloaded begins anew."""
        loaded.users -= 1
        self._arm(loaded)
        self._freed.set()

    def expire(self, model: EmulatedModel) -> None:
        """Unload as soon as nobody uses it."""
        if (loaded := self.loaded.get(model.tagged)) is not None:
            loaded.keep_alive_s = 0.0
            self._arm(loaded)

    def copy(self, model: EmulatedModel, name: str) -> None:
        """Give a model another name; the copy is loaded apart."""
        copied = msgspec.structs.replace(model, name=name)
        self.present[copied.tagged] = copied

    def remove(self, model: EmulatedModel) -> None:
        """Delete a model from the store."""
        self.present.pop(model.tagged, None)
        self.expire(model)

    def child_died(self, loaded: Loaded) -> None:
        """The process that computes has gone: the model is no longer loaded."""
        if self.loaded.get(loaded.model.tagged) is loaded:
            del self.loaded[loaded.model.tagged]
        self._forget(loaded)

    async def close(self) -> None:
        """Unload everything."""
        for loaded in self.loaded.values():
            if loaded.timer is not None:
                loaded.timer.cancel()
            await loaded.engine.close()
        self.loaded.clear()

    # -- loading

    def _hold(self, model: EmulatedModel, signature: tuple[Any, ...], keep_alive_s: float | None) -> Loaded | None:
        loaded = self.loaded.get(model.tagged)
        if loaded is None or loaded.signature != signature:
            return None
        loaded.users += 1
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None
        if keep_alive_s is not None:
            loaded.keep_alive_s = keep_alive_s
        return loaded

    async def _load(self, model: EmulatedModel, context: int, signature: tuple[Any, ...]) -> None:
        if (old := self.loaded.get(model.tagged)) is not None:
            old.keep_alive_s = 0.0  # other options: out with it once its requests are done
            await self._idle(old)
            self._unload(old)
        while len(self.loaded) >= self.options.max_loaded:
            victim = self._victim()
            victim.keep_alive_s = 0.0
            await self._idle(victim)
            self._unload(victim)
        await asyncio.sleep(self.options.load_s / self.options.speed)
        options = self.options
        only_embeds = "completion" not in model.capabilities
        engine = SlotEngine(
            options.settings(slots=1 if only_embeds else None, context=context),
            speed=options.speed,
            departure=options.departure,
            quiet_s=options.quiet_s,
            shift=True,
        )
        loaded = Loaded(model.tagged, model, context, signature, engine)
        loaded.keep_alive_s = options.keep_alive_s
        loaded.expires_ns = time.time_ns()
        self.loaded[model.tagged] = loaded

    def _victim(self) -> Loaded:
        """By the shortest keep-alive, then by name (not by use); an idle one first."""
        order = sorted(self.loaded.values(), key=lambda loaded: (_lifetime(loaded.keep_alive_s), loaded.name))
        return next((loaded for loaded in order if not loaded.users), order[0])

    async def _idle(self, loaded: Loaded) -> None:
        while loaded.users:
            self._freed.clear()
            await self._freed.wait()

    def _arm(self, loaded: Loaded) -> None:
        if loaded.users:
            return
        seconds = _lifetime(loaded.keep_alive_s)
        loaded.expires_ns = time.time_ns() + int(seconds * 1e9)
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None
        if seconds <= 0:
            self._unload(loaded)
        elif seconds < _FOR_EVER_S:
            loaded.timer = asyncio.get_running_loop().call_later(seconds, self._unload, loaded)

    def _unload(self, loaded: Loaded) -> None:
        if loaded.users or self.loaded.get(loaded.model.tagged) is not loaded:
            return
        del self.loaded[loaded.model.tagged]
        self._forget(loaded)

    def _forget(self, loaded: Loaded) -> None:
        if loaded.timer is not None:
            loaded.timer.cancel()
        self.deferred_max = max(self.deferred_max, loaded.engine.deferred_max)
        loaded.engine.stop()


def _lifetime(keep_alive_s: float) -> float:
    return _FOR_EVER_S if keep_alive_s < 0 else min(keep_alive_s, _FOR_EVER_S)
