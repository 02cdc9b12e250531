"""Several proxies at one store, driven by random programs with crashes, lost answers and expiry: never too many leases.

The model is what each proxy believes to hold. After every turn the store must hold exactly that for the living, at no
moment more than the running limit, and at the end nothing.
"""

import asyncio
import tempfile
import uuid
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.store.records import LostLease
from proxy.store.store import Store
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess

PROXIES = 3
BACKENDS = ("g0", "g1")
LIMIT = 3
CLAIM, CANCEL, RELEASE = "claim", "cancel", "release"
ALONE = {"crash", "stop"}
"""Steps of which the rest of the fleet only sees the consequences; they run after the others of their turn."""

Step = tuple[str, int, str, int]
PROXY, BACKEND, ANY = st.integers(0, PROXIES - 1), st.sampled_from(BACKENDS), st.integers(0, 6)
STEP = st.tuples(
    st.sampled_from(
        [CLAIM] * 5 + [RELEASE] * 4 + [CANCEL] * 2 + ["lose", "cut", "renew", "restart", "drain", "undrain", *ALONE]
    ),
    PROXY,
    BACKEND,
    ANY,
)
PROGRAM = st.lists(st.lists(STEP, min_size=1, max_size=6), min_size=1, max_size=12)


class Believed(msgspec.Struct):
    """A lease as its proxy believes to have it."""

    backend_id: str
    seats: int
    epoch: int


class Fleet:
    """The proxies, what they believe, and a look behind the scenes."""

    def __init__(self, raw: redis.Redis, url: str, directory: Path) -> None:
        self.raw = raw
        self._url = url
        self._directory = directory
        self._name = uuid.uuid4().hex
        self._stack = AsyncExitStack()
        self._count = 0
        self.proxies: list[Store] = []
        self.lossy: list[LossySocket] = []
        self.held: list[dict[str, Believed]] = [{} for _ in range(PROXIES)]
        self.lost: list[dict[str, Believed]] = [{} for _ in range(PROXIES)]
        """Lost while stopped: they come back if there is room again."""
        self.epochs = dict.fromkeys(BACKENDS, 1)

    async def __aenter__(self) -> Self:
        for index in range(PROXIES):
            directory = self._directory / str(index)
            directory.mkdir()
            self.lossy.append(await self._stack.enter_async_context(LossySocket(self._url, directory)))
            self.proxies.append(await self._open(index))
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
        return proxy

    def _leases(self, backend_id: str) -> str:
        return f"{{slotgate:{self._name}}}:leases:{backend_id}"

    def _epoch(self, backend_id: str) -> int:
        epoch: Any = self.raw.hget(f"{{slotgate:{self._name}}}:backend:{backend_id}", "epoch")
        return int(epoch or 0)

    def members(self, backend_id: str) -> set[str]:
        """Unexpired members, never too many. Nothing expires by itself in a test; `_expire` leaves the score 1."""
        found: Any = self.raw.zrangebyscore(self._leases(backend_id), 2, "+inf")
        assert len(found) <= LIMIT, found
        return {member.decode() for member in found}

    def _expire(self, owner: str) -> None:
        """Time passes for the leases of one proxy."""
        for backend_id in BACKENDS:
            for member in self.members(backend_id):
                if member.startswith(f"{owner}/"):
                    self.raw.zadd(self._leases(backend_id), {member: 1}, xx=True)

    async def _claim(self, index: int, backend_id: str, seats: int, cancel_after: int | None = None) -> None:
        self._count += 1
        nonce, epoch = f"n{self._count}", self.epochs[backend_id]
        claim = asyncio.ensure_future(self.proxies[index].claim(backend_id, nonce, seats, LIMIT, epoch))
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            claim.cancel()
        with suppress(asyncio.CancelledError):
            reply = await claim
            self.members(backend_id)
            assert not reply.local
            if reply.granted:
                self.held[index][nonce] = Believed(backend_id, seats, epoch)
            elif not reply.draining and reply.epoch == epoch:
                assert reply.seats_total + seats > LIMIT

    async def _step(self, step: Step) -> None:
        kind, index, backend_id, number = step
        proxy, held = self.proxies[index], self.held[index]
        match kind:
            case "claim":
                await self._claim(index, backend_id, 1 + number % 2)
            case "cancel":
                await self._claim(index, backend_id, 1, cancel_after=number)
            case "release" if held:
                nonce = sorted(held)[number % len(held)]
                await proxy.release(held.pop(nonce).backend_id, nonce)
            case "lose":
                self.lossy[index].lose_answers = True
            case "cut":
                self.lossy[index].cut()
            case "renew":
                await proxy.renew()
            case "restart":
                self.epochs[backend_id] += 1
            case "drain" | "undrain":
                await proxy.set_draining(backend_id, kind == "drain")

    async def _alone(self, kind: str, index: int) -> None:
        proxy = self.proxies[index]
        if kind == "crash":
            await proxy._tasks.close()
            await proxy._link.close()
            self._expire(proxy.owner)
            self.held[index].clear()
            self.lost[index].clear()
            self.proxies[index] = await self._open(index)
        else:  # stopped for longer than its leases live, while another went on
            self._expire(proxy.owner)
            await self._claim((index + 1) % PROXIES, BACKENDS[0], 2)
            await proxy.renew()

    async def turn(self, steps: list[Step]) -> None:
        """Carry out steps at once, then compare."""
        await asyncio.gather(*(self._step(step) for step in steps if step[0] not in ALONE))
        await self._calm()
        for kind, index, _, _ in steps:
            if kind in ALONE:
                await self._alone(kind, index)
        await self._calm()
        for backend_id in BACKENDS:
            held, lost = self._seats(backend_id, self.held), self._seats(backend_id, self.lost)
            assert held <= self.members(backend_id) <= held | lost

    def _seats(self, backend_id: str, leases: list[dict[str, Believed]]) -> set[str]:
        """Members that leases of the backend's present epoch have in the store."""
        epoch = self._epoch(backend_id)
        return {
            f"{proxy.owner}/{nonce}#{seat}"
            for proxy, own in zip(self.proxies, leases, strict=True)
            for nonce, lease in own.items()
            if lease.backend_id == backend_id and lease.epoch == epoch
            for seat in range(lease.seats)
        }

    async def _calm(self) -> None:
        """No more losses, and everything that was sent has been answered."""
        for lossy in self.lossy:
            lossy.lose_answers = False
        await asyncio.gather(*(proxy.occupancy(BACKENDS) for proxy in self.proxies))

    async def finish(self) -> None:
        """Everything ends well: nothing is left anywhere."""
        for index, proxy in enumerate(self.proxies):
            for nonce, lease in (self.held[index] | self.lost[index]).items():
                await proxy.release(lease.backend_id, nonce)
        assert [self.members(backend_id) for backend_id in BACKENDS] == [set(), set()]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(program=PROGRAM)
def test_whatever_happens_there_are_never_too_many_leases(
    program: list[list[Step]], shared_process: StoreProcess, raw: redis.Redis
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="sg-") as name:
            async with Fleet(raw, shared_process.url, Path(name)) as fleet:
                for steps in program:
                    await fleet.turn(steps)
                await fleet.finish()

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_crowd_that_claims_at_once_gets_exactly_the_limit(
    limit: int, shared_process: StoreProcess, raw: redis.Redis, fleet: str
) -> None:
    stores = [Store(shared_process.url, fleet=fleet, proxy_id=f"p{i}", call_timeout_s=5.0) for i in range(4)]
    for store in stores:
        await store.start()
    for turn in range(5):
        nonces = [f"r{turn}n{i}" for i in range(25)]
        replies = await asyncio.gather(*(store.claim("g0", n, 1, limit, 1) for n in nonces for store in stores))
        freed = await asyncio.gather(*(store.release("g0", n) for n in nonces for store in stores))

        assert not any(reply.local for reply in replies)
        assert sum(reply.granted for reply in replies) == sum(freed) == limit
    for store in stores:
        await store.close()


async def test_where_limits_differ_the_smaller_holds_for_its_proxy(
    shared_process: StoreProcess, raw: redis.Redis, fleet: str
) -> None:
    small = Store(shared_process.url, fleet=fleet, proxy_id="small", call_timeout_s=5.0)
    large = Store(shared_process.url, fleet=fleet, proxy_id="large", call_timeout_s=5.0)
    await small.start()
    await large.start()
    for i in range(4):
        await large.claim("g0", f"n{i}", 1, 4, 1)

    for i in range(3):
        assert not (await small.claim("g0", f"n{i}", 1, 2, 1)).granted
        await large.release("g0", f"n{i}")
    assert (await small.claim("g0", "n", 1, 2, 1)).granted
    await small.close()
    await large.close()
