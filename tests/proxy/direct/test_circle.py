"""Proxies with real sockets: who is joined, when the circle is whole, what is heard of whom."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from proxy.direct import circle as module
from proxy.direct.circle import Circle
from proxy.direct.frames import FORMAT, Frame, Greeting, StoreState, Told, encoded
from proxy.direct.place import listening
from tests.wait import until


class Proxy:
    """A circle and what it heard."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.directory = name, directory
        self.circle = Circle("fleet", name)
        self.circle.hearer = self
        self.heard: list[tuple[str, bytes]] = []
        self.kept: list[frozenset[str]] = []
        self.doubts: list[bool] = []
        self.understands = True

    def standing(self) -> bytes:
        return f"all of {self.name}".encode()

    def hear(self, owner: str, payload: bytes) -> bool:
        self.heard.append((owner, payload))
        return self.understands

    def circle_changed(self) -> None:
        self.kept.append(self.circle.kept)

    def store_doubted(self, *, away: bool) -> None:
        self.doubts.append(away)

    async def start(self) -> None:
        await self.circle.start(*listening(self.directory, self.name))

    @property
    def path(self) -> str:
        assert self.circle.path is not None
        return self.circle.path


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sg-") as name:
        yield Path(name)


@pytest.fixture
async def three(directory: Path) -> AsyncIterator[list[Proxy]]:
    """Three that know each other, with the store."""
    proxies = [Proxy(directory, f"p.{letter}") for letter in "abc"]
    for each in proxies:
        await each.start()
    introduce(proxies)
    await until(lambda: all(lines_up(each) == 2 for each in proxies), "all are connected")
    yield proxies
    for each in proxies:
        await each.circle.close()


def introduce(proxies: list[Proxy]) -> None:
    for each in proxies:
        each.circle.know(other.name for other in proxies)
        for other in proxies:
            each.circle.reach(other.name, other.path)


def lines_up(proxy: Proxy) -> int:
    return sum(other.connected for other in proxy.circle._others.values())


def lose_store(proxies: list[Proxy]) -> None:
    for each in proxies:
        each.circle.set_away(True)


async def whole(proxies: list[Proxy]) -> None:
    await until(lambda: all(each.circle.whole for each in proxies), "the circle is whole")


async def test_with_the_store_nothing_is_told_directly(three: list[Proxy]) -> None:
    three[0].circle.tell(b"news")
    lose_store(three)
    await whole(three)
    assert all(payload != b"news" for each in three for _, payload in each.heard)


async def test_without_the_store_all_hear_a_standing_then_the_news_in_order(three: list[Proxy]) -> None:
    lose_store(three)
    await whole(three)
    for number in range(50):
        three[0].circle.tell(b"%d" % number)
    expected = [b"all of p.a", *(b"%d" % number for number in range(50))]
    for each in three[1:]:
        await until(lambda each=each: len([1 for owner, _ in each.heard if owner == "p.a"]) == 51, "all is heard")  # type: ignore[misc]
        assert [payload for owner, payload in each.heard if owner == "p.a"] == expected
    assert not [owner for owner, _ in three[0].heard if owner == "p.a"], "not by itself"


async def test_those_that_are_connected_are_kept_while_they_may_follow(three: list[Proxy]) -> None:
    one, two, last = three
    one.circle.set_away(True)
    assert (one.circle.whole, one.circle.kept) == (False, frozenset({"p.b", "p.c"}))
    await until(lambda: two.doubts == [True] and last.doubts == [True], "the others are told to look")
    lose_store(three)
    await whole(three)
    assert one.kept[-1] == {"p.b", "p.c"}
    assert frozenset() not in one.kept, "nobody was dropped in between"


async def test_who_loses_the_store_alone_is_not_whole_and_hears_nobody(
    three: list[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_S", 0.05)
    one, two, _ = three
    one.circle.set_away(True)
    await until(lambda: one.circle.kept == frozenset(), "the others are not kept for long")
    one.circle.tell(b"of mine")
    two.circle.tell(b"of the other")
    lose_store([two])
    await until(lambda: one.circle.kept == {"p.b"}, "two of three are joined")
    assert not one.circle.whole, "the third has the store"
    await until(lambda: (two.name, b"all of p.b") in one.heard, "the joined one is heard")
    assert [payload for _, payload in two.heard] == [b"all of p.a"]


async def test_claims_wait_while_it_may_become_whole(three: list[Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_S", 0.1)
    one = three[0]
    now_s = asyncio.get_running_loop().time
    one.circle.set_away(True)
    waits = asyncio.ensure_future(one.circle.formed(now_s() + 30.0))
    await until(lambda: one.circle.kept == frozenset(), "the time to follow is over")
    await waits
    lose_store(three)
    await whole(three)
    await one.circle.formed(now_s() + 30.0)


async def test_back_at_the_store_nobody_is_heard_directly(three: list[Proxy]) -> None:
    one, two, _ = three
    lose_store(three)
    await whole(three)
    one.circle.set_away(False)
    await until(lambda: not two.circle.whole, "the others know that one has the store")
    await until(lambda: False in two.doubts, "they are told to try it")
    two.circle.tell(b"late")
    for each in three:
        each.circle.set_away(False)
    lose_store(three)
    await whole(three)
    assert (two.name, b"late") not in one.heard
    assert [payload for owner, payload in one.heard if owner == two.name] == [b"all of p.b"] * 2, "each time anew"


async def test_one_whose_process_ended_is_gone_and_the_rest_are_whole(three: list[Proxy]) -> None:
    one, two, last = three
    lose_store(three)
    await whole(three)
    await last.circle.close()
    await until(lambda: one.circle.kept == {"p.b"}, "it is dropped")
    await until(lambda: one.circle.whole and two.circle.whole, "nobody else does anything")


async def test_people_are_told_once_of_each_gap_whether_all_tell_each_other(three: list[Proxy]) -> None:
    one = three[0]
    with capture_logs() as lines:
        for _ in range(2):
            lose_store(three)
            await whole(three)
            for each in three:
                each.circle.set_away(False)
        lose_store(three)
        await whole(three)
        one.circle.know([*(each.name for each in three), "far.d"])
    said = [(line["event"], line["missing"]) for line in lines if line["event"].endswith("directly")]
    all_, not_all = "all proxies tell each other directly", "not all proxies tell each other directly"
    assert [each for each in said if each[0] == not_all] == [(not_all, ["far.d"])]
    assert said.count((all_, [])) == 9


async def test_one_that_is_somewhere_else_parts_the_circle(three: list[Proxy]) -> None:
    one, two, _ = three
    two.circle.know(["p.a", "p.b", "p.c", "far.d"])
    lose_store(three)
    await until(lambda: one.circle.kept == {"p.b", "p.c"}, "the three are joined")
    await until(lambda: ("p.b", b"all of p.b") in one.heard, "and heard")
    assert not one.circle.whole, "one of them knows of a fourth"
    assert not two.circle.whole


async def test_a_broken_line_is_dialled_again_and_a_standing_comes_first(three: list[Proxy]) -> None:
    one = three[0]
    lose_store(three)
    await whole(three)
    connection = one.circle._others["p.b"].heard_on
    assert connection is not None
    connection.transport.abort()
    await until(lambda: [payload for owner, payload in one.heard if owner == "p.b"] == [b"all of p.b"] * 2, "anew")
    await whole(three)


async def test_who_is_not_understood_parts_the_circle(three: list[Proxy]) -> None:
    one = three[0]
    one.understands = False
    lose_store(three)
    await until(lambda: len(one.heard) == 2, "both were heard")
    assert not one.circle.whole


async def test_strangers_are_refused(three: list[Proxy]) -> None:
    for greeting in (
        Greeting(FORMAT, "other", "p.x", "p.a"),
        Greeting(FORMAT, "fleet", "p.x", "p.b"),
        Greeting(FORMAT + 1, "fleet", "p.x", "p.a"),
        Told(b"no greeting"),
    ):
        assert await said(three[0].path, greeting) == b""
    assert not three[0].heard


async def test_what_is_no_frame_cuts_the_line(three: list[Proxy]) -> None:
    lose_store(three)
    await whole(three)
    reader, writer = await asyncio.open_unix_connection(three[0].path)
    writer.write(encoded(Greeting(FORMAT, "fleet", "p.x", "p.a")))
    writer.write(encoded(StoreState(True, ())))
    writer.write(b"\xff\xff\xff\xff")
    assert (await reader.read()).endswith(b"p.a")
    writer.close()


async def test_caught_up_returns_when_all_was_heard(three: list[Proxy]) -> None:
    one, two, _ = three
    lose_store(three)
    await whole(three)
    two.circle.tell(b"before")
    await one.circle.caught_up(10.0)
    assert ("p.b", b"before") in one.heard


async def test_caught_up_does_not_wait_for_one_that_ends(three: list[Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, last = three
    lose_store(three)
    await whole(three)
    line = last.circle._others["p.a"].line
    assert line is not None
    monkeypatch.setattr(line, "send", lambda _data: None)  # it answers nothing
    waits = asyncio.ensure_future(one.circle.caught_up(1000.0))
    await last.circle.close()
    await waits


async def test_its_socket_is_removed_at_the_end(directory: Path) -> None:
    proxy = Proxy(directory, "p.a")
    await proxy.start()
    path = Path(proxy.path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    await proxy.circle.close()
    assert not path.exists()


async def test_who_knows_nobody_is_whole_alone(directory: Path) -> None:
    proxy = Proxy(directory, "p.a")
    proxy.circle.set_away(True)
    assert (proxy.circle.whole, proxy.circle.kept) == (True, frozenset())


async def said(path: str, frame: Frame) -> bytes:
    """What comes back until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(encoded(frame))
    answer = await reader.read()
    writer.close()
    return answer
