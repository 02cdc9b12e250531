"""The proxies that tell each other their news directly while the store is away, and whether those are all there are.

Theory of operation. Each proxy listens on a socket of its own and keeps a line to every other proxy of its box: it
tells on the line that it dialled and hears on the one that the other dialled. On each line it says whether it is
without the store (`StoreState`), first of all and with every change.

Two proxies are *joined* while both lines between them are up and both say that they are without the store. When that
begins, each tells the other its standing, then all its news in order; so whatever was missed before does not matter.
What is heard counts only while the hearer and, by its last word, the teller are both without the store: the news of
one that has the store are in the log, and those of one that lost it alone are for nobody.

    store there --set_away(True)--> gathering --all joined--> whole --one not joined--> parted
         ^                              `--KEEP_S over--> parted --all joined--> whole |
         `------------------- set_away(False), from any of them ----------------------'

    gathering  The others lost the store at the same moment, most likely, or are about to notice. What is known of them
               stays; claims that name a slot wait for it to be over.
    whole      Every proxy that anybody joined knows of is joined, or is gone: it was connected once and nobody listens
               at its socket any more, so its process ended and with it its requests. Only now are slots named: nobody
               runs anything that we do not hear of.
    parted     Somebody may run what we do not hear of: a proxy of another box or version, one that is stopped, one
               that has the store. Slots are not named. What is known of those that are joined stays, the rest is
               dropped. A line that broke is dialled again; joined again, its standing comes first.

A proxy that loses the store alone (a partition) is parted: the others say that they have it. It knows of proxies that
the others know, since these say whom they know: one that joined the fleet a moment before the store went cannot be
overlooked by some.

Seats are not decided here: each proxy keeps to its share (`store.holdings`), that of one that is gone included, so it
does not matter that proxies part or join at different moments. Two that name the same slot within the millisecond that
news take let one request wait for the other at the engine, which the next look at it shows.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from proxy.direct.frames import (
    FORMAT,
    Answered,
    Asked,
    Frame,
    FrameError,
    Greeting,
    StoreState,
    Told,
    Welcome,
    encoded,
    read_frame,
)
from proxy.direct.line import GREET_S, Line
from proxy.tasks import Tasks

log = structlog.get_logger("slotgate.direct")

KEEP_S = 0.5
"""How long what is known of a connected proxy stays although it is not joined: it notices most likely that the store
is away within one call timeout, or hears it from us and looks."""


class Hearer(Protocol):
    """Who has the news."""

    def standing(self) -> bytes:
        """All that we have, for one that is joined from now on."""
        ...

    def hear(self, owner: str, payload: bytes) -> bool:
        """News of another proxy. False: not understood."""
        ...

    def circle_changed(self) -> None:
        """`kept`, `whole` or `forming` is another than before."""
        ...

    def store_doubted(self, *, away: bool) -> None:
        """Another proxy says that the store is away, or there again, which is not so here."""
        ...


class _Other:
    """One other proxy. Owns both lines."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.dialling: asyncio.Task[None] | None = None
        self.heard_on: asyncio.StreamWriter | None = None
        """The connection that it dialled."""
        self.away = False
        self.knows: tuple[str, ...] = ()
        self.joined = False
        self.is_strange = False
        """What it tells is not understood."""

    @property
    def connected(self) -> bool:
        """Both lines are up."""
        return self.line is not None and self.line.connected and self.heard_on is not None and not self.is_strange

    @property
    def is_gone(self) -> bool:
        """Its process has ended."""
        return self.line is not None and self.line.is_gone and self.heard_on is None


class Circle:
    """One proxy's lines to the others of its box."""

    def __init__(self, fleet: str, owner: str) -> None:
        """Nothing is open yet; `hearer` must be set before `start`."""
        self.hearer: Hearer
        self.whole = False
        """The store is away, and all that others run is heard directly."""
        self.kept: frozenset[str] = frozenset()
        """While the store is away: proxies of which what is known holds."""
        self.path: str | None = None
        """Where others reach us; None: nowhere."""
        self._fleet = fleet
        self._owner = owner
        self._away = False
        self._keep_until_s = float("-inf")
        self._keep_timer: asyncio.TimerHandle | None = None
        self._present: frozenset[str] = frozenset()
        self._others: dict[str, _Other] = {}
        self._said: bool | None = None
        """Whether it is whole, as the log has it."""
        self._looking = self._look_again = False
        self._gathered = asyncio.Event()
        self._gathered.set()
        self._asked: dict[int, tuple[set[str], asyncio.Future[None]]] = {}
        self._questions = 0
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()
        self._closed = False

    async def start(self, listening: socket.socket, path: Path) -> None:
        """Let others dial us."""
        self._server = await asyncio.start_unix_server(self._dialled, sock=listening)
        self.path = str(path)

    async def close(self) -> None:
        """Hang up and remove the socket."""
        self._closed = True
        if self._keep_timer is not None:
            self._keep_timer.cancel()
        self._gathered.set()
        if self._server is not None:
            self._server.close()
        self._remove_socket()
        for other in self._others.values():
            other.joined = False
        await self._tasks.close()

    def _remove_socket(self) -> None:
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

    # What is known from elsewhere

    def know(self, owners: Iterable[str]) -> None:
        """All proxies of the fleet, as the store told last; ourselves included. Lines to others are hung up."""
        self._present = frozenset(owners)
        if self._away:
            self._look()
            return
        for owner in [owner for owner in self._others if owner not in self._present]:
            other = self._others[owner]
            if other.heard_on is None:
                self._hang_up(other)
                del self._others[owner]

    def reach(self, owner: str, path: str) -> None:
        """Another proxy of this box listens there."""
        other = self._others.setdefault(owner, _Other())
        if self._closed or owner == self._owner or (other.line is not None and other.line.path == path):
            return
        self._hang_up(other)
        line = other.line = Line(
            path, fleet=self._fleet, owner=self._owner, other=owner, on_change=lambda: self._line_changed(other)
        )
        other.dialling = self._tasks.start(line.keep(), "line to another proxy")

    def set_away(self, away: bool) -> None:
        """The store is away, or there again."""
        if away is self._away:
            return
        self._away = away
        if self._keep_timer is not None:
            self._keep_timer.cancel()
        if away:
            self._keep_until()
        for other in self._others.values():
            self._tell_state(other)
        self._look()

    @property
    def forming(self) -> bool:
        """It will be known in a moment whether it is whole: `gathering`."""
        return not self._gathered.is_set()

    # What is told

    def tell(self, payload: bytes) -> None:
        """Tell news to all that are joined; the store is away."""
        lines = [other.line for other in self._others.values() if other.joined and other.line is not None]
        if not lines or not payload:
            return
        try:
            data = encoded(Told(payload))
        except FrameError as error:
            log.error("news too long to be told directly", error=str(error))
            return
        for line in lines:
            line.send(data)

    async def formed(self, until_s: float) -> None:
        """Return when it is known whether the circle is whole, at the latest at a time of the event loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._gathered.wait()

    async def caught_up(self, timeout_s: float) -> None:
        """Return when all that the joined ones told before now was heard; at the latest after a time."""
        asked = {owner for owner, other in self._others.items() if other.joined}
        if not asked:
            return
        self._questions += 1
        number = self._questions
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked, answered
        for owner in list(asked):
            if (line := self._others[owner].line) is not None:
                line.tell(Asked(number))
        try:
            async with asyncio.timeout(timeout_s):
                await answered
        except TimeoutError:
            log.debug("other proxies are late", proxies=sorted(asked))
        finally:
            del self._asked[number]

    # What is heard

    def _dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
        else:
            self._tasks.start(self._hear(reader, writer), "line of another proxy")

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        owner, other = "", None
        try:
            async with asyncio.timeout(GREET_S):
                greeting = await read_frame(reader)
            if not isinstance(greeting, Greeting) or not self._is_welcome(greeting):
                return
            owner = greeting.owner
            other = self._others.setdefault(owner, _Other())
            if other.heard_on is not None:
                other.heard_on.transport.abort()
            other.heard_on, other.away, other.knows, other.is_strange = writer, False, (), False
            writer.write(encoded(Welcome(self._owner)))
            if other.line is not None:
                other.line.hurry()
            while other.heard_on is writer:
                self._take(owner, other, await read_frame(reader))
        except FrameError as error:
            log.warning("a line of another proxy is not understood", proxy=owner, error=str(error))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            if other is not None and other.heard_on is writer:
                other.heard_on, other.away = None, False
                if not self._closed:
                    if other.line is not None:
                        other.line.hurry()
                    self._look()

    def _is_welcome(self, greeting: Greeting) -> bool:
        if (greeting.format, greeting.fleet, greeting.wanted) == (FORMAT, self._fleet, self._owner):
            return True
        log.info("a line was refused", proxy=greeting.owner, fleet=greeting.fleet, wanted=greeting.wanted)
        return False

    def _take(self, owner: str, other: _Other, frame: Frame) -> None:
        match frame:
            case StoreState():
                other.away, other.knows = frame.away, frame.knows
                if self._away and not frame.away:
                    self._keep_until()
                self._look()
                if frame.away is not self._away:
                    self.hearer.store_doubted(away=frame.away)
            case Told() if self._away and other.away and not other.is_strange:
                if not self.hearer.hear(owner, frame.payload):
                    other.is_strange = True
                    self._look()
            case Asked() if other.line is not None:
                other.line.tell(Answered(frame.number))
            case Answered() if frame.number in self._asked:
                self._answered(frame.number, owner)

    def _answered(self, number: int, owner: str) -> None:
        asked, answered = self._asked[number]
        asked.discard(owner)
        if not asked and not answered.done():
            answered.set_result(None)

    # What follows from all that

    def _line_changed(self, other: _Other) -> None:
        self._tell_state(other)
        if not self._closed:
            self._look()

    def _tell_state(self, other: _Other) -> None:
        if other.line is not None:
            other.line.tell(StoreState(self._away, tuple(sorted(self._present))))

    def _keep_until(self) -> None:
        """Those that are connected most likely follow."""
        loop = asyncio.get_running_loop()
        if self._keep_timer is not None:
            self._keep_timer.cancel()
        self._keep_until_s = loop.time() + KEEP_S
        self._keep_timer = loop.call_later(KEEP_S + 0.001, self._look)

    def _look(self) -> None:
        """Find out who is joined, and what that means. What that changes in turn is looked at afterwards."""
        self._look_again = True
        if self._looking:
            return
        self._looking = True
        try:
            while self._look_again:
                self._look_again = False
                self._look_once()
        finally:
            self._looking = False

    def _look_once(self) -> None:
        for owner, other in self._others.items():
            joined = self._away and other.connected and other.away
            if joined is other.joined:
                continue
            other.joined = joined
            if joined and other.line is not None:
                other.line.tell(Told(self.hearer.standing()))
            elif not joined:
                for number in list(self._asked):
                    self._answered(number, owner)
        keeps = self._away and asyncio.get_running_loop().time() < self._keep_until_s
        kept = frozenset([owner for owner, each in self._others.items() if each.joined or (keeps and each.connected)])
        missing = [owner for owner in self._everyone() if not self._is_heard(owner)] if self._away else []
        whole = self._away and not missing
        before = self.whole, self.kept, self.forming
        if whole or not keeps or not kept.issuperset(missing):
            self._gathered.set()
        else:
            self._gathered.clear()
        if (whole, kept, self.forming) != before:
            self.whole, self.kept = whole, kept
            self._say(missing)
            self.hearer.circle_changed()

    def _say(self, missing: list[str]) -> None:
        """One line for people, once it is known, and when it changes."""
        if not self._away:
            self._said = None
        elif not self.forming and self.whole is not self._said and self._everyone():
            self._said = self.whole
            text = "all proxies tell each other directly" if self.whole else "not all proxies tell each other directly"
            log.info(text, proxies=len(self.kept), missing=sorted(missing))

    def _everyone(self) -> set[str]:
        """All others that anybody knows of."""
        known = {owner for other in self._others.values() if other.joined for owner in other.knows}
        return (known | self._present) - {self._owner}

    def _is_heard(self, owner: str) -> bool:
        other = self._others.get(owner)
        return other is not None and (other.joined or other.is_gone)

    def _hang_up(self, other: _Other) -> None:
        line, dialling = other.line, other.dialling
        other.line = other.dialling = None
        if line is not None and dialling is not None:
            dialling.cancel()
