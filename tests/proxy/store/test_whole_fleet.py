"""Several proxies that share leases, slots and a log, driven by random programs: lost answers, cut connections,
crashes, expiry, engines that restart, and a store that loses everything while it runs.

The model is what each proxy believes to hold. At every moment the store has no more than the limit; no slot is held
twice; each thing is told once at most; every reader hears the same entries under the same numbers, in order, without a
hole unless it was told of a gap.
"""

import asyncio
import tempfile
import uuid
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.store.keys import Keys
from proxy.store.records import LostLease
from proxy.store.store import Store
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

PROXIES = 3
LIMIT = 3
BACKEND = "g0"
ALONE = {"crash", "stop"}
"""Steps that run after the others of their turn."""

Step = tuple[str, int, int]
KINDS = (
    ["claim"] * 5
    + ["slot"] * 5
    + ["release"] * 6
    + ["tell"] * 2
    + ["cancel", "lose", "cut", "renew", "engine", "flush"]
)
STEP = st.tuples(st.sampled_from([*KINDS, *ALONE]), st.integers(0, PROXIES - 1), st.integers(0, 5))
PROGRAM = st.lists(st.lists(STEP, min_size=1, max_size=6), min_size=1, max_size=10)


class Believed(msgspec.Struct):
    """A lease as its proxy believes to have it."""

    seats: int
    epoch: int
    slot: int | None
    safe: bool = True
    """It never expired and the store never lost it, so its slot is its own."""


class Reader:
    """What one proxy heard: numbers of entries, and None for a gap."""

    def __init__(self, store: Store, entries: dict[int, tuple[bytes, ...]]) -> None:
        self.heard: list[int | None] = []
        reader = store._fleet.reader
        deliver = reader._on_entry

        def entry(number: int, fields: dict[bytes, bytes]) -> None:
            told = tuple(fields.values())
            assert entries.setdefault(number, told) == told, "the same for all"
            self.heard.append(number)
            deliver(number, fields)

        reader._on_entry = entry
        missed = reader._on_gap

        def gap() -> None:
            self.heard.append(None)
            missed()

        reader._on_gap = gap

    def check(self) -> None:
        for before, after in zip(self.heard, self.heard[1:], strict=False):
            assert before is None or after is None or after == before + 1
        numbers = [number for number in self.heard if number is not None]
        assert numbers == sorted(set(numbers))


class Fleet:
    """The proxies, what they believe, and a look behind the scenes."""

    def __init__(self, raw: redis.Redis, url: str, directory: Path) -> None:
        self.raw = raw
        self._url = url
        self._directory = directory
        self._name = uuid.uuid4().hex
        self._keys = Keys(self._name)
        self._stack = AsyncExitStack()
        self._count = 0
        self.epoch = 1
        self.entries: dict[int, tuple[bytes, ...]] = {}
        self.proxies: list[Store] = []
        self.lossy: list[LossySocket] = []
        self.readers: list[Reader] = []
        self.held: list[dict[str, Believed]] = [{} for _ in range(PROXIES)]
        self.lost: list[dict[str, Believed]] = [{} for _ in range(PROXIES)]

    async def __aenter__(self) -> Self:
        for index in range(PROXIES):
            directory = self._directory / str(index)
            directory.mkdir()
            self.lossy.append(await self._stack.enter_async_context(LossySocket(self._url, directory)))
            self.proxies.append(await self._open(index))
        await self._calm()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self.proxies:
            await proxy.close()
        await self._stack.aclose()

    async def _open(self, index: int) -> Store:
        proxy = Store(self.lossy[index].url, fleet=self._name, proxy_id=f"p{index}", call_timeout_s=20.0)
        await proxy.start()

        def lost(lease: LostLease) -> None:
            self.lost[index][lease.nonce] = self.held[index].pop(lease.nonce)

        proxy.on_lost = lost
        self.readers.append(Reader(proxy, self.entries))
        await proxy.follow(None)
        return proxy

    def members(self) -> set[str]:
        """Unexpired members, never too many. Nothing expires by itself in a test; `_expire` leaves the score 1."""
        found: Any = self.raw.zrangebyscore(self._keys.leases(BACKEND), 2, "+inf")
        assert len(found) <= LIMIT, found
        return {member.decode() for member in found}

    def _expire(self, index: int) -> None:
        """Time passes for the leases of one proxy."""
        owner = self.proxies[index].owner
        for member in self.members():
            if member.startswith(f"{owner}/"):
                self.raw.zadd(self._keys.leases(BACKEND), {member: 1}, xx=True)
        for lease in self.held[index].values():
            lease.safe = False

    async def _claim(self, index: int, slot: int | None = None, cancel_after: int | None = None) -> None:
        self._count += 1
        nonce, epoch, seats = f"n{self._count}", self.epoch, 1 if slot is not None else 1 + self._count % 2
        proxy, news = self.proxies[index], f"taken {nonce}".encode()
        claim = asyncio.ensure_future(proxy.claim(BACKEND, nonce, seats, LIMIT, epoch, slot=slot, news=news))
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            claim.cancel()
        with suppress(asyncio.CancelledError):
            reply = await claim
            self.members()
            assert not reply.local
            if reply.granted:
                if slot is not None:
                    self._nobody_else_at(slot, epoch)
                self.held[index][nonce] = Believed(seats, epoch, slot)
            elif not reply.slot_refused and reply.epoch == epoch:
                assert reply.seats_total + seats > LIMIT

    def _nobody_else_at(self, slot: int, epoch: int) -> None:
        for own in self.held:
            for lease in own.values():
                assert not (lease.safe and lease.epoch == epoch and lease.slot == slot), (slot, own)

    async def _step(self, step: Step) -> None:
        kind, index, number = step
        proxy, held = self.proxies[index], self.held[index]
        match kind:
            case "claim":
                await self._claim(index)
            case "slot":
                await self._claim(index, slot=number % LIMIT)
            case "cancel":
                await self._claim(index, cancel_after=number)
            case "release" if held:
                await self._release(index, number)
            case "tell":
                proxy.tell(b"told")
            case "lose":
                self.lossy[index].lose_answers = True
            case "cut":
                self.lossy[index].cut()
            case "renew":
                await proxy.renew()
            case "engine":
                self.epoch += 1
            case "flush":
                self._flush()

    async def _release(self, index: int, number: int) -> None:
        proxy, held = self.proxies[index], self.held[index]
        nonce = sorted(held)[number % len(held)]
        del held[nonce]
        if number % 2:
            proxy.give_back(BACKEND, nonce, f"over {nonce}".encode())
        else:
            await proxy.release(BACKEND, nonce, f"over {nonce}".encode())

    def _flush(self) -> None:
        self.raw.flushall()
        for own in self.held:
            for lease in own.values():
                lease.safe = False

    async def _alone(self, kind: str, index: int) -> None:
        if kind == "crash":
            proxy = self.proxies[index]
            await proxy._tasks.close()
            await proxy._fleet.close()
            await proxy._link.close()
            self._expire(index)
            self.raw.zrem(self._keys.proxies, proxy.owner)
            self.held[index].clear()
            self.lost[index].clear()
            self.proxies[index] = await self._open(index)
        else:  # stopped for longer than its leases live, while another went on
            self._expire(index)
            await self._claim((index + 1) % PROXIES)
            await self.proxies[index].renew()

    async def turn(self, steps: list[Step]) -> None:
        """Carry out steps at once, then compare."""
        await asyncio.gather(*(self._step(step) for step in steps if step[0] not in ALONE))
        await self._calm()
        for kind, index, _ in steps:
            if kind in ALONE:
                await self._alone(kind, index)
        await self._calm()
        held, lost = self._seats(self.held), self._seats(self.lost)
        assert held <= self.members() <= held | lost
        slots: Any = self.raw.hgetall(self._keys.slots(BACKEND))
        for proxy, own in zip(self.proxies, self.held, strict=True):
            for nonce, lease in own.items():
                if lease.slot is not None and lease.safe and lease.epoch == self._stored_epoch():
                    assert slots[b"%d" % lease.slot] == f"{proxy.owner}/{nonce}".encode()

    def _stored_epoch(self) -> int:
        epoch: Any = self.raw.hget(self._keys.backend(BACKEND), "epoch")
        return int(epoch or 0)

    def _seats(self, leases: list[dict[str, Believed]]) -> set[str]:
        """Members that leases of the present epoch have in the store."""
        epoch = self._stored_epoch()
        return {
            f"{proxy.owner}/{nonce}#{seat}"
            for proxy, own in zip(self.proxies, leases, strict=True)
            for nonce, lease in own.items()
            if lease.epoch == epoch
            for seat in range(lease.seats)
        }

    async def _calm(self) -> None:
        """No more losses; what was sent was answered, what was lost was told again, and everybody heard everything."""
        for lossy in self.lossy:
            lossy.lose_answers = False
        await asyncio.gather(*(proxy._announce() for proxy in self.proxies))
        fleets = [proxy._fleet for proxy in self.proxies]
        await until(lambda: len({fleet.presence.life for fleet in fleets}) == 1, "all told the store everything")
        await until(lambda: not any(fleet.presence.settling for fleet in fleets), "nobody waits for another")
        await asyncio.gather(*(proxy.occupancy([BACKEND]) for proxy in self.proxies))

        def heard() -> bool:
            count: Any = self.raw.get(self._keys.log_count)
            return all(fleet.reader.position == int(count) for fleet in fleets)

        await until(heard, "all heard everything")

    async def finish(self) -> None:
        """Everything ends well: nothing is left, and nothing was told twice."""
        for index, proxy in enumerate(self.proxies):
            for nonce in self.held[index] | self.lost[index]:
                await proxy.release(BACKEND, nonce, f"over {nonce}".encode())
        await self._calm()
        assert self.members() == set()
        for reader in self.readers:
            reader.check()
        told = Counter(values[1] for _, values in sorted(self.entries.items()))
        twice = {news: times for news, times in told.items() if news.startswith((b"taken", b"over")) and times > 1}
        assert twice == {}
        order = {values[1]: number for number, values in self.entries.items()}
        for news, number in order.items():
            if news.startswith(b"over"):
                assert order.get(news.replace(b"over", b"taken"), 0) < number


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(program=PROGRAM)
def test_whatever_happens_the_fleet_agrees(
    program: list[list[Step]], shared_process: StoreProcess, raw: redis.Redis
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="sg-") as name:
            async with Fleet(raw, shared_process.url, Path(name)) as fleet:
                for steps in program:
                    await fleet.turn(steps)
                await fleet.finish()

    asyncio.run(run())
