"""Changes that several want, that clients leave, that proxies and backends die under. In front of emulated Ollamas."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from proxy.emulated.options import EmulatedModel
from proxy.model_store.changes import advised, combined
from proxy.model_store.grouping import ModelStore
from proxy.model_store.single import Outcome
from proxy.model_store.wishes import Change, Wish
from tests.proxy.box import Box
from tests.proxy.model_store.rig import ADMIN, SMALL, TINY, fleet, has, lines, names, ollama
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until

SLOW = 2_000_000.0
"""Bytes per second: a pull of the small model takes two seconds."""


def slow(directory: Path | None = None, **values: Any) -> Any:
    return ollama(registry_bytes_per_s=SLOW, models_dir=str(directory or ""), **values)


class Pull:
    """A pull under way, read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.seen: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        self.seen.append(msgspec.json.decode(await anext(self._lines)))
        return self.seen[-1]

    async def some(self) -> None:
        """Read until bytes have come."""
        while not (await self.next()).get("completed"):
            pass

    async def rest(self) -> dict[str, Any]:
        """Read to the end; the last record."""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                await self.next()
        return self.seen[-1]


@contextlib.asynccontextmanager
async def pulling(running: Box, model: str = "tiny") -> AsyncIterator[Pull]:
    async with running.client.stream("POST", "/api/pull", json={"model": model}, headers=ADMIN) as response:
        assert response.status_code == 200
        yield Pull(response)


async def test_a_second_pull_joins_and_outlives_the_first(tmp_path: Path) -> None:
    engine = slow()
    async with fleet(tmp_path, [engine]) as running:
        async with pulling(running) as first, pulling(running) as second:
            await first.some()
            await second.some()
            assert running.app._membership.model_stores.changes.running == 1
            async with pulling(running) as third:  # leaves in the middle
                await third.some()
            assert (await second.rest())["status"] == "success"
            assert (await first.rest())["status"] == "success"
    assert engine_log(engine).count("/api/pull") == 1


async def test_when_the_last_one_leaves_it_ends_and_the_next_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    engine = slow(directory)
    async with fleet(tmp_path, [engine]) as running:
        changes = running.app._membership.model_stores.changes
        async with pulling(running) as first:
            await first.some()
            done = first.seen[-1]["completed"]
        await until(lambda: not changes.running, "the change has ended")
        await until(
            lambda: [each.client_left for each in engine.requests if each.path == "/api/pull"] == [True], "told"
        )
        assert list(directory.rglob("*-partial")), "what was pulled is kept"
        async with pulling(running) as second:
            await second.some()
            assert second.seen[-1]["completed"] >= done
            assert (await second.rest())["status"] == "success"


async def test_one_that_is_left_before_it_began_is_gone_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama()]) as running:
        changes = running.app._membership.model_stores.changes
        changes.leave(changes.begin(Wish(Change.PULL, "tiny", {"model": "tiny"})))
        await until(lambda: not changes.running, "it is not listed any more")


async def test_other_changes_wait_their_turn_and_say_so(tmp_path: Path) -> None:
    engine = slow()
    async with fleet(tmp_path, [engine]) as running:
        async with pulling(running) as first, pulling(running, "other") as second:
            await first.some()
            assert await second.next() == {"status": "waiting for another change of the model store"}
            assert (await first.rest())["status"] == "success"
            assert (await second.rest())["status"] == "success"
        assert await names(running) == ["other", "smol", "tiny"]


async def test_two_proxies_at_once_write_one_after_the_other(tmp_path: Path, short_dir: Path) -> None:
    """Two Ollamas with one directory, pulling the same blob at once, would destroy each other's parts."""
    store = StoreProcess("valkey", short_dir)
    store.start()
    directory = tmp_path / "models"
    first, second = slow(directory), slow(directory)
    config: dict[str, Any] = {"store": {"url": store.url}}
    try:
        async with (
            fleet(tmp_path / "a", [first, second], ["disk", "disk"], **config) as one,
            fleet(tmp_path / "b", [], backends=_same(one), **config) as other,
        ):
            async with pulling(one) as here, pulling(other) as there:
                await here.some()
                assert (await there.next())["status"] == "waiting for another change of the model store"
                assert (await here.rest())["status"] == "success"
                assert (await there.rest())["status"] == "success"
            assert await has(second) == ["smol", "tiny"]
            assert await names(other) == ["smol", "tiny"]
    finally:
        store.stop()


async def test_a_shared_directory_is_written_by_one(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    engines = [ollama(models_dir=str(directory)), ollama(models_dir=str(directory))]
    async with fleet(tmp_path, engines, ["disk", "disk"]) as running:
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        facts = [running.app._fleet.facts(name) for name in ("gpu0", "gpu1")]

    assert lines(answer.text)[-1] == {"status": "success"}
    assert sorted(engine_log(engine).count("/api/pull") for engine in engines) == [0, 1]
    assert all(
        any(model.name == "tiny:latest" for model in each.models) for each in facts if each
    )  # also the other one


async def test_a_backend_that_dies_in_the_middle_is_replaced_by_another_of_its_store(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    engines = [slow(directory), slow(directory)]
    async with fleet(tmp_path, engines, ["disk", "disk"]) as running:
        async with pulling(running) as pull:
            await pull.some()
            before = pull.seen[-1]["completed"]
            writer, other = sorted(engines, key=lambda engine: "/api/pull" not in engine_log(engine))
            writer.kill()
            await pull.some()
            assert pull.seen[-1]["completed"] >= before
            assert (await pull.rest())["status"] == "success"
        assert await has(other) == ["smol", "tiny"]


async def test_a_backend_that_dies_alone_is_named_and_the_next_pull_goes_on(tmp_path: Path) -> None:
    engines = [slow(tmp_path / "a"), slow(tmp_path / "b")]
    async with fleet(tmp_path, engines) as running:
        async with pulling(running) as pull:
            await pull.some()
            engines[1].kill()
            last = await pull.rest()
        assert last["error"].startswith("gpu1: backend gpu1 did not finish it: ")
        assert "done on 1 of 2" in last["error"]
        assert await has(engines[0]) == ["smol", "tiny"]


async def test_without_the_store_nothing_is_changed(tmp_path: Path, short_dir: Path) -> None:
    store = StoreProcess("valkey", short_dir)
    store.start()
    engine = ollama()
    async with fleet(tmp_path, [engine], store={"url": store.url}) as running:
        store.stop()
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        assert await has(engine) == ["smol"]

    assert answer.status_code == 503
    assert "store is away" in answer.json()["error"]


async def test_a_store_that_goes_ends_the_change_before_another_proxy_could_begin_one(
    tmp_path: Path, short_dir: Path
) -> None:
    store = StoreProcess("valkey", short_dir)
    store.start()
    engine = ollama(registry_bytes_per_s=1000.0)
    async with fleet(tmp_path, [engine], store={"url": store.url, "lease_ttl_s": 0.6}) as running:
        async with pulling(running) as pull:
            await pull.some()
            store.stop()
            last = await pull.rest()

    assert "store is away" in last["error"]


async def test_a_stop_tells_who_waits(tmp_path: Path) -> None:
    async with fleet(tmp_path, [slow()]) as running:
        async with pulling(running) as pull:
            await pull.some()
            running.app.stop()
            last = await pull.rest()

    assert "slotgate is stopping" in last["error"]


async def test_a_pinned_model_is_not_deleted(tmp_path: Path) -> None:
    async with fleet(tmp_path, [ollama()], residency={"models": {"smol": {"pin": True}}}) as running:
        answer = await running.client.request("DELETE", "/api/delete", json={"model": "smol"}, headers=ADMIN)
        assert await names(running) == ["smol"]

    assert answer.status_code == 409
    assert "slotgate unpin smol" in answer.json()["error"]


async def test_a_pull_cures_a_conflict(tmp_path: Path) -> None:
    other = EmulatedModel("tiny", size_bytes=SMALL + 1, weights="another")
    engines = [ollama(models=[TINY]), ollama(models=[other])]
    async with fleet(tmp_path, engines) as running:
        before = (await running.status()).warnings
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
        after = (await running.status()).warnings

    assert any(warning.startswith("tiny is not the same on all backends: ") for warning in before)
    assert lines(answer.text)[-1] == {"status": "success"}
    assert after == []


async def test_without_an_ollama(tmp_path: Path) -> None:
    async with fleet(tmp_path, []) as running:
        answer = await running.client.post("/api/pull", json={"model": "tiny"}, headers=ADMIN)
    assert answer.status_code == 501


STORES = [ModelStore(name, (name,)) for name in ("a", "b", "c")]


@pytest.mark.parametrize(
    ("change", "outcomes", "status", "error"),
    [
        (Change.PULL, [Outcome(), Outcome()], 200, ""),
        (Change.PULL, [Outcome(), Outcome(500, "x", "b")], 500, "b: x (done on 1 of 2 model stores)"),
        (Change.PULL, [Outcome(500, "x", "a"), Outcome(500, "x", "b")], 500, "x"),
        (Change.PULL, [Outcome(500, "x", "a"), Outcome(500, "y", "b")], 500, "a: x"),
        (Change.PULL, [Outcome(500, "x", "a")], 500, "x"),
        (Change.DELETE, [Outcome(404, "no", "a"), Outcome()], 200, ""),
        (Change.DELETE, [Outcome(404, "no", "a"), Outcome(404, "no", "b")], 404, "no"),
        (
            Change.COPY,
            [Outcome(404, "no", "a"), Outcome(), Outcome(500, "x", "c")],
            500,
            "c: x (done on 2 of 3 model stores)",
        ),
        (Change.PULL, [Outcome(404, "no", "a"), Outcome()], 404, "a: no (done on 1 of 2 model stores)"),
    ],
)
def test_one_result_of_several(change: Change, outcomes: list[Outcome], status: int, error: str) -> None:
    outcome = combined(Wish(change, "m", {}), STORES[: len(outcomes)], outcomes)
    assert (outcome.status, outcome.error) == (status, error)


@pytest.mark.parametrize(
    ("change", "error", "guessed", "is_told"),
    [
        (Change.PULL, "digest mismatch, file must be downloaded again: want x, got y", 2, True),
        (Change.PULL, "open /m/blobs/sha256-ab-partial-0: no such file or directory", 2, True),
        (Change.PULL, "lookup registry.ollama.ai: no such host", 2, False),
        (Change.PULL, "digest mismatch", 1, False),
        (Change.DELETE, "digest mismatch", 2, False),
    ],
)
def test_files_that_are_spoiled_are_told_with_what_may_have_done_it(
    change: Change, error: str, guessed: int, is_told: bool
) -> None:
    stores = [ModelStore(name, (name,), is_guessed=index < guessed) for index, name in enumerate("ab")]
    outcomes = [Outcome(), Outcome(500, error, "b")]
    said = advised(Wish(change, "m", {}), stores, outcomes, Outcome(500, f"b: {error}", "b"))
    advice = '; if a, b share a directory, set store = "NAME" in their [[backends]]' if is_told else ""
    assert (said.status, said.error) == (500, f"b: {error}{advice}")
    assert advised(Wish(change, "m", {}), stores, [Outcome(), Outcome()], Outcome()).ok


def engine_log(engine: Any) -> list[str]:
    return [request.path for request in engine.requests]


def _same(running: Box) -> list[dict[str, Any]]:
    """The backends of another proxy, configured here too."""
    return [
        {"url": each.endpoint, "name": each.name, "engine": "ollama", "store": "disk"}
        for each in running.app.admin.status().backends
    ]
