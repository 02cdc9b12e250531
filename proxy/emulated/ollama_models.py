"""Which models an emulated Ollama holds loaded, and who waits for a load. Must not know any API's shapes.

A runner is known by the blob of its weights, so names that share it share the runner. One load is worked on at a time,
in order; whoever finds a runner that fits passes by that queue. What is waited for behind a loaded model's slots is the
slot engine's own FIFO, which nothing of Ollama shows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Problem
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_loaded import FOR_EVER_S, LoadCounts, Loaded, Spawn, Turn, lifetime_s, needed_bytes
from proxy.emulated.ollama_runner import Shape, shape_of
from proxy.emulated.ollama_store import Store, StoredModel
from proxy.emulated.options import Options

_KEPT_TURNS = 20_000
_FREE_SHARE = 0.8
"""An additional model must be predicted to need no more of the free memory (sched.go)."""
BUSY = "server busy, please try again.  maximum pending requests exceeded"
CHILD_DIED = "an error was encountered while running the model: unexpected EOF"
_CHILD_DIED_LOADING = "llama-server process has terminated: signal: killed"


class Use:
    """One request's hold on a runner; `models` None: one of the cloud, which nobody counts."""

    def __init__(self, loaded: Loaded, waited_s: float, models: "Models | None") -> None:
        self.loaded = loaded
        self.waited_s = waited_s
        """Waiting for the load, the load itself included."""
        self._models = models

    def release(self) -> None:
        """The request is over, or its client has gone; only the first time counts."""
        models, self._models = self._models, None
        if models is not None:
            models.let_go(self.loaded)


class Models:
    """The scheduler of loads.

    Args:
        options: of the engine.
        store: the models there are.
        counts: is told what happens.
        spawn: starts the process of a runner; None: there are none.
        fails: asked at each load for the error that it ends with, if any.
    """

    def __init__(
        self,
        options: Options,
        store: Store,
        counts: LoadCounts,
        *,
        spawn: Spawn | None = None,
        fails: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.options, self.store, self.counts = options, store, counts
        self.loaded: dict[str, Loaded] = {}
        """By blob. What is still loading is not there."""
        self.pending = 0
        """Requests that wait for a load, the one that is worked on among them."""
        self.turns: deque[Turn] = deque(maxlen=_KEPT_TURNS)
        """The latest, in order."""
        self._spawn, self._fails = spawn, fails
        self._turn = asyncio.Lock()
        self._unloaded = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stalls_until = 0.0
        self._room_at = 0.0

    async def use(self, model: StoredModel, asked: Mapping[str, Any], keep_alive_s: float | None) -> Use:
        """Hold a model, loading it first if need be.

        Args:
            model: of the store.
            asked: the request's runner options; those of the Modelfile are merged in here.
            keep_alive_s: sticks to the runner; None: as it is.

        Raises:
            OllamaError: too many requests wait for loads, or the load failed.
        """
        begin = time.monotonic()
        options = self.options
        wanted = {**model.settings, **asked}
        shape = shape_of(model.facts, wanted, context=options.context, parallel=options.slots)
        held = self._hold(model, shape, keep_alive_s)
        if held is None:
            # One load is worked on; the others wait in a queue of bounded length.
            if self.pending > options.max_queue:
                raise OllamaError(503, BUSY)
            self.pending += 1
            try:
                async with self._turn:
                    held = self._hold(model, shape, keep_alive_s) or await self._load(model, shape, keep_alive_s)
            finally:
                self.pending -= 1
        return Use(held, time.monotonic() - begin, self)

    def let_go(self, loaded: Loaded) -> None:
        """A request is done with a runner: the time until it is unloaded begins anew."""
        loaded.users -= 1
        self._arm(loaded)

    def expire(self, model: StoredModel) -> None:
        """Unload as soon as nobody uses it."""
        if (loaded := self.loaded.get(model.blob)) is not None:
            loaded.keep_alive_s = 0.0
            self._arm(loaded)

    def kill_child(self, loaded: Loaded) -> None:
        """End the process that computes, as by SIGKILL."""
        if loaded.child is not None:
            loaded.child.end()
        self.child_died(loaded)

    def child_died(self, loaded: Loaded) -> None:
        """The process that computes has gone: what runs fails; the next request loads the model again."""
        if loaded.dead:
            return
        loaded.dead = True
        self.counts.add("child_deaths", loaded.name)
        self.turns.append(Turn(time.monotonic(), "unloaded", loaded.name, loaded.context))
        loaded.engine.fail_all(Problem(500, "child", CHILD_DIED))

    async def settled(self) -> None:
        """Wait as /api/ps does: at each load and unload Ollama's locks are held for a while."""
        while (seconds := self._stalls_until - self._loop.time()) > 0:  # noqa: ASYNC110 - it may grow meanwhile
            await asyncio.sleep(seconds)

    def freeze(self) -> None:
        """Nothing is unloaded any more: the process that would do it has died."""
        for loaded in self.loaded.values():
            if loaded.timer is not None:
                loaded.timer.cancel()

    async def close(self) -> None:
        """Unload everything."""
        self.freeze()
        for loaded in self.loaded.values():
            if loaded.child is not None:
                loaded.child.end()
            await loaded.engine.close()
        self.loaded.clear()

    # -- loading

    def _hold(self, model: StoredModel, shape: Shape, keep_alive_s: float | None) -> Loaded | None:
        loaded = self.loaded.get(model.blob)
        if loaded is None or loaded.dead or not loaded.shape.serves(shape):
            return None
        loaded.users += 1
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None
        if keep_alive_s is not None:
            loaded.keep_alive_s = keep_alive_s
        return loaded

    async def _load(self, model: StoredModel, shape: Shape, keep_alive_s: float | None) -> Loaded:
        """Make room, load, and hold the runner at once, so that even one that is not kept serves its request."""
        reloads = await self._make_room(model, shape)
        if (ready := self._hold(model, shape, keep_alive_s)) is not None:
            return ready
        await asyncio.sleep(max(0.0, self._room_at - self._loop.time()))
        loaded = await self._start(model, shape)
        self.counts.add("loads", model.tagged)
        if reloads:
            self.counts.add("reloads", model.tagged)
        loaded.users = 1
        loaded.keep_alive_s = self.options.keep_alive_s if keep_alive_s is None else keep_alive_s
        self.loaded[model.blob] = loaded
        self.turns.append(Turn(time.monotonic(), "loaded", loaded.name, loaded.context))
        return loaded

    async def _make_room(self, model: StoredModel, shape: Shape) -> bool:
        """Unload what stands in the way; whether that was this model in another shape."""
        reloads = False
        while True:
            old = self.loaded.get(model.blob)
            if old is not None and not old.dead and old.shape.serves(shape):
                return False
            if old is not None:
                reloads = reloads or not old.dead
                await self._wait_for_unload(old)
            elif len(self.loaded) >= self.options.max_loaded or not self._fits(model, shape):
                victim = self._victim()
                await self._wait_for_unload(victim)
                if self.loaded.get(victim.blob) is not victim:
                    self.counts.add("evictions", victim.name)
            else:
                return reloads

    async def _start(self, model: StoredModel, shape: Shape) -> Loaded:
        options = self.options
        seconds = options.load_s / options.speed
        self._stall(at_most_s=seconds)
        if not self.store.has(model.blob):
            self.counts.add("failed", model.tagged)
            raise OllamaError(500, f"unable to load model: {self.store.place(model.blob)}")
        gone = asyncio.Event()
        ready: list[Loaded] = []

        def died() -> None:
            gone.set()
            for loaded in ready:
                self.child_died(loaded)

        child = self._spawn(model, shape, died) if self._spawn is not None else None
        done = False
        try:
            if seconds > 0:
                await _sleep_unless(gone, seconds)
            problem = _CHILD_DIED_LOADING if gone.is_set() else self._fails()
            if problem is not None:
                self.counts.add("failed", model.tagged)
                raise OllamaError(500, problem)
            done = True
        except asyncio.CancelledError:
            self.counts.add("aborted", model.tagged)
            raise
        finally:
            if child is not None and not done:
                child.end()
        engine = SlotEngine(
            options.settings(slots=shape.slots, context=shape.context, batch=shape.batch),
            speed=options.speed,
            departure=options.departure,
            quiet_s=options.quiet_s,
            shift=shape.shift,
        )
        loaded = Loaded(model, shape, engine, child)
        ready.append(loaded)
        if child is not None:
            child.ready(engine)
        return loaded

    def _fits(self, model: StoredModel, shape: Shape) -> bool:
        """Whether memory has room; for the first model nobody asks."""
        if not self.options.memory_bytes or not self.loaded:
            return True
        free = self.options.memory_bytes - sum(loaded.size_bytes for loaded in self.loaded.values())
        return needed_bytes(model, shape) <= _FREE_SHARE * free

    def _victim(self) -> Loaded:
        """By the shortest keep-alive, then by blob (not by use); an idle one first."""
        order = sorted(self.loaded.values(), key=lambda loaded: (lifetime_s(loaded.keep_alive_s), loaded.blob))
        return next((loaded for loaded in order if not loaded.users), order[0])

    async def _wait_for_unload(self, loaded: Loaded) -> None:
        """Have a runner go once it is idle, and wait until any goes: whoever joins it with a keep-alive keeps it."""
        loaded.keep_alive_s = 0.0
        self._unloaded.clear()
        loaded.expelled = True
        self._arm(loaded)
        if self.loaded.get(loaded.blob) is loaded:
            await self._unloaded.wait()

    def _arm(self, loaded: Loaded) -> None:
        if loaded.users or self.loaded.get(loaded.blob) is not loaded:
            return
        seconds = lifetime_s(loaded.keep_alive_s)
        loaded.expires_ns = time.time_ns() + int(seconds * 1e9)
        if loaded.timer is not None:
            loaded.timer.cancel()
            loaded.timer = None
        if seconds <= 0:
            self._unload(loaded)
        elif seconds < FOR_EVER_S:
            loaded.timer = self._loop.call_later(seconds, self._unload, loaded)

    def _unload(self, loaded: Loaded) -> None:
        if loaded.users or self.loaded.get(loaded.blob) is not loaded:
            return
        del self.loaded[loaded.blob]
        if not loaded.dead:
            self.turns.append(Turn(time.monotonic(), "unloaded", loaded.name, loaded.context))
        if not loaded.expelled:
            self.counts.add("expirations", loaded.name)
        if loaded.timer is not None:
            loaded.timer.cancel()
        if loaded.child is not None:
            loaded.child.end()
        loaded.engine.fail_all(Problem(499, "cancelled", "the model was unloaded"))  # of clients that have gone
        loaded.engine.stop()
        self._room_at = self._stall()
        self._unloaded.set()

    def _stall(self, at_most_s: float = FOR_EVER_S) -> float:
        seconds = min(self.options.ps_stall_s / self.options.speed, at_most_s)
        self._stalls_until = max(self._stalls_until, self._loop.time() + seconds)
        return self._stalls_until


async def _sleep_unless(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
