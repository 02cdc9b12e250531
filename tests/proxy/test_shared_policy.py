"""One policy for a fleet: taken over, put into the store, agreed on again after trouble. On a real store."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from proxy.admin_policy import AdminPolicy
from proxy.config import LimitsConfig, PolicyConfig
from proxy.dispatcher import Dispatcher
from proxy.journal import Journal
from proxy.policies import PolicyDocument, Shared
from proxy.policy_keys import PolicyError
from proxy.requests import RequestBook
from proxy.shared_policy import SharedPolicy
from proxy.store import Store
from scheduler.core import Scheduler
from scheduler.policy import Policy
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


class Proxy:
    """A proxy's policy and its store."""

    def __init__(self, directory: Path, store: Store, **config: Any) -> None:
        directory.mkdir(exist_ok=True)
        path = directory / "policy.toml"
        self.store = store
        self.policies = PolicyDocument(path, PolicyConfig.model_validate(config), LimitsConfig())
        self.shared = SharedPolicy(self.policies, store)
        self.told: list[int] = []
        self.shared.on_set = self.told.append

    async def set(self, **values: object) -> int:
        return (await self.shared.change(lambda: self.policies.set(values))).version

    async def stored(self) -> Shared:
        found = await self.store.policy()
        assert found is not None
        return msgspec.json.decode(found[1], type=Shared)

    @property
    def hold_s(self) -> float:
        return self.policies.policy.hold_s


Open = Callable[..., Awaitable[Proxy]]


@pytest.fixture
def own_process() -> Iterator[StoreProcess]:
    """A Valkey of this test's own, started."""
    with tempfile.TemporaryDirectory(prefix="sg-") as name:
        process = StoreProcess("valkey", Path(name))
        process.start()
        yield process
        process.stop()


@pytest.fixture
async def opened(tmp_path: Path, own_process: StoreProcess) -> AsyncIterator[Open]:
    stores: list[Store] = []

    async def make(name: str, **config: Any) -> Proxy:
        stores.append(Store(own_process.url, fleet="test", proxy_id=name, call_timeout_s=5.0))
        await stores[-1].start()
        return Proxy(tmp_path / name, stores[-1], **config)

    yield make
    for store in stores:
        await store.close()


async def test_what_is_set_at_one_proxy_is_in_force_at_all(opened: Open) -> None:
    one, two = await opened("one"), await opened("two", set={"window": 8})
    await one.shared.agree()
    await two.shared.agree()  # its own configuration makes a policy of its own, not a version of its own
    assert (await one.set(hold_s=0.5), one.told[-1]) == (2, 2)
    await two.shared.agree()
    assert (two.hold_s, two.policies.policy.window, two.policies.policy.version) == (0.5, 8, 2)
    origins = {each.key: each.origin for each in two.policies.answer().settings if each.origin != "default"}
    assert origins == {"hold_s": "set", "window": "config"}
    assert await two.stored() == Shared(2, "", {"hold_s": 0.5})
    answer = await two.shared.change(lambda: two.policies.choose("latency"))
    await one.shared.agree()
    assert (answer.version, one.policies.preset, one.policies.policy.version) == (3, "latency", 3)
    assert one.policies.answer().preset_origin == "set"
    await one.shared.change(one.policies.reset)
    await two.shared.agree()
    assert two.policies.shared == Shared(4)


async def test_a_change_that_is_none_or_wrong_is_not_told(opened: Open) -> None:
    one = await opened("one")
    await one.set(hold_s=0.5)
    one.told.clear()
    assert await one.set(hold_s=0.5) == 2
    with pytest.raises(PolicyError):
        await one.set(hold_s="x")
    assert (one.told, await one.stored()) == ([], Shared(2, "", {"hold_s": 0.5}))


async def test_changes_at_the_same_time_are_all_in_force(opened: Open) -> None:
    proxies = [await opened(f"p{number}") for number in range(4)]
    keys: list[dict[str, Any]] = [{"hold_s": 0.5}, {"window": 8}, {"active_ms": 7.5}, {"age_credit": 2.0}]
    await asyncio.gather(*(proxy.set(**values) for proxy, values in zip(proxies, keys, strict=True)))
    for proxy in proxies:
        await proxy.shared.agree()
    wanted = {key: value for each in keys for key, value in each.items()}
    assert [proxy.policies.shared.set for proxy in proxies] == [wanted] * 4
    assert len({proxy.policies.policy.version for proxy in proxies}) == 1


async def test_without_the_store_a_change_holds_here_and_is_told_on_return(
    opened: Open, own_process: StoreProcess
) -> None:
    one, two = await opened("one"), await opened("two")
    await one.set(hold_s=0.5)
    await two.shared.agree()
    own_process.stop()
    with capture_logs() as logs:
        await one.set(hold_s=0.25)
    assert one.hold_s == 0.25
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] != []
    await two.shared.agree()
    assert two.hold_s == 0.5
    own_process.start()  # empty
    await back(one, two)
    await one.shared.agree()
    await two.shared.agree()
    assert (two.hold_s, await two.stored()) == (0.25, Shared(3, "", {"hold_s": 0.25}))


async def test_of_two_policies_the_higher_version_wins(opened: Open, own_process: StoreProcess) -> None:
    one, two = await opened("one"), await opened("two")
    await one.set(hold_s=0.5)
    own_process.stop()
    await two.set(window=8)
    await two.set(window=16)
    await two.set(window=32)
    await one.set(hold_s=0.25)
    own_process.start()
    await back(one, two)
    await two.shared.agree()
    with capture_logs() as logs:
        await one.shared.agree()
    assert one.policies.shared == two.policies.shared == Shared(4, "", {"window": 32})
    assert {
        "policy taken over from the fleet",
        "policy set here while the store was away is replaced by the fleet's",
    } <= {entry["event"] for entry in logs}


async def test_a_starting_proxy_takes_over_and_brings_what_an_empty_store_lacks(
    opened: Open, own_process: StoreProcess, tmp_path: Path
) -> None:
    one = await opened("one")
    await one.set(hold_s=0.5)
    two = await opened("two")
    await two.shared.agree()
    assert (two.hold_s, two.told) == (0.5, [])
    await one.store.close()
    await two.store.close()
    own_process.stop()
    own_process.start()
    again = await opened("two")  # from its file
    await again.shared.agree()
    assert (again.hold_s, again.told, await again.stored()) == (0.5, [2], Shared(2, "", {"hold_s": 0.5}))


async def test_a_document_of_another_version_of_slotgate(opened: Open) -> None:
    one = await opened("one")
    document = msgspec.json.encode({"version": 7, "set": {"hold_s": 0.5, "new_key": 1, "window": -1}, "more": 1})
    assert await one.store.set_policy(document, None) is not None
    await one.shared.agree()
    assert (one.hold_s, one.policies.policy.version) == (0.5, 7)
    assert len(one.policies.problems) == 2
    number, _ = await one.store.policy() or (0, b"")
    assert await one.store.set_policy(b"no policy", number) is not None
    await one.shared.agree()
    assert (await one.stored()).version == 7


async def test_news_of_a_policy_are_followed(opened: Open) -> None:
    one, two = await opened("one"), await opened("two")
    changed = asyncio.Event()
    two.policies.on_change = lambda _policy: changed.set()
    one.shared.on_set = lambda _version: two.shared.heard()
    await one.set(hold_s=0.5)
    async with asyncio.timeout(10):
        await changed.wait()
    assert two.hold_s == 0.5
    await two.shared.close()


async def back(*proxies: Proxy) -> None:
    """Wait until the store answers all of them."""
    for proxy in proxies:
        await until(partial(is_up, proxy.store), "the store is back", 20)


def is_up(store: Store) -> bool:
    return store.up and store.trouble is None


async def test_what_the_cli_sets_at_one_proxy_is_the_fleets(opened: Open) -> None:
    one, two = await opened("one"), await opened("two")
    await two.set(window=8)
    admin = AdminPolicy(
        one.policies,
        Journal(),
        RequestBook(None),
        Dispatcher(Scheduler(Policy()), one.store, Journal()),
        one.shared,
    )
    app = web.Application()
    admin.add_routes(app.router)
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/policy/set", json={"set": {"hold_s": "0.5"}})
        refused = await client.post("/policy/set", json={"set": {"hold_s": "x"}})
    assert (answer.status, refused.status) == (200, 400)
    assert await two.stored() == Shared(3, "", {"window": 8, "hold_s": 0.5})
