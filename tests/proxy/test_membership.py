"""Whole proxies that name the same store and fleet: one uses what the other looks after, and follows its policy."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.admin_client import AdminClient, AdminError
from proxy.emulated.faults import Kind
from proxy.sharing import Sharing
from proxy.store import EmbeddedStore, Store
from proxy.store.valkey_files import short_enough
from tests.proxy.box import Box, box, emulated
from tests.proxy.test_admin_explain import waiting
from tests.wait import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """Options of a proxy at a store that others use too."""
    made = EmbeddedStore(tmp_path / "shared")
    await made.start()
    yield {"store": {"url": made.url, "lease_ttl_s": 1.0}}
    await made.stop()


def backends(running: Box) -> dict[str, str]:
    return {backend.name: backend.health for backend in running.app.admin.status().backends}


async def hold_s(directory: Path) -> object:
    """What `slotgate policy show` says of a key."""
    with AdminClient(directory / "state" / "admin.sock") as admin:
        answer = await asyncio.to_thread(admin.policy)
    return next(each.value for each in answer.settings if each.key == "hold_s")


async def test_a_proxy_without_backends_uses_those_of_the_other(tmp_path: Path, store: dict[str, Any]) -> None:
    async with box(tmp_path / "two", [], **store) as two:
        async with box(tmp_path / "one", [emulated(slots=4)], **store):
            await until(lambda: backends(two) == {"gpu0": "ready"}, "the other's backend is known")
            answer = await two.generate()
            assert answer.status_code == 200
            assert answer.headers["X-Slotgate-Backend"] == "gpu0"
        await until(lambda: not backends(two), "it leaves with its proxy")
        assert (await two.generate()).status_code in (404, 503)


async def test_who_may_restart_another_proxy_s_engine_is_told(tmp_path: Path, store: dict[str, Any]) -> None:
    async with box(tmp_path / "two", [], **store) as two, box(tmp_path / "one", [emulated()], **store):
        await until(lambda: backends(two) == {"gpu0": "ready"}, "the other's backend is known")
        with AdminClient(tmp_path / "two" / "state" / "admin.sock") as admin:
            with pytest.raises(AdminError, match=r"gpu0 is looked after by the proxy \S+ on box \S+: restart it there"):
                await asyncio.to_thread(admin.restart, "gpu0")


async def test_who_runs_where_is_known_to_all(tmp_path: Path, store: dict[str, Any]) -> None:
    engine = emulated(slots=4, speed=1.0)
    async with engine:
        config = store | {"backends": [{"url": engine.url, "name": "gpu0", "running_limit": 2}]}
        async with box(tmp_path / "one", [], **config) as one, box(tmp_path / "two", [], **config) as two:
            long = [asyncio.ensure_future(one.generate(f"story {n}", options={"num_predict": 400})) for n in range(2)]
            await until(lambda: two.app.views()[0].seats_elsewhere == 2, "both seats are known to the other")
            third = asyncio.ensure_future(two.generate("a short one"))
            await until(lambda: two.app.requests == 1, "it waits")
            assert one.app.views()[0].names_slots
            assert engine.max_concurrent_seen == 2
            await asyncio.gather(third, *long)
            assert engine.max_concurrent_seen == 2
            assert engine.deferred_max == 0


async def test_without_the_store_proxies_of_one_box_still_know_what_runs_where(tmp_path: Path) -> None:
    made = EmbeddedStore(tmp_path / "shared")
    await made.start()
    engine = emulated(slots=4, speed=1.0)
    async with engine:
        options: dict[str, Any] = {"store": {"url": made.url}, "backends": [{"url": engine.url, "name": "gpu0"}]}
        async with box(tmp_path / "one", [], **options) as one, box(tmp_path / "two", [], **options) as two:
            await until(lambda: len(two.app.views()) == 1, "the backend is known")
            await until(lambda: len(sockets(tmp_path)) == 2, "both listen")
            assert (await one.generate("with the store")).status_code == 200
            await made.stop()
            await until(lambda: all(each.app._membership._circle.whole for each in (one, two)), "they tell each other")
            long = [asyncio.ensure_future(one.generate(f"story {n}", options={"num_predict": 400})) for n in range(2)]
            await until(lambda: two.app.views()[0].seats_elsewhere == 2, "both seats are known to the other")
            assert two.app.views()[0].names_slots
            assert (await two.generate("a short one")).status_code == 200
            await asyncio.gather(*long)
            assert engine.deferred_max == 0
            await until(lambda: two.app.views()[0].seats_elsewhere == 0, "and their end")
    assert sockets(tmp_path) == []


def sockets(directory: Path) -> list[Path]:
    """Where proxies listen for each other."""
    short = [short_enough(directory / name / "state" / "direct" / "x.sock").parent for name in ("one", "two")]
    return [path for each in short for path in each.glob("*.sock")]


async def test_why_a_request_waits_counts_what_its_tenant_runs_at_the_other(
    tmp_path: Path, store: dict[str, Any]
) -> None:
    engine = emulated(slots=4)
    async with engine:
        options = {"backends": [{"url": engine.url, "name": "gpu0"}], "policy": {"set": {"tenant_max_running": 1}}}
        config = store | options
        async with box(tmp_path / "one", [], **config) as one, box(tmp_path / "two", [], **config) as two:
            engine.faults.add(Kind.HANG)
            asked = [asyncio.ensure_future(one.generate("one"))]
            await until(lambda: two.app.views()[0].seats_elsewhere == 1, "the other one knows that it runs")
            asked.append(asyncio.ensure_future(two.generate("two")))
            answer = await waiting(two)
            for each in asked:
                each.cancel()
    assert answer.wait is not None
    assert answer.wait.tenant_running == 1


async def test_a_policy_holds_for_the_whole_fleet(tmp_path: Path, store: dict[str, Any]) -> None:
    async with box(tmp_path / "one", [], **store), box(tmp_path / "two", [], **store):
        with AdminClient(tmp_path / "one" / "state" / "admin.sock") as admin:
            await asyncio.to_thread(admin.set_policy, {"hold_s": 0.25})

        async def follows() -> bool:
            return await hold_s(tmp_path / "two") == 0.25

        await until(follows, "the other proxy follows")
    async with box(tmp_path / "three", [], **store):
        assert await hold_s(tmp_path / "three") == 0.25, "so does one that starts later"


async def test_a_start_that_fails_half_way_ends_what_was_started(
    tmp_path: Path, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[bytes] = []

    async def fails(_sharing: Sharing) -> None:
        raise RuntimeError("the fleet does not answer")

    async def saved(_store: Store, payload: bytes, _at: int) -> None:
        pictures.append(payload)

    monkeypatch.setattr(Sharing, "start", fails)
    monkeypatch.setattr(Store, "save_picture", saved)
    before = asyncio.all_tasks()
    async with emulated() as engine:
        with pytest.raises(RuntimeError, match="does not answer"):
            async with box(tmp_path, [], backends=[{"url": engine.url, "name": "gpu0"}], **store):
                pass
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in left if "gpu0" in name or "watch" in name}, "nobody looks at engines any more"
    assert not pictures, "of a proxy that knows nothing"


async def test_a_gate_without_a_secret_is_refused_at_the_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("short")
    with pytest.raises(ValueError, match="secret"):
        async with box(tmp_path, [], box={"gate": "127.0.0.1:0", "secret_file": str(secret)}):
            pass
