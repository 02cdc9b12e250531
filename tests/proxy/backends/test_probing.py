"""Which questions suit a backend."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends.control import ProbeError
from proxy.backends.launch import Program
from proxy.backends.placement import Placement
from proxy.backends.probes import Probe
from proxy.backends.probing import OwnProcess, Probing
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig
from proxy.endpoint import parse_endpoint
from scheduler.domain import Engine
from tests.proxy.backends.answers import Answers
from tests.proxy.backends.played_ollama import SMOL, PlayedOllama

OPEN: list[Probe] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    while OPEN:
        await OPEN.pop().close()


async def opened(config: BackendConfig, own: OwnProcess | None = None, program: Program | None = None) -> Probe:
    probing = Probing(Placement("one", config, program), Cadence(timeout_s=1))
    OPEN.append(await probing.open(parse_endpoint(config.url or "http://127.0.0.1:1"), own))
    return OPEN[-1]


async def test_an_external_engine_is_asked_which_it_is() -> None:
    async with Answers.ollama() as ollama, Answers.llama_server() as llama:
        assert (await opened(BackendConfig(url=ollama.url))).engine is Engine.OLLAMA
        assert (await opened(BackendConfig(url=llama.url))).engine is Engine.LLAMA_SERVER
    with pytest.raises(ProbeError, match="cannot connect"):
        await opened(BackendConfig(url=ollama.url))


async def test_a_configured_one_is_not_asked() -> None:
    assert (await opened(BackendConfig(url="http://127.0.0.1:1", engine="ollama"))).engine is Engine.OLLAMA
    program = Program(Engine.LLAMA_SERVER, ("/bin/false",))
    assert (await opened(BackendConfig(), program=program)).engine is Engine.LLAMA_SERVER


async def test_what_was_configured_counts_where_nothing_better_is_known() -> None:
    async with Answers.ollama() as ollama:
        facts = (await (await opened(BackendConfig(url=ollama.url))).describe()).facts
        assert (facts.slots, facts.slot_context_tokens) == (1, None)
        config = BackendConfig(url=ollama.url, slots=3, context_tokens=2048)
        described = await (await opened(config)).describe()
        assert (described.facts.slots, described.facts.slot_context_tokens) == (3, 2048)
        assert not described.slots_assumed


async def test_of_its_own_ollama_slotgate_knows_the_process(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path) as ollama:
        child = await ollama.load("smol:latest", SMOL)
        await child.be(busy=[0, 1])
        config = BackendConfig(engine="ollama")
        program = Program(Engine.OLLAMA, ("/usr/bin/ollama",))
        probing = Probing(Placement("one", config, program), Cadence(child_spacing_s=0.0))
        own = OwnProcess(ollama.pid, {"OLLAMA_NUM_PARALLEL": "2"})
        probe = await probing.open(parse_endpoint(ollama.url), own)
        OPEN.append(probe)
        described = await probe.describe()
        assert (described.slot_source, described.facts.slots, described.warnings) == ("children", 2, ())
        assert described.facts.slot_context_tokens == 4096
        look = await probe.look()
        assert look.busy_slots == 2
        probing.loaded_by_default("smol")
        assert (await probe.look()).outdated
