"""Subjects of the contract: the emulated llama-server in this process and, marked `real`, a real one as large."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.real_engine import KEY, MODEL_NAME, start_engine, stop_engine

SLOTS = 2
CONTEXT = 512


@dataclass
class Subject:
    """An engine under test."""

    url: str
    client: httpx.AsyncClient
    name: str

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def metric(self, name: str) -> float:
        text = (await self.get("/metrics")).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"llamacpp:{name} "))

    async def slots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/slots")).json()
        return found

    async def erase(self) -> None:
        """Forget every prompt, so that tests do not see each other's."""
        for slot in range(SLOTS):
            await self.post(f"/slots/{slot}?action=erase", {})


@pytest.fixture(scope="session")
def real_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="slotgate-contract-") as directory:
        engine = start_engine(Path(directory), tcp=True, slots=SLOTS, context_tokens=CONTEXT, host_cache_mib=0)
        yield engine.url
        stop_engine(engine)


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)


@pytest.fixture
async def emulated(tmp_path: Path) -> AsyncIterator[Subject]:
    model = EmulatedModel(MODEL_NAME, capabilities=("completion",))
    engine = EmulatedEngine(
        models=[model],
        slots=SLOTS,
        context=CONTEXT,
        speed=2,
        api_keys=(KEY,),
        save_path=str(tmp_path),
        answer_tokens=(300, 300),
    )
    async with engine, client_of(engine.url) as client:
        yield Subject(engine.url, client, "emulated")


@pytest.fixture
async def real(real_url: str) -> AsyncIterator[Subject]:
    async with client_of(real_url) as client:
        subject = Subject(real_url, client, "real")
        await subject.erase()
        yield subject


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.real)])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each of them in turn."""
    found: Subject = request.getfixturevalue(request.param)
    return found
