"""A line with a real socket at its other end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from proxy.direct import line as module
from proxy.direct.frames import FORMAT, Frame, FrameError, Greeting, Told, Welcome, encoded, read_frame
from proxy.direct.line import Line
from proxy.tasks import Tasks
from tests.wait import until


class Far:
    """The other end: welcomes whom it should, and keeps what it reads."""

    def __init__(self, path: Path, welcome: Frame | None) -> None:
        self.path, self.welcome = path, welcome
        self.reads = True
        self.frames: list[Frame] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self, *, remove: bool = True) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        if remove:
            self.path.unlink(missing_ok=True)

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            self.frames.append(await read_frame(reader))
            if self.welcome is not None:
                writer.write(encoded(self.welcome))
            while self.reads:
                self.frames.append(await read_frame(reader))
        except (OSError, asyncio.IncompleteReadError, FrameError):
            writer.transport.abort()


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sg-") as name:
        yield Path(name) / "far.sock"


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks()
    yield made
    await made.close()


def made(path: Path, tasks: Tasks, changes: list[str]) -> Line:
    line = Line(
        str(path),
        fleet="fleet",
        owner="p.a",
        other="p.b",
        on_change=lambda: changes.append("gone" if line.is_gone else "up" if line.connected else "down"),
    )
    tasks.start(line.keep(), "line")
    return line


async def test_it_greets_and_tells_in_order(path: Path, tasks: Tasks) -> None:
    far = Far(path, Welcome("p.b"))
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: line.connected, "it is connected")
    for number in range(3):
        line.tell(Told(b"%d" % number))
    await until(lambda: len(far.frames) == 4, "all is read")
    assert far.frames == [Greeting(FORMAT, "fleet", "p.a", "p.b"), Told(b"0"), Told(b"1"), Told(b"2")]
    assert changes == ["up"]
    await far.stop()


async def test_it_dials_until_somebody_is_there_and_again_when_it_breaks(path: Path, tasks: Tasks) -> None:
    far = Far(path, Welcome("p.b"))
    changes: list[str] = []
    line = made(path, tasks, changes)
    line.tell(Told(b"lost"))
    await far.start()
    line.hurry()
    await until(lambda: line.connected, "it is connected")
    far.cut()
    await until(lambda: changes == ["up", "down", "up"], "it is connected again")
    assert Told(b"lost") not in far.frames
    await far.stop()


@pytest.mark.parametrize("remove", [True, False], ids=["socket-removed", "socket-left"])
async def test_who_was_there_and_listens_no_more_is_gone(path: Path, tasks: Tasks, *, remove: bool) -> None:
    far = Far(path, Welcome("p.b"))
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: line.connected, "it is connected")
    await far.stop(remove=remove)
    await until(lambda: line.is_gone, "it is gone")
    assert changes == ["up", "down", "gone"]


async def test_who_never_was_there_is_not_gone(path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_MAX_S", 0.01)
    dialled: list[str] = []
    real = asyncio.open_unix_connection

    async def counted(path: str) -> object:
        dialled.append(path)
        return await real(path)

    monkeypatch.setattr(asyncio, "open_unix_connection", counted)
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: len(dialled) > 2, "it dialled several times")
    assert (line.is_gone, line.connected, changes) == (False, False, [])


async def test_another_one_at_the_path_is_not_taken_for_it(path: Path, tasks: Tasks) -> None:
    far = Far(path, Welcome("p.c"))
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: len(far.frames) > 1, "it dialled more than once")
    assert (line.connected, changes) == (False, [])
    await far.stop()


async def test_who_answers_nothing_is_not_connected(path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GREET_S", 0.02)
    far = Far(path, None)
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: len(far.writers) > 1, "it gave up and dialled again")
    assert (line.connected, changes) == (False, [])
    await far.stop()


async def test_who_does_not_read_is_cut_off(path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNREAD_MAX_BYTES", 100_000)
    far = Far(path, Welcome("p.b"))
    far.reads = False
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: line.connected, "it is connected")
    for _ in range(200):  # more than the kernel and a buffer of 100 kB take
        line.tell(Told(bytes(20_000)))
    assert changes[:2] == ["up", "down"]
    await far.stop()


async def test_what_is_too_long_cuts_the_line(path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(path, Welcome("p.b"))
    await far.start()
    changes: list[str] = []
    line = made(path, tasks, changes)
    await until(lambda: line.connected, "it is connected")
    monkeypatch.setattr("proxy.direct.frames.FRAME_MAX_BYTES", 10)
    line.tell(Told(bytes(20)))
    assert changes == ["up", "down"]
    await far.stop()
