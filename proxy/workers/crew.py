"""All workers of one box: started, started again when they die, replaced one after the other without losing a request.

The main process keeps every listening socket open for as long as it runs. So connections that a worker has not accepted
wait in the kernel for whoever comes next: its replacement, which inherits the same socket, or in the meantime another
worker, which is told to accept from the dead one's socket beside its own. Owns no request and no backend.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from proxy.config import Config, Paths
from proxy.tasks import Tasks
from proxy.workers.orders import Accept, Orders, Reload, Retire
from proxy.workers.worker import Worker, WorkerError

log = structlog.get_logger("slotgate.workers")

START_TIMEOUT_S = 60.0
"""A worker that does not accept connections by then is given up."""
AGAIN_FIRST_S = 0.1
AGAIN_MAX_S = 10.0
"""Wait before a worker that died is started again: doubles from the first to the longest."""
STEADY_S = 30.0
"""After this long without an end the wait starts from the first again."""
END_GRACE_S = 5.0
"""On stop, what a worker gets beyond its time to drain before it is killed."""


class Place:
    """What one worker after another has: a number, and sockets to accept from."""

    def __init__(self, number: int, group: int) -> None:
        self.number = number
        self.group = group
        self.worker: Worker | None = None
        """The one that accepts connections."""
        self.starting: Worker | None = None
        """One that shall become it."""
        self.accepts: list[int] = []
        """Groups of other places that it accepts from."""
        self.restarts = 0
        """Times that one died and was started again."""
        self.busy = asyncio.Lock()
        """Held while one is started here."""


class Crew:
    """The workers."""

    def __init__(
        self, config: Config, paths: Paths, groups: Sequence[Sequence[socket.socket]], usable: Callable[[], list[str]]
    ) -> None:
        """Nothing is started yet.

        Args:
            config: for the workers, with the store's address.
            paths: of the proxy.
            groups: listening sockets, see `listener.open_groups`.
            usable: names of the backends that can take requests now.
        """
        self.places = [Place(number, (number - 1) % len(groups)) for number in range(1, config.workers + 1)]
        self.retired: list[Worker] = []
        """Those that finish what they have."""
        self.replaced = 0
        """Places whose worker was replaced by the rolling restart that runs, or ran last."""
        self.problem = ""
        """Why that ended early."""
        self._config = config
        self._paths = paths
        self._groups = groups
        self._usable = usable
        self._keepers: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None
        self._stopping = False
        self._tasks = Tasks()

    @property
    def workers(self) -> list[Worker]:
        """All processes, also those that are being started, or finish what they have."""
        found = [each for place in self.places for each in (place.worker, place.starting) if each is not None]
        return [each for each in found + self.retired if not each.ended.done()]

    @property
    def rolling(self) -> bool:
        """A rolling restart is being done."""
        return self._rolling is not None and not self._rolling.done()

    async def start(self) -> None:
        """Start all workers; returns when each accepts connections.

        Raises:
            WorkerError: one does not come up.
        """
        async with contextlib.AsyncExitStack() as stack:
            starts = [self._tasks.start(self._first(place), f"worker {place.number}") for place in self.places]
            stack.callback(lambda: [start.cancel() for start in starts])
            for problem in await asyncio.gather(*starts):
                if problem is not None:
                    raise WorkerError(problem)
        self._keepers = [self._tasks.start(self._keep(place), f"worker {place.number}") for place in self.places]

    def reconfigure(self, changes: Mapping[str, object]) -> None:
        """Take over other values of some options: workers that run do what they can, later ones know nothing else."""
        self._config = self._config.model_copy(update=dict(changes))
        for worker in self.workers:
            worker.tell(Reload(_given(self._config)))

    def restart(self) -> bool:
        """Replace one worker after the other; False: that is being done already, or the proxy stops."""
        if self.rolling or self._stopping:
            return False
        self._rolling = self._tasks.start(self._roll(), "rolling restart of workers")
        return True

    async def drain(self, stop_now: asyncio.Event) -> None:
        """Let all workers drain and end; when `stop_now` is set, cut what they have."""
        self._stopping = True
        for task in [*self._keepers, *([self._rolling] if self._rolling is not None else [])]:
            task.cancel()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        second = self._tasks.start(self._hasten(stop_now), "second signal")
        if waiting := [worker.ended for worker in self.workers]:
            await asyncio.wait(waiting, timeout=self._config.limits.drain_s + END_GRACE_S)
        second.cancel()

    async def close(self) -> None:
        """End what is left, at once."""
        self._stopping = True
        await self._tasks.close()
        for worker in [*self.workers]:
            await worker.close()

    async def _hasten(self, stop_now: asyncio.Event) -> None:
        await stop_now.wait()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    async def _first(self, place: Place) -> str | None:
        try:
            await self._launch(place)
        except WorkerError as error:
            return str(error)
        return None

    async def _launch(self, place: Place) -> None:
        """Start a worker and put it in its place once it accepts connections.

        Raises:
            WorkerError: it does not come up; the one that was there is still in its place.
        """
        worker = place.starting = Worker(place.number, self._admin_socket(place))
        try:
            descriptors = [each for group in self._descriptors() for each in group]
            await worker.start(lambda path: self._orders(place, path), descriptors)
            log.info("worker starts", worker=place.number, pid=worker.pid)
            done, _ = await asyncio.wait(
                (worker.ready, worker.ended), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if worker.ended in done:
                raise WorkerError(
                    f"worker {place.number} ended with {_status(worker.ended.result())} before it accepted "
                    "connections; its lines of the log say why"
                )
            if not done:
                raise WorkerError(
                    f"worker {place.number} (pid {worker.pid}) accepts no connections after {START_TIMEOUT_S:g} s; "
                    "its lines of the log say what it waits for"
                )
        except BaseException:
            place.starting = None
            await worker.close()
            raise
        place.starting, place.worker = None, worker
        place.accepts = []
        log.info("worker serves", worker=place.number, pid=worker.pid, warm=worker.warm)
        self._share_out()

    async def _keep(self, place: Place) -> None:
        """Start a worker again whenever the one in this place dies, or drains although nobody here told it to."""
        wait_s = AGAIN_FIRST_S
        while True:
            worker = place.worker
            if worker is not None:
                await asyncio.wait((worker.ended, worker.leaving), return_when=asyncio.FIRST_COMPLETED)
            async with place.busy:
                if place.worker is not worker:
                    continue  # replaced in the meantime
                if worker is not None and time.monotonic() - worker.started_s > STEADY_S:
                    wait_s = AGAIN_FIRST_S
                if worker is not None:
                    await self._vacate(place, worker, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_MAX_S)
                place.restarts += 1
                try:
                    await self._launch(place)
                except WorkerError as error:
                    log.error("worker does not start", worker=place.number, error=str(error), again_in_s=wait_s)

    async def _vacate(self, place: Place, worker: Worker, wait_s: float) -> None:
        place.worker = None
        told = {"worker": place.number, "pid": worker.pid, "again_in_s": wait_s}
        if worker.ended.done():
            log.error("worker ended by itself", status=_status(worker.ended.result()), **told)
            await worker.close()
        else:
            log.warning("worker was told to end, not by slotgate", **told)
            self._see_off_later(worker)
        self._share_out()

    async def _roll(self) -> None:
        """Replace one worker after the other; what the old ones have, they finish."""
        self.replaced, self.problem = 0, ""
        log.info("rolling restart of workers begins", workers=len(self.places))
        for place in self.places:
            async with place.busy:
                old = place.worker
                try:
                    await self._launch(place)
                except WorkerError as error:
                    self.problem = str(error)
                    log.error("rolling restart of workers given up", error=self.problem, replaced=self.replaced)
                    return
                if old is not None:
                    self._retire(old)
            self.replaced += 1
        log.info("rolling restart of workers is done", still_finishing=len(self.retired))

    def _retire(self, old: Worker) -> None:
        old.tell(Retire(self._config.limits.retire_s))
        log.info("worker retires", worker=old.number, pid=old.pid, requests=old.alive.requests)
        self._see_off_later(old)

    def _see_off_later(self, old: Worker) -> None:
        old.retiring = True
        self.retired.append(old)
        self._tasks.start(self._see_off(old), f"retired worker {old.number}")

    async def _see_off(self, old: Worker) -> None:
        limits = self._config.limits
        await asyncio.wait([old.ended], timeout=limits.retire_s + limits.drain_s + END_GRACE_S)
        await old.close()
        self.retired.remove(old)
        log.info("retired worker ended", worker=old.number, pid=old.pid, status=_status(old.ended.result()))

    def _share_out(self) -> None:
        """Have the sockets of places without a worker accepted from by the next place that has one."""
        if len(self._groups) == 1:
            return  # all accept from the same
        wanted: dict[int, list[int]] = {place.number: [] for place in self.places}
        for index, place in enumerate(self.places):
            if place.worker is not None and place.worker.is_ready:
                continue
            for other in self.places[index + 1 :] + self.places[:index]:
                if other.worker is not None and other.worker.is_ready:
                    wanted[other.number].append(place.group)
                    break
        for place in self.places:
            if place.worker is not None and place.accepts != wanted[place.number]:
                place.accepts = wanted[place.number]
                place.worker.tell(Accept(place.accepts))

    def _descriptors(self) -> list[list[int]]:
        return [[each.fileno() for each in group] for group in self._groups]

    def _admin_socket(self, place: Place) -> Callable[[int], Path]:
        # With the pid, since a worker and its replacement run side by side.
        return lambda pid: self._paths.state_dir / f"worker-{place.number}.{pid}.sock"

    def _orders(self, place: Place, admin_socket: Path) -> Orders:
        return Orders(
            number=place.number,
            config=_given(self._config),
            state_dir=str(self._paths.state_dir),
            admin_socket=str(admin_socket),
            sockets=self._descriptors(),
            group=place.group,
            ready=self._usable(),
        )


def _given(config: Config) -> dict[str, Any]:
    """The options that were given, secrets too; the others have their defaults in a worker as well."""
    given: dict[str, Any] = msgspec.to_builtins(config.model_dump(exclude_unset=True), enc_hook=_plain)
    return given


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
