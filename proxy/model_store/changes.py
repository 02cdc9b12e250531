"""All changes of models that this process makes: on which model stores, who listens, when they are done. Owns the
fan-out and its one result; how one model store is changed is `single`'s.

A second pull of the same model joins the first and hears what it hears. A change whose last listener left ends, as in
an Ollama: what was pulled so far stays there, and the same pull goes on from it.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from proxy.dialects import ClientError
from proxy.model_store.grouping import ModelStore, doubt, doubtful
from proxy.model_store.listening import Listener
from proxy.model_store.models import Models
from proxy.model_store.progress import WAITING, Progress, Told, error, status
from proxy.model_store.single import Outcome, Singles
from proxy.model_store.wishes import ONCE, STREAMS, WHERE_IT_IS, Change, Wish
from proxy.tasks import Tasks
from scheduler.names import canonical, short

log = structlog.get_logger("slotgate.model-store")

SPOILED = ("digest mismatch", "no such file or directory", "-partial")
"""What an Ollama says whose files another one wrote to, or took away, at the same time (server/download.go, 0.33)."""
STOPPING = "slotgate is stopping; the same again goes on where this was"


class Running:
    """One change that is being made."""

    def __init__(self, wish: Wish, stores: Sequence[ModelStore]) -> None:
        self.wish = wish
        self.stores = tuple(stores)
        self.progress = Progress([store.id for store in stores])
        self.listeners: set[Listener] = set()
        self.task: asyncio.Task[None] | None = None
        self.is_ending = False
        """Everybody left: who comes now begins anew."""
        self._details: dict[str, bytes] = {}

    def tell(self, store: ModelStore, lines: list[Told], raw: bytes) -> None:
        """Lines for all, and what one model store itself said for those who want to know that."""
        detail = Listener.detail(store, raw)
        if detail is not None:
            self._details[detail[0]] = detail[1]
        for listener in self.listeners:
            if not listener.detailed:
                listener.hear(lines)
            elif detail is not None:
                listener.hear([detail])

    def join(self, *, detailed: bool) -> Listener:
        """Hear of it from now on, and what was said last."""
        listener = Listener(self.wish, detailed=detailed)
        latest = self._details if detailed else self.progress.latest
        listener.hear(list(latest.items()))
        self.listeners.add(listener)
        return listener

    def end(self, outcome: Outcome) -> None:
        """Tell everybody how it ended."""
        for listener in self.listeners:
            listener.end(outcome)


class Changes:
    """The changes of this process."""

    def __init__(self, models: Models, singles: Singles, is_pinned: Callable[[str], bool]) -> None:
        """`is_pinned`: whether a model, by its canonical name, must stay loaded."""
        self._models = models
        self._singles = singles
        self._is_pinned = is_pinned
        self._running: list[Running] = []
        self._tasks = Tasks()
        self._closed = False

    @property
    def running(self) -> int:
        """How many there are."""
        return len(self._running)

    def begin(self, wish: Wish, *, detailed: bool = False, patience_s: float | None = None) -> Listener:
        """Begin a change, or join one that is the same. `leave` must follow, whatever happens.

        Args:
            wish: checked.
            detailed: hear each model store by itself.
            patience_s: the longest wait for other changes; None: any.

        Raises:
            ClientError: it cannot be done at all.
        """
        if self._closed:
            raise ClientError(503, STOPPING)
        if wish.is_joinable:
            for running in self._running:
                if running.wish.key == wish.key and running.wish.is_joinable and not running.is_ending:
                    return running.join(detailed=detailed)
        if wish.change is Change.DELETE and self._is_pinned(canonical(wish.model)):
            name = short(wish.model)
            raise ClientError(409, f"model '{name}' is pinned: `slotgate unpin {name}` first, then delete it")
        running = Running(wish, self._stores_for(wish))
        self._running.append(running)
        listener = running.join(detailed=detailed)
        running.task = self._tasks.start(self._run(running, patience_s), f"{wish.change} {wish.model}")
        # Not only at its own end: one that is cancelled before its first step comes to none.
        running.task.add_done_callback(lambda _done: self._over(running))
        return listener

    def leave(self, listener: Listener) -> None:
        """Hear no more. The last one who leaves ends a change that tells its progress."""
        for running in self._running:
            running.listeners.discard(listener)
            if running.listeners or running.is_ending or running.task is None:
                continue
            if running.wish.change in STREAMS:
                log.info("everybody left: change ended", change=running.wish.change, model=running.wish.model)
                running.is_ending = True
                running.task.cancel()

    async def close(self) -> None:
        """End all, and tell who waits."""
        self._closed = True
        for running in list(self._running):
            running.end(Outcome(503, STOPPING))
        await self._tasks.close()

    def _stores_for(self, wish: Wish) -> Sequence[ModelStore]:
        stores = self._models.stores()
        if wish.change not in ONCE:
            return stores
        having = [store for store in stores if self._models.digests(store, wish.model)]
        digests = {digest for store in having for digest in self._models.digests(store, wish.model)}
        if len(digests) > 1:
            name = short(wish.model)
            raise ClientError(
                409, f"model '{name}' is not the same on all backends: pull or create it anew, then {wish.change} it"
            )
        usable = [store for store in having if self._models.usable(store)]
        return [*usable, *having, *stores][:1]

    async def _run(self, running: Running, patience_s: float | None) -> None:
        wish = running.wish
        log.info("change of models begins", change=wish.change, model=wish.model, stores=len(running.stores))
        try:
            outcomes = await asyncio.gather(*(self._at(running, store, patience_s) for store in running.stores))
            outcome = combined(wish, running.stores, outcomes)
            if any(each.ok for each in outcomes):
                done = [store for store, each in zip(running.stores, outcomes, strict=True) if each.ok]
                await self._models.changed(wish, done)
            outcome = advised(wish, running.stores, outcomes, outcome)
            say = log.info if outcome.ok else log.warning
            say("change of models ended", change=wish.change, model=wish.model, error=outcome.error or None)
            running.end(outcome)
        except Exception:
            running.end(Outcome(500, "slotgate failed inside; its log says how"))
            raise
        finally:
            self._over(running)

    def _over(self, running: Running) -> None:
        if running in self._running:
            self._running.remove(running)
        running.end(Outcome(503, STOPPING))  # unless it was told already

    async def _at(self, running: Running, store: ModelStore, patience_s: float | None) -> Outcome:
        progress = running.progress

        def hear(raw: bytes) -> None:
            running.tell(store, progress.feed(store.id, raw), raw)

        def waits() -> None:
            running.tell(store, progress.waiting(store.id), status(WAITING))

        outcome = await self._singles.run(store, running.wish, hear, waits, patience_s)
        end = b'{"status":"success"}' if outcome.ok else error(outcome.error)
        running.tell(store, progress.ended(store.id), end)
        return outcome


def combined(wish: Wish, stores: Sequence[ModelStore], outcomes: Sequence[Outcome]) -> Outcome:
    """One result of several: good if all are; else the first error, which names its backend unless all say the same."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if wish.change in WHERE_IT_IS and len(failed) < len(outcomes):
        failed = [outcome for outcome in failed if outcome.status != 404]  # nothing to do there
    if not failed:
        return Outcome(backend=outcomes[0].backend)
    first = failed[0]
    if len(stores) == 1 or (len(failed) == len(outcomes) and len({each.error for each in failed}) == 1):
        return first
    done = len(outcomes) - len(failed)
    rest = f" (done on {done} of {len(outcomes)} model stores)" if done else ""
    return Outcome(first.status, f"{first.backend or stores[0].shown}: {first.error}{rest}", first.backend)


def advised(wish: Wish, stores: Sequence[ModelStore], outcomes: Sequence[Outcome], outcome: Outcome) -> Outcome:
    """An error with what may lie behind it: Ollamas that share a directory unknown to us spoil each other's files."""
    shared = doubtful(stores)
    is_spoiled = any(sign in each.error for each in outcomes for sign in SPOILED)
    if outcome.ok or not is_spoiled or not shared or wish.change not in {Change.PULL, Change.CREATE}:
        return outcome
    return Outcome(outcome.status, f"{outcome.error}; {doubt(shared)}", outcome.backend)
