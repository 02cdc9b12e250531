"""Two proxies that share one store hear of each other, by the names that each gives its backends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from structlog.testing import capture_logs

from proxy.direct.circle import Circle
from proxy.direct.place import listening
from proxy.sharing import Sharing, inward, outward, picture_inward, picture_outward
from proxy.store import Store
from scheduler import effects, events
from scheduler.core import Scheduler
from scheduler.health import Signal
from scheduler.news import (
    BackendGone,
    Hello,
    LeaseTaken,
    LoadBegun,
    LoadOver,
    LookWanted,
    News,
    PinsSet,
    PolicySet,
    Standing,
    TicketWaits,
)
from scheduler.picture import BackendPicture, Picture
from scheduler.policy import Policy
from scheduler.runner import Runner
from scheduler.telling import asked_of
from tests.proxy.store.store_process import StoreProcess
from tests.scheduler.world import backend, request
from tests.wait import until


class Names:
    """The backend `gpu` is called `a` by one proxy and `b` by the other; external ones have epochs of their own."""

    box = "here"

    def __init__(self, own: str, epoch: int, *, managed: bool = False) -> None:
        self.own, self.epoch, self.managed = own, epoch, managed

    def store_id(self, backend_id: str) -> str:
        return "gpu" if backend_id == self.own else f"?{backend_id}"

    def local_id(self, store_id: str) -> str | None:
        return self.own if store_id == "gpu" else None

    def store_epoch(self, _backend_id: str) -> int:
        return self.epoch if self.managed else 0

    def local_epoch(self, _backend_id: str) -> int:
        return self.epoch


A, B = Names("a", 3), Names("b", 7)


def taken(backend_id: str = "a", epoch: int = 3) -> LeaseTaken:
    return LeaseTaken("n1", backend_id, epoch, 1, asked_of(request("r1"), 0.0), 2, 100, 40, 5.0, 80.0, 220.0)


def test_a_backend_has_its_own_name_and_epoch_at_each_proxy() -> None:
    told = outward(taken(), A)
    assert isinstance(told, LeaseTaken)
    assert (told.backend_id, told.epoch) == ("gpu", 0)
    assert inward(told, B) == taken("b", 7)


def test_the_epoch_of_a_managed_backend_is_the_same_for_all() -> None:
    told = outward(taken(), Names("a", 3, managed=True))
    assert inward(told, Names("b", 3, managed=True)) == taken("b", 3)


def test_what_is_told_of_an_unknown_backend_is_left_out() -> None:
    elsewhere = outward(taken("other"), A)
    assert inward(elsewhere, B) is None
    waits = TicketWaits(asked_of(request("r2"), 0.0), ("a", "other"))
    standing = inward(outward(Standing(leases=(taken(), taken("other")), tickets=(waits,)), A), B)
    assert isinstance(standing, Standing)
    assert standing.leases == (taken("b", 7),)
    assert standing.tickets == (TicketWaits(waits.request, ("b",)),)


def test_loads_are_translated_too() -> None:
    begun = LoadBegun("a", 3, "m:latest", Runner(num_ctx=2048), "n1", ("x:latest",))
    assert inward(outward(begun, A), B) == msgspec.structs.replace(begun, backend_id="b", epoch=7)
    assert inward(outward(LoadOver("a", "n1", True), A), B) == LoadOver("b", "n1", True)
    assert inward(outward(LoadOver("other", "n1", True), A), B) is None
    standing = inward(outward(Standing(loads=(begun, msgspec.structs.replace(begun, backend_id="other"))), A), B)
    assert isinstance(standing, Standing)
    assert standing.loads == (msgspec.structs.replace(begun, backend_id="b", epoch=7),)


def test_a_picture_is_translated_too() -> None:
    picture = Picture(backends=(BackendPicture("a", 3), BackendPicture("other", 1)))
    assert picture_inward(picture_outward(picture, A), B).backends == (BackendPicture("b", 7),)


class Proxy:
    """A scheduler at the store, with one backend that is ready."""

    def __init__(self, url: str, names: Names) -> None:
        self.names = names
        self.store = Store(url, fleet="sharing", proxy_id=names.own)
        self.scheduler = Scheduler(Policy())
        self.effects: list[effects.Effect] = []
        self.heard: list[News] = []
        self.policies: list[int] = []
        self.pins: list[int] = []
        self.loaded: list[tuple[str, str]] = []
        self.clock = asyncio.get_running_loop().time
        self.circle = Circle("sharing", self.store.owner)
        self.sharing = Sharing(self.store, self.scheduler, names, self.feed, self.clock, self.circle, names.box)
        self.sharing.backends = self
        self.sharing.on_policy = self.policies.append
        self.sharing.on_pins = self.pins.append
        self.sharing.on_loaded = lambda backend_id, model: self.loaded.append((backend_id, model))
        self.feed(events.BackendChanged(backend(names.own, epoch=names.epoch)))
        for signal in (Signal.STARTED, Signal.ANSWERED):
            self.feed(events.BackendSignalled(names.own, signal))

    def hear(self, _owner: str, news: News) -> None:
        self.heard.append(news)

    def feed(self, event: events.Event) -> None:
        for effect in self.scheduler.handle(event, self.clock()):
            self.effects.append(effect)
            if isinstance(effect, effects.Tell):
                self.sharing.tell(effect.news)

    @property
    def elsewhere(self) -> int:
        return self.scheduler.snapshot(self.clock()).backends[0].seats_elsewhere

    async def run(self, request_id: str) -> None:
        """Claim a seat as the dispatcher does."""
        now_s = self.clock()
        self.feed(events.RequestArrived(request(request_id, arrived_s=now_s, wait_s=60.0)))
        claim = next(each for each in reversed(self.effects) if isinstance(each, effects.Claim))
        news = self.sharing.enclosed(claim.news)
        reply = await self.store.claim("gpu", claim.nonce, 1, 2, 0, claim.slot, news)
        assert reply.granted
        self.feed(events.ClaimGranted(request_id, claim.nonce))

    async def start(self) -> None:
        await self.store.start()
        await self.sharing.start()

    async def close(self) -> None:
        await self.sharing.close()
        await self.store.close()


@pytest.fixture
def store_process() -> Iterator[StoreProcess]:
    with TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess("valkey", Path(name))
        process.start()
        yield process
        process.stop()


@pytest.fixture
async def pair(store_process: StoreProcess) -> AsyncIterator[tuple[Proxy, Proxy]]:
    one, two = Proxy(store_process.url, A), Proxy(store_process.url, B)
    await one.start()
    await two.start()
    await until(lambda: not one.scheduler.alone, "the first one knows that there is another")
    yield one, two
    await two.close()
    await one.close()


async def test_a_seat_that_one_takes_is_known_to_the_other(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    await one.run("r1")
    await until(lambda: two.elsewhere == 1, "the seat is known")


async def test_who_starts_later_learns_what_runs(store_process: StoreProcess) -> None:
    one = Proxy(store_process.url, A)
    await one.start()
    await one.run("r1")
    two = Proxy(store_process.url, B)
    await two.start()

    assert two.elsewhere == 1
    await two.close()
    await one.close()


async def test_news_of_backends_and_policies_go_to_those_who_own_them(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    for news in (BackendGone("gpu"), LookWanted("gpu", 0.5), PolicySet(4)):
        one.sharing.tell(news)
    await until(lambda: two.policies == [4], "the policy's version is heard")
    assert two.heard[-2:] == [BackendGone("gpu"), LookWanted("gpu", 0.5)]
    assert not one.policies


async def test_what_others_load_teaches_who_looks_after_the_backend(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    for nonce, runner, loaded in (("n1", Runner(), True), ("n2", Runner(num_ctx=2048), True), ("n3", Runner(), False)):
        one.sharing.tell(LoadBegun("a", 3, "m:latest", runner, nonce))
        one.sharing.tell(LoadOver("a", nonce, loaded))
    one.sharing.tell(PinsSet(7))
    await until(lambda: two.pins == [7], "the last of them is heard")

    assert two.loaded == [("b", "m:latest")]
    assert (one.loaded, one.pins) == ([], [])


async def test_what_is_not_understood_is_left_out_with_a_line(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    with capture_logs() as lines:
        one.store.tell(b"\xc1 not msgpack")
        one.store.tell(b"\xc1 nor this")
        one.sharing.tell(PolicySet(9))
        await until(lambda: two.policies == [9], "later news are heard")
    assert [line["event"].startswith("news not understood") for line in lines].count(True) == 1, "said once"


async def test_a_gap_is_closed_by_asking_and_telling(pair: tuple[Proxy, Proxy]) -> None:
    one, two = pair
    await one.run("r1")
    await until(lambda: two.elsewhere == 1, "the seat is known")
    two.feed(events.ProxiesChanged(frozenset()))
    two.feed(events.ProxiesChanged(frozenset({one.store.owner})))
    two.store.on_gap()

    await until(lambda: Hello() in one.heard, "the other one is asked")
    await until(lambda: two.elsewhere == 1, "what it has is known again")


async def test_what_was_learned_outlives_its_proxy(store_process: StoreProcess) -> None:
    one = Proxy(store_process.url, Names("a", 3, managed=True))
    await one.start()
    await one.close()
    two = Proxy(store_process.url, Names("b", 3, managed=True))
    await two.store.start()
    found = await two.store.load_picture()

    assert found is not None
    with capture_logs() as lines:
        await two.sharing.start()
    assert any(isinstance(each, dict) and each["event"] == "picture of the fleet is warm" for each in lines)
    await two.close()


async def test_a_proxy_that_says_nothing_holds_nobody_up(
    store_process: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sharing.WARM_WITHIN_S", 0.05)
    silent = Store(store_process.url, fleet="sharing", proxy_id="silent")
    await silent.start()
    two = Proxy(store_process.url, B)
    with capture_logs() as lines:
        await two.start()
    assert [line["proxies"] for line in lines if line["event"].startswith("started without word")] == [[silent.owner]]
    await two.close()
    await silent.close()


@pytest.mark.parametrize("box", ["here", "elsewhere"])
async def test_proxies_of_one_box_are_told_where_the_others_listen(store_process: StoreProcess, box: str) -> None:
    with TemporaryDirectory(prefix="sg-") as name:
        proxies = Proxy(store_process.url, Names("a", 3)), Proxy(store_process.url, Names("b", 7))
        proxies[1].names.box = box
        proxies[1].sharing._box_id = box
        for each in proxies:
            await each.circle.start(*listening(Path(name), each.store.owner))
            await each.start()
        one, two = proxies
        one.sharing.tell(PolicySet(1))
        two.sharing.tell(PolicySet(1))
        await until(lambda: one.policies == two.policies == [1], "all that was told before is heard")
        known = [len(each.circle._others) for each in proxies]
        assert known == ([1, 1] if box == "here" else [0, 0])
        for each in proxies:
            await each.close()
            await each.circle.close()


async def test_a_doubt_of_another_proxy_is_looked_into_only_if_it_differs(pair: tuple[Proxy, Proxy]) -> None:
    one, _ = pair
    doubts: list[bool] = []
    one.store.doubt = lambda: doubts.append(one.store.up)  # type: ignore[method-assign]
    one.sharing.store_doubted(away=False)
    assert doubts == []
    one.sharing.store_doubted(away=True)
    assert doubts == [True]
