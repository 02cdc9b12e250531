"""Pulling and pushing, on the loop's virtual time; stores that two processes share included."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from proxy.emulated.ollama_files import MemoryFiles
from proxy.emulated.ollama_names import Name, read_name
from proxy.emulated.ollama_registry import Registry, RegistryError
from proxy.emulated.ollama_store import Store, weights_digest
from proxy.emulated.options import EmulatedModel
from tests.proxy.emulated.support import found, make_store

pytestmark = pytest.mark.looptime
TINY = EmulatedModel("tiny", size_bytes=100_000)
BLOB = weights_digest(TINY)
Records = AsyncGenerator[dict[str, Any], None]


def named(text: str) -> Name:
    name = read_name(text)
    assert name is not None
    return name


def registry(store: Store, *models: EmulatedModel, bytes_per_s: float = 10_000) -> Registry:
    return Registry(store, models or (TINY,), bytes_per_s)


async def told(records: Records) -> list[dict[str, Any]]:
    return [record async for record in records]


async def test_a_pull_tells_what_ollama_tells() -> None:
    store = make_store()
    records = await told(registry(store).pull(named("tiny")))
    statuses = [record["status"] for record in records]
    short = f"pulling {BLOB[7:19]}"
    assert (statuses[0], statuses[1]) == ("pulling manifest", short)
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    weights = [record for record in records if record.get("digest") == BLOB]
    assert list(weights[0]) == ["status", "digest", "total"]
    done = [record.get("completed", 0) for record in weights]
    assert done == sorted(done)
    assert (done[-1], weights[-1]["total"]) == (100_000, 100_000)
    assert len(weights) > 100  # ten seconds
    assert found(store, "tiny").facts.size_bytes == 100_000
    again = await told(registry(store).pull(named("tiny")))
    assert [record["completed"] for record in again if record.get("digest") == BLOB] == [100_000]


async def test_there_is_no_network_without_a_registry_and_no_model_that_it_does_not_have() -> None:
    none = Registry(make_store(), (), 1.0)
    with pytest.raises(RegistryError, match=r"dial tcp: lookup registry.ollama.ai: no such host"):
        await told(none.pull(named("x")))
    with pytest.raises(RegistryError, match="pull model manifest: file does not exist"):
        await told(registry(make_store()).pull(named("x")))


async def test_who_stops_listening_stops_it_and_the_next_goes_on() -> None:
    store = make_store()
    there = registry(store)
    async with aclosing(there.pull(named("tiny"))) as records:
        async for record in records:
            if record.get("completed", 0) > 30_000:
                break
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    rest = await told(there.pull(named("tiny")))
    assert asyncio.get_running_loop().time() - before < 8
    assert min(record["completed"] for record in rest if record.get("completed") and record["digest"] == BLOB) > 30_000
    assert store.has(BLOB)


async def test_pulls_of_one_process_share_a_download() -> None:
    there = registry(make_store())
    before = asyncio.get_running_loop().time()
    both = await asyncio.gather(told(there.pull(named("tiny"))), told(there.pull(named("tiny"))))
    assert asyncio.get_running_loop().time() - before < 12
    assert [records[-1]["status"] for records in both] == ["success", "success"]


async def test_pulls_of_two_processes_corrupt_each_other() -> None:
    files = MemoryFiles()
    stores = [Store(files), Store(files)]
    pulls = [told(registry(store).pull(named("tiny"))) for store in stores]
    results = await asyncio.gather(*pulls, return_exceptions=True)
    assert any(isinstance(result, RegistryError) and "digest mismatch" in str(result) for result in results)
    assert not stores[0].has(BLOB)
    await told(registry(stores[0]).pull(named("tiny")))  # from the start
    assert stores[0].has(BLOB)


async def test_a_download_can_fail_and_goes_on_later() -> None:
    store = make_store()
    with pytest.raises(RegistryError, match="unexpected EOF"):
        await told(registry(store).pull(named("tiny"), 40_000, "unexpected EOF"))
    assert not store.has(BLOB)
    rest = await told(registry(store).pull(named("tiny")))
    assert min(record["completed"] for record in rest if record.get("completed") and record["digest"] == BLOB) == 40_000


async def test_what_the_former_model_needed_goes() -> None:
    store = make_store(EmulatedModel("tiny", size_bytes=7))
    old = found(store, "tiny").blob
    records = await told(registry(store).pull(named("tiny")))
    assert "removing unused layers" in [record["status"] for record in records]
    assert not store.has(old)
    assert store.has(BLOB)


async def test_a_push_puts_it_there() -> None:
    store = make_store("mine")
    there = registry(store, bytes_per_s=10**9)
    mine = found(store, "mine")
    records = await told(there.push(named("me/mine"), mine.manifest))
    assert [records[0]["status"], *(record["status"] for record in records[-2:])] == [
        "retrieving manifest",
        "pushing manifest",
        "success",
    ]
    assert (await told(there.pull(named("me/mine"))))[-1]["status"] == "success"
    assert found(store, "me/mine").digest == mine.digest
    with pytest.raises(RegistryError, match=r"^Head .*blobs/sha256:.*no such host"):
        await told(Registry(store, (), 1.0).push(named("mine"), mine.manifest))
