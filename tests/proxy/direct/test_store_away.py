"""Several proxies (store, scheduler, dispatcher, circle each) at a real Valkey that is killed and comes back."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from proxy.direct import circle as circle_module
from proxy.direct.circle import Circle
from proxy.direct.place import listening
from proxy.dispatcher import Dispatcher
from proxy.journal import Journal
from proxy.sharing import Sharing
from proxy.store import Store
from proxy.ticketed import Assignment, Ticketed
from scheduler import events
from scheduler.core import Scheduler
from scheduler.domain import BackendView, Outcome, Report
from scheduler.health import Signal
from scheduler.policy import Policy
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.scheduler.nouns import backend, talk
from tests.wait import until

LIMIT, SLOTS, PROXIES = 6, 8, 3


class Proxy:
    """All of a proxy that decides, without clients and engines."""

    def __init__(self, url: str, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.store = Store(url, fleet="direct", proxy_id=name)
        self.scheduler = Scheduler(Policy())
        self.dispatcher = dispatcher = Dispatcher(self.scheduler, self.store, Journal())
        self.circle = Circle("direct", self.store.owner)
        self.sharing = dispatcher.sharing = Sharing(
            self.store, self.scheduler, dispatcher, dispatcher.feed, dispatcher.clock, self.circle, "box"
        )
        self.store.on_change = self.sharing.store_changed
        self.sharing.on_circle = dispatcher.ask_occupancy
        self.running: dict[str, tuple[Ticketed, Assignment]] = {}
        dispatcher.feed(events.BackendChanged(backend("gpu", limit=LIMIT, slots=SLOTS)))
        for signal in (Signal.STARTED, Signal.ANSWERED):
            dispatcher.feed(events.BackendSignalled("gpu", signal))

    async def start(self) -> None:
        await self.store.start()
        await self.circle.start(*listening(self.directory, self.store.owner))
        await self.sharing.start()
        self.dispatcher.start()
        self.dispatcher.feed(
            events.BackendReported(Report("gpu", 1, self.dispatcher.clock(), busy_slots=0, deferred=0))
        )

    async def close(self) -> None:
        for name in list(self.running):
            self.end(name)
        await self.dispatcher.close()
        await self.sharing.close()
        await self.circle.close()
        await self.store.close()

    async def run(self, name: str) -> int | None:
        """Begin a request; returns the slot that was named."""
        made = talk(name, (zlib.crc32(name.encode()), 40), arrived_s=self.dispatcher.clock())
        ticketed = self.dispatcher.submit(made)
        async with asyncio.timeout(10.0):
            assignment = await ticketed.assignment()
        self.running[name] = ticketed, assignment
        return assignment.slot

    def end(self, name: str) -> None:
        self.running.pop(name)[0].ended(Outcome.DONE)

    @property
    def view(self) -> BackendView:
        return self.scheduler.snapshot(self.dispatcher.clock()).backends[0]

    @property
    def others(self) -> dict[str, int | None]:
        """Requests of others that are known here, and their slots."""
        return {lease.request_id: lease.work.slot for lease in self.scheduler.elsewhere()[1] if lease.work is not None}


Make = Callable[[str], Proxy]


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sg-") as name:
        yield Path(name)


@pytest.fixture
def valkey(directory: Path) -> Iterator[StoreProcess]:
    process = StoreProcess("valkey", directory)
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def three(valkey: StoreProcess, directory: Path) -> AsyncIterator[list[Proxy]]:
    proxies = [Proxy(valkey.url, name, directory) for name in "abc"]
    for each in proxies:
        await each.start()
    await connected(proxies)
    yield proxies
    for each in proxies:
        await each.close()


async def connected(proxies: list[Proxy]) -> None:
    def all_lines_up() -> bool:
        return all(
            sum(other.connected for other in each.circle._others.values()) == len(proxies) - 1 for each in proxies
        )

    await until(all_lines_up, "all have a line to all")
    await until(lambda: all(each.view.names_slots for each in proxies), "slots are named")


async def lose(valkey: StoreProcess, proxies: list[Proxy]) -> None:
    await asyncio.to_thread(valkey.stop)
    await until(lambda: all(each.circle.whole for each in proxies), "all tell each other directly")


def fits(proxies: list[Proxy]) -> bool:
    """Never more than the limit, and no slot twice."""
    slots = [assignment.slot for each in proxies for _, assignment in each.running.values()]
    named = [slot for slot in slots if slot is not None]
    return len(slots) <= LIMIT and len(named) == len(set(named))


async def heard(proxies: list[Proxy]) -> None:
    """Each knows what all others run."""

    def knows_all() -> bool:
        return all(
            each.others
            == {
                name: assignment.slot
                for other in proxies
                if other is not each
                for name, (_, assignment) in other.running.items()
            }
            for each in proxies
        )

    await until(knows_all, "each knows what the others run")


async def test_news_arrive_slots_are_named_and_seats_are_shares(valkey: StoreProcess, three: list[Proxy]) -> None:
    await three[0].run("before")
    await lose(valkey, three)
    await heard(three)
    assert await three[1].run("r1") is not None
    await heard(three)  # two that choose within the same millisecond may choose the same
    assert await three[2].run("r2") is not None
    await heard(three)
    assert fits(three)
    assert all(each.view.names_slots for each in three)
    assert three[0].view.seats_elsewhere == 2, "what others really use"

    assert await three[1].run("r3") is not None
    await until(lambda: three[1].view.room == 0, "its share is used up")
    waits = asyncio.ensure_future(three[1].run("r4"))
    await until(lambda: len(three[0].scheduler.elsewhere()[0]) == 1, "it waits, and the others know")
    three[1].end("r1")
    await waits
    await heard(three)
    assert fits(three)


async def test_nobody_is_dropped_when_the_store_goes_and_when_it_is_back(
    valkey: StoreProcess, three: list[Proxy]
) -> None:
    for index, each in enumerate(three):
        await each.run(f"r{index}")
    await heard(three)
    least: list[int] = []
    forget = three[0].scheduler.handle

    def watched(event: events.Event, now_s: float) -> object:
        done = forget(event, now_s)
        least.append(len(three[0].others))
        return done

    three[0].scheduler.handle = watched  # type: ignore[method-assign,assignment]
    await lose(valkey, three)
    assert min(least) == 2
    three[2].end("r2")
    await heard(three)
    await asyncio.to_thread(valkey.start)
    await until(lambda: all(each.store.up for each in three), "all have the store again")
    await heard(three)
    assert min(least) == 1


async def test_after_the_return_the_store_has_all_and_nothing_twice(valkey: StoreProcess, three: list[Proxy]) -> None:
    await lose(valkey, three)
    for index, each in enumerate(three):
        await each.run(f"r{index}")
        await heard(three)
        await each.run(f"s{index}")
        await heard(three)
    three[0].end("r0")
    await asyncio.to_thread(valkey.start)
    await until(lambda: all(each.store.up for each in three), "all have the store again")
    await heard(three)
    found = await three[0].store.occupancy(["gpu"])
    assert (found["gpu"].seats_total, found["gpu"].local) == (5, False)
    await until(lambda: all(each.view.seats_kept == 0 for each in three), "seats are anyone's again")
    assert await three[0].run("more") is not None
    assert fits(three)
    for each in three:
        for name in list(each.running):
            each.end(name)
    await heard(three)

    async def empty() -> bool:
        return (await three[0].store.occupancy(["gpu"]))["gpu"].seats_total == 0

    await until(empty, "nothing is left")


async def test_one_that_loses_the_store_alone_names_no_slot_and_hears_nobody(
    valkey: StoreProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circle_module, "KEEP_S", 0.2)
    async with LossySocket(valkey.url, directory) as lossy:
        alone, other = Proxy(lossy.url, "a", directory), Proxy(valkey.url, "b", directory)
        await alone.start()
        await other.start()
        await connected([alone, other])
        await other.run("r1")
        await heard([alone, other])
        lossy.closed = True
        lossy.cut()
        await until(lambda: not alone.store.up, "the store is away for one")
        await until(lambda: not alone.others, "what the other runs is known no more")
        assert not alone.circle.whole
        assert await alone.run("r2") is None, "the engine chooses"
        await other.run("r3")
        assert "r3" not in alone.others
        assert "r2" not in other.others
        lossy.closed = False
        await until(lambda: alone.store.up, "it has the store again")
        await heard([alone, other])
        await alone.close()
        await other.close()


async def test_what_a_dead_one_ran_is_over_and_its_share_stays_kept(valkey: StoreProcess, three: list[Proxy]) -> None:
    one, two, dead = three
    await dead.run("r1")
    await lose(valkey, three)
    await heard(three)
    await dead.circle.close()  # as its end by a signal: nobody listens there, all lines are broken
    await until(lambda: not one.others and not two.others, "it is dropped")
    await until(lambda: one.circle.whole and two.circle.whole, "nobody else runs anything")
    for name in ("s1", "s2"):
        assert await one.run(name) is not None
    await until(lambda: one.view.room == 0, "no more than its share")


async def test_who_starts_without_the_store_is_alone(valkey: StoreProcess, three: list[Proxy]) -> None:
    await lose(valkey, three)
    late = Proxy(valkey.url, "late", three[0].directory)
    await late.start()
    assert late.circle.kept == frozenset()
    await asyncio.to_thread(valkey.start)
    await connected([*three, late])
    await late.close()


async def test_random_requests_over_a_gap_never_exceed_the_limit(valkey: StoreProcess, three: list[Proxy]) -> None:
    most, count = 0, 0

    async def client(proxy: Proxy, number: int) -> None:
        nonlocal most, count
        for turn in range(40):
            name = f"{proxy.name}{number}.{turn}"
            await proxy.run(name)
            most = max(most, sum(len(each.running) for each in three))
            await asyncio.sleep(0.002 * ((number * 7 + turn * 3) % 5))
            proxy.end(name)
            count += 1

    async def store() -> None:
        await until(lambda: count > 30, "requests run")
        await asyncio.to_thread(valkey.stop)
        await until(lambda: count > 150 and all(each.circle.whole for each in three), "they run without the store")
        await asyncio.to_thread(valkey.start)

    clients = [client(proxy, number) for proxy in three for number in range(3)]
    await asyncio.gather(store(), *clients)
    assert (most <= LIMIT, count) == (True, 360)
    await until(lambda: all(each.store.up for each in three), "all have the store again")
    await heard(three)
