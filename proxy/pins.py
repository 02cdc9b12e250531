"""Which models stay loaded: pins of the configuration, and those set while it runs, which the whole fleet shares.

The list lies in the store, with backends by the store's names, and survives restarts there. Another proxy's change is
heard at once; the list is read now and then besides, so that what was missed, and backends that came to be known
meanwhile, count too. Decides nothing: the scheduler is told.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec
import structlog

from proxy.store.trouble import StoreDown
from proxy.tasks import Tasks
from scheduler import events
from scheduler.domain import Backend, BackendView, Health
from scheduler.events import Pin
from scheduler.names import short
from scheduler.planning import serves_pin
from scheduler.residencies import coming
from scheduler.runner import Runner

log = structlog.get_logger("slotgate.pins")

READ_EVERY_S = 5.0
"""News are nearly always faster; this bounds how long a missed one matters."""
TRIES = 8
"""So often a change is made again because another proxy was faster."""


class PinnedModel(msgspec.Struct, frozen=True):
    """One entry of the list in the store."""

    model: str
    backend: str = ""
    """The store's name; empty: on one backend at least, whichever."""
    runner: Runner = Runner()


class PinList(Protocol):
    """Where the fleet keeps the list; see `store.documents`."""

    async def read(self) -> tuple[int, bytes] | None:
        """Version and content. Raises StoreDown."""
        ...

    async def replace(self, content: bytes, expected_version: int | None) -> int | None:
        """Replace the one of that version; None: somebody was faster. Raises StoreDown."""
        ...

    async def touch(self) -> None:
        """Have it live its whole time again. Raises StoreDown."""
        ...


class Names(Protocol):
    """Both names of every backend."""

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend of ours."""
        ...

    def local_id(self, store_id: str) -> str | None:
        """Our name of a backend; None: it is not known here."""
        ...


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[PinnedModel, ...]).decode


class Pins:
    """The pins that hold at one proxy."""

    def __init__(self, kept: PinList, names: Names, feed: Callable[[events.Event], None]) -> None:
        """Nothing is read yet.

        Args:
            kept: the fleet's list.
            names: of backends.
            feed: told when other pins are in force.
        """
        self.on_set: Callable[[int], None] = lambda _version: None
        """Called with the version of a list that was put into the store, to tell the other proxies."""
        self._kept = kept
        self._names = names
        self._feed = feed
        self._configured: tuple[Pin, ...] = ()
        self._listed: tuple[PinnedModel, ...] = ()
        self._version: int | None = None
        self._in_force: tuple[Pin, ...] = ()
        self._tasks = Tasks()

    @property
    def all(self) -> tuple[Pin, ...]:
        """Those in force, with backends as they are named here."""
        return self._in_force

    def configure(self, models: Mapping[str, Runner]) -> None:
        """Take over those of the configuration: canonical names, each with what the model is loaded with."""
        self._configured = tuple(Pin(model, "", runner) for model, runner in sorted(models.items()))
        self._tell()

    def is_configured(self, model: str) -> bool:
        """Whether the configuration pins it, so that it cannot be unpinned here."""
        return any(pin.model == model for pin in self._configured)

    def cure(self, model: str) -> str:
        """What ends the pins of a model (canonical name), for people: `unpin` cannot undo the configuration."""
        by_file = f'taking pin = true out of residency.models."{short(model)}"'
        by_command = f"`slotgate unpin {short(model)}` on the box"
        is_listed = any(each.model == model for each in self._listed)
        if not self.is_configured(model):
            return by_command
        return f"{by_command} and {by_file}" if is_listed else by_file

    def is_pinned(self, model: str) -> bool:
        """Whether a model (canonical name) shall stay loaded somewhere."""
        return any(pin.model == model for pin in self._in_force)

    def keeps(self, model: str, backend: Backend, runner: Runner | None) -> bool:
        """Whether a model that is loaded at a backend with these options is there for a pin; None: the engine's own."""
        view = BackendView(backend, Health.READY)
        return serves_pin(view, coming(model, runner or Runner(), backend), self._in_force)

    async def start(self) -> None:
        """Read the list, and go on reading it now and then."""
        await self.agree()
        self._tasks.start(self._keep_reading(), "list of pins")

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()

    def heard(self) -> None:
        """Another proxy set the list: read it, soon."""
        self._tasks.start(self.agree(), "list of pins")

    async def agree(self) -> None:
        """Read the list. Without the store it stays as it was last seen."""
        try:
            await self._read()
        except StoreDown:
            return
        self._tell()

    async def pin(self, model: str, backend_id: str, runner: Runner) -> None:
        """Keep a model loaded.

        Args:
            model: its canonical name.
            backend_id: where; empty: on one backend at least, whichever.
            runner: what it is loaded with.

        Raises:
            StoreDown: the list cannot be changed now.
        """
        added = PinnedModel(model, self._names.store_id(backend_id) if backend_id else "", runner)
        await self._change(lambda listed: [*(each for each in listed if not _same_place(each, added)), added])

    async def unpin(self, model: str, backend_id: str = "") -> list[str]:
        """Keep a model loaded no more: at one backend, or (empty) anywhere.

        Returns:
            Where it was pinned, by our names; an empty one: on whichever backend.

        Raises:
            StoreDown: the list cannot be changed now.
        """
        place = self._names.store_id(backend_id) if backend_id else ""
        removed: list[PinnedModel] = []

        def without(listed: Iterable[PinnedModel]) -> list[PinnedModel]:
            listed = list(listed)
            removed[:] = [each for each in listed if each.model == model and (not place or each.backend == place)]
            return [each for each in listed if each not in removed]

        await self._change(without)
        return [self._names.local_id(each.backend) or each.backend if each.backend else "" for each in removed]

    async def _change(self, change: Callable[[Iterable[PinnedModel]], list[PinnedModel]]) -> None:
        for _ in range(TRIES):
            if not await self._read():
                raise StoreDown("the list of pins was written by another version of slotgate; run the same everywhere")
            wanted = tuple(change(self._listed))
            if wanted == self._listed:
                return
            version = await self._kept.replace(_encode(wanted), self._version)
            if version is not None:
                self._listed, self._version = wanted, version
                self.on_set(version)
                self._tell()
                return
        raise StoreDown("other proxies change the list all the time")

    async def _read(self) -> bool:
        """Returns whether the list was understood; else it stays as it was last seen."""
        found = await self._kept.read()
        if found is None:
            self._listed, self._version = (), None
            return True
        version, content = found
        before, self._version = self._version, version
        try:
            self._listed = _decode(content)
        except msgspec.MsgspecError as error:
            if version != before:
                log.error("list of pins not understood", error=str(error), fix="run the same version of slotgate")
            return False
        return True

    def _tell(self) -> None:
        """Tell the scheduler, if something changed. Pins to backends that are not known here wait until they are."""
        pins = list(self._configured)
        for each in self._listed:
            backend_id = self._names.local_id(each.backend) if each.backend else ""
            if backend_id is not None:
                pins = [pin for pin in pins if (pin.model, pin.backend_id) != (each.model, backend_id)]
                pins.append(Pin(each.model, backend_id, each.runner))
        in_force = tuple(sorted(pins, key=lambda pin: (pin.model, pin.backend_id)))
        if in_force != self._in_force:
            self._in_force = in_force
            self._feed(events.PinsChanged(in_force))

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            await self.agree()
            try:
                await self._kept.touch()
            except StoreDown:
                continue


def _same_place(one: PinnedModel, other: PinnedModel) -> bool:
    return (one.model, one.backend) == (other.model, other.backend)
