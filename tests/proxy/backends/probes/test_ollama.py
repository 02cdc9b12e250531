"""What Ollama is asked, and what its answers become: as captured."""

from collections.abc import AsyncIterator

import pytest

from proxy.backends.control import Control, ProbeError
from proxy.backends.probes.ollama import CAPABILITIES, OllamaProbe, parse_count, parse_expiry
from proxy.endpoint import parse_endpoint
from scheduler.domain import Residency
from tests.proxy.backends.answers import LOADED, TAG, Answers


@pytest.fixture
async def engine() -> AsyncIterator[Answers]:
    async with Answers.ollama() as running:
        yield running


@pytest.fixture
async def probe(engine: Answers) -> AsyncIterator[OllamaProbe]:
    made = OllamaProbe(Control(parse_endpoint(engine.url), 5), slots=4, slot_context_tokens=8192)
    yield made
    await made.close()


async def test_readiness(engine: Answers, probe: OllamaProbe) -> None:
    assert await probe.ready()
    await engine.stop()
    assert not await probe.ready()


async def test_description(probe: OllamaProbe) -> None:
    described = await probe.describe()
    facts = described.facts
    assert (facts.version, facts.slots, facts.slot_context_tokens) == ("0.33.0", 4, 8192)
    (model,) = facts.models
    assert (model.name, model.digest, model.size_bytes) == ("smol:latest", TAG["digest"], 98362861)
    assert (model.family, model.parameters, model.quantization) == ("llama", 134520000, "Q4_1")
    assert (model.context_tokens, model.embedding_length) == (8192, 576)
    assert model.capabilities == ("completion", "tools")
    assert model.listing == TAG
    assert described.capabilities == CAPABILITIES
    assert described.slot_source == "leases"


@pytest.mark.parametrize("nothing", [{"models": []}, {"models": None}, {}])
async def test_no_models(engine: Answers, probe: OllamaProbe, nothing: dict[str, object]) -> None:
    engine.set("/api/tags", 200, nothing)
    engine.set("/api/ps", 200, nothing)
    assert (await probe.describe()).facts.models == ()
    assert (await probe.look()).residencies == ()


async def test_an_older_listing_without_capabilities(engine: Answers, probe: OllamaProbe) -> None:
    engine.set("/api/tags", 200, {"models": [{"name": "old:1b"}]})
    (model,) = (await probe.describe()).facts.models
    assert (model.name, model.capabilities, model.parameters) == ("old:1b", ("completion",), 0)


async def test_a_look(probe: OllamaProbe) -> None:
    look = await probe.look()
    assert look.busy_slots is None
    assert look.deferred is None
    assert look.residencies == (
        Residency("smol:latest", 4096, size_bytes=324817386, gpu_bytes=1000, expires_at_unix_s=1795980193.662247),
    )


async def test_kept_for_ever(engine: Answers, probe: OllamaProbe) -> None:
    engine.set("/api/ps", 200, {"models": [LOADED | {"expires_at": "2318-03-09T01:02:03.123456789+01:00"}]})
    assert (await probe.look()).residencies[0].expires_at_unix_s is None


async def test_a_slow_list_of_loaded_models_means_busy_not_dead(engine: Answers) -> None:
    probe = OllamaProbe(Control(parse_endpoint(engine.url), 0.1), slots=1, slot_context_tokens=None)
    engine.delay_s["/api/ps"] = 30
    assert (await probe.look()).alive_only
    await probe.close()


async def test_dead_or_something_else(engine: Answers, probe: OllamaProbe) -> None:
    engine.set("/api/ps", 500, {})
    with pytest.raises(ProbeError, match="/api/ps was answered with status 500"):
        await probe.look()
    engine.set("/", 200, {})
    with pytest.raises(ProbeError, match="not with 'Ollama is running'"):
        await probe.look()
    engine.set("/api/tags", 500, {})
    with pytest.raises(ProbeError, match="/api/tags was answered with status 500"):
        await probe.describe()
    engine.set("/api/tags", 200, {"models": [{"size": "big"}]})
    with pytest.raises(ProbeError, match="something strange"):
        await probe.describe()
    await engine.stop()
    with pytest.raises(ProbeError, match="cannot connect"):
        await probe.look()


@pytest.mark.parametrize(
    ("text", "count"), [("134.52M", 134520000), ("8B", 8 * 10**9), ("", 0), ("999", 999), ("1.2.3B", 0), ("many", 0)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_expiries() -> None:
    assert parse_expiry("1970-01-01T00:00:10Z") == 10.0
    assert parse_expiry("1970-01-01T01:00:10.5+01:00") == 10.5
    assert parse_expiry("0001-01-01T00:00:00Z") is None
    assert parse_expiry("soon") is None
