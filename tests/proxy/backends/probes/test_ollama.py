"""What Ollama is asked, and what its answers become: as captured."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends.control import Control, ProbeError
from proxy.backends.ollama_children import Finder
from proxy.backends.ollama_settings import ADVICE
from proxy.backends.probes.ollama import CAPABILITIES, Given, OllamaProbe, PsEntry, parse_count, parse_expiry
from proxy.backends.probes.ollama_models import Learned
from proxy.backends.probes.ollama_slots import OllamaSlots
from proxy.endpoint import parse_endpoint
from scheduler.domain import Residency
from scheduler.runner import Runner
from tests.proxy.backends.answers import LOADED, TAG, Answers
from tests.proxy.backends.played_ollama import OTHER, SMOL, PlayedOllama, model
from tests.wait import until


@pytest.fixture
async def engine() -> AsyncIterator[Answers]:
    async with Answers.ollama() as running:
        yield running


@pytest.fixture
async def probe(engine: Answers) -> AsyncIterator[OllamaProbe]:
    made = OllamaProbe(Control(parse_endpoint(engine.url), 5), Given(slots=4, context_tokens=8192))
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
    probe = OllamaProbe(Control(parse_endpoint(engine.url), 0.1), Given())
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


def probe_of(ollama: PlayedOllama, told: Given | None = None, learned: Learned | None = None) -> OllamaProbe:
    endpoint = parse_endpoint(ollama.url)
    children = OllamaSlots(Finder(endpoint), spacing_s=0)
    return OllamaProbe(Control(endpoint, 5), told or Given(), children, learned)


async def test_one_on_this_host_is_known_better(tmp_path: Path) -> None:
    settings = {"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_CONTEXT_LENGTH": "4096", "OLLAMA_MAX_LOADED_MODELS": "2"}
    models = [
        model("smol:latest", SMOL),
        model("copy:latest", SMOL, parameters="num_ctx                        1024"),
        model("embed:latest", OTHER, capabilities=("embedding",)),
    ]
    async with PlayedOllama(tmp_path, models, **settings) as ollama:
        probe = probe_of(ollama)
        described = await probe.describe()
        facts = described.facts
        assert (described.slot_source, described.slots_assumed) == ("children", False)
        assert (facts.slots, facts.slot_context_tokens, facts.max_loaded) == (2, 4096, 2)
        assert f"PID {ollama.pid} runs it" in facts.slot_source_why
        smol, copy, embed = facts.models
        assert (smol.weights, smol.default_context, smol.context_tokens) == (SMOL, 4096, 8192)
        assert (copy.weights, copy.default_context, embed.weights) == (SMOL, 1024, OTHER)
        assert all("set LLAMA_ARG_" in warning for warning in described.warnings)
        assert len(described.warnings) == 3
        assert await ollama.shown() == ["smol:latest", "copy:latest", "embed:latest"]

        child = await ollama.load("copy:latest", SMOL, 1024)
        await child.be(busy=[0])
        look = await probe.look()
        assert (look.busy_slots, look.working, look.outdated) == (1, True, False)
        [residency] = look.residencies
        assert (residency.model, residency.weights, residency.runner) == ("copy:latest", SMOL, Runner())
        assert [slot.busy for slot in residency.slots] == [True, False]
        assert (look.slots, look.started.startswith(f"{ollama.pid}/")) == ((), True)
        assert probe.spacing_s == 0
        await probe.describe()
        assert len(await ollama.shown()) == 3
        await probe.close()


async def test_a_model_that_is_deleted_while_it_is_loaded(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path) as ollama:
        probe = probe_of(ollama)
        await probe.describe()
        child = await ollama.load("smol:latest", SMOL)
        await child.be(busy=[0])
        await probe.look()
        await ollama.delete("smol:latest")
        for _ in range(5):
            described = await probe.describe()
            look = await probe.look()
        assert (described.slot_source, look.busy_slots) == ("children", 1)
        assert [(each.model, each.weights) for each in look.residencies] == [("smol:latest", SMOL)]
        await probe.close()

        later = probe_of(ollama)  # of a slotgate that was started since: it never saw what the name stood for
        for _ in range(5):
            described = await later.describe()
            await later.look()
        assert described.slot_source == "leases"
        assert described.facts.slot_source_why == (
            "smol was deleted or replaced while it was loaded: which llama-server runs it is not known, "
            "until its time is over"
        )
        await later.close()


async def test_what_an_operator_wants_of_one_that_slotgate_did_not_start(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path, OLLAMA_NUM_PARALLEL="4") as ollama:
        for configured, slots in ((2, 2), (8, 4)):
            probe = probe_of(ollama, Given(slots=configured, slots_configured=True, context_tokens=2048))
            facts = (await probe.describe()).facts
            assert (facts.slots, facts.models[0].default_context, facts.models[1].default_context) == (
                slots,
                2048,
                1024,
            )
            await probe.close()


async def test_the_environment_of_one_that_slotgate_started_is_known() -> None:
    """Overridden by `env` of its configuration: what it was really given counts."""
    environment = {"OLLAMA_NUM_PARALLEL": "8", "OLLAMA_CONTEXT_LENGTH": "2048"}
    async with Answers.ollama() as engine:
        told = Given(slots=4, slots_configured=True, context_tokens=4096, environment=environment)
        probe = OllamaProbe(Control(parse_endpoint(engine.url), 5), told)
        described = await probe.describe()
        assert (described.facts.slots, described.facts.slot_context_tokens) == (8, 2048)
        assert (described.warnings, described.slots_assumed) == ((), False)
        await probe.close()


async def test_one_whose_processes_are_out_of_sight(engine: Answers) -> None:
    probe = OllamaProbe(Control(parse_endpoint(engine.url), 5), Given(slots=1))
    described = await probe.describe()
    assert (described.slot_source, described.slots_assumed, described.warnings) == ("leases", True, (ADVICE,))
    assert described.facts.slot_source_why == "its processes were not looked for"
    assert (await probe.look()).busy_slots is None
    assert (described.facts.models[0].default_context, described.facts.max_loaded) == (None, 0)
    await probe.close()
    configured = OllamaProbe(Control(parse_endpoint(engine.url), 5), Given(max_loaded=2, slots_configured=True))
    described = await configured.describe()
    assert (described.facts.max_loaded, described.slots_assumed) == (2, False)
    await configured.close()


async def test_a_default_context_is_learned_where_nobody_tells_it(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path) as ollama:
        learned = Learned()
        probe = probe_of(ollama, learned=learned)
        assert [each.default_context for each in (await probe.describe()).facts.models] == [None, 1024]
        await ollama.load("smol:latest", SMOL, 4096)
        assert not (await probe.look()).outdated
        learned.expect("smol")
        assert (await probe.look()).outdated
        assert [each.default_context for each in (await probe.describe()).facts.models] == [4096, 1024]
        await ollama.stop()
        await ollama.start()
        await probe.look()
        assert [each.default_context for each in (await probe.describe()).facts.models] == [None, 1024]
        await probe.close()


async def test_a_load_that_ends_while_a_look_is_under_way_teaches_nothing_yet(engine: Answers) -> None:
    """What the look shows may be from before it."""
    learned = Learned()
    probe = OllamaProbe(Control(parse_endpoint(engine.url), 5), Given(), None, learned)
    await probe.describe()
    engine.delay_s["/api/ps"] = 0.2
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(probe.look())
        await until(lambda: engine.count("/api/ps") == 1, "the list is asked for")
        learned.expect("smol")
    assert looking.result().residencies[0].context_tokens == 4096
    assert learned.context("smol:latest") is None
    await probe.look()
    assert learned.context("smol:latest") == 4096
    await probe.close()


async def test_a_restart_is_seen_by_its_process(tmp_path: Path) -> None:
    async with PlayedOllama(tmp_path) as ollama:
        probe = probe_of(ollama)
        await probe.describe()
        before = (await probe.look()).started
        assert (await probe.look()).started == before
        await ollama.stop()
        await ollama.start()
        assert (await probe.look()).started not in {"", before}
        await probe.close()


async def test_a_loaded_model_that_is_new_is_asked_for_at_once(engine: Answers, probe: OllamaProbe) -> None:
    engine.set("/api/show", 200, {"modelfile": f"FROM /m/blobs/sha256-{SMOL}"})
    await probe.describe()
    engine.set("/api/ps", 200, {"models": [LOADED | {"name": "new:latest"}]})
    assert (await probe.look()).outdated
    assert not (await probe.look()).outdated  # it may never be listed: its name was removed since it was loaded
    engine.set("/api/tags", 200, {"models": [TAG, TAG | {"name": "new:latest", "digest": "d2"}]})
    await probe.describe()
    look = await probe.look()
    assert (look.residencies[0].weights, look.outdated) == (SMOL, False)


async def test_some_families_shift_no_full_context_unless_asked_to(engine: Answers, probe: OllamaProbe) -> None:
    for family, shifts in (("llama", True), ("deepseek2", False)):
        digest = f"digest of {family}"
        engine.set("/api/tags", 200, {"models": [TAG | {"digest": digest}]})
        info = {"general.architecture": family}
        engine.set("/api/show", 200, {"modelfile": f"FROM /m/blobs/sha256-{SMOL}", "model_info": info})
        await probe.describe()
        assert probe._loaded_one(PsEntry("smol:latest")).may_shift is shifts


async def test_models_elsewhere_are_not_asked_for(engine: Answers, probe: OllamaProbe) -> None:
    engine.set("/api/tags", 200, {"models": [TAG | {"remote_model": "big", "remote_host": "https://ollama.com:443"}]})
    [found] = (await probe.describe()).facts.models
    assert (found.weights, found.default_context, engine.count("/api/show")) == ("", None, 0)
