"""What llama-server is asked, and what its answers become: as captured, and from the real one."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.backends.control import Control, ProbeError
from proxy.backends.probes.llama_server import LlamaServerProbe, _public_name, model_capabilities, parse_metrics
from proxy.endpoint import parse_endpoint
from scheduler.domain import Operation, Residency, SlotState
from tests.proxy.backends.answers import BUSY_SLOTS, LOADING, META, NOT_SUPPORTED, PROPS, UNAUTHORIZED, Answers
from tests.real_engine import MODEL_NAME, SLOT_CONTEXT_TOKENS, SLOTS, RealEngine


@pytest.fixture
async def engine() -> AsyncIterator[Answers]:
    async with Answers.llama_server() as running:
        yield running


@pytest.fixture
async def probe(engine: Answers) -> AsyncIterator[LlamaServerProbe]:
    made = LlamaServerProbe(Control(parse_endpoint(engine.url), 5))
    yield made
    await made.close()


async def test_readiness(engine: Answers, probe: LlamaServerProbe) -> None:
    assert await probe.ready()
    engine.set("/health", 503, LOADING)
    assert not await probe.ready()
    await engine.stop()
    assert not await probe.ready()
    assert probe.describe_every_s == math.inf


async def test_description(probe: LlamaServerProbe) -> None:
    described = await probe.describe()
    facts = described.facts
    assert (facts.slots, facts.slot_context_tokens, facts.version) == (2, 4096, "b11434-abc")
    assert [model.name for model in facts.models] == ["smol", "tiny"]
    model = facts.models[0]
    assert (model.size_bytes, model.parameters, model.quantization) == (96576768, 134515008, "Q4_1")
    assert (model.context_tokens, model.embedding_length, model.vocabulary) == (8192, 576, 49152)
    assert model.capabilities == ("completion",)
    assert facts.props["model_alias"] == "smol"
    assert facts.started == f"1541702596{PROPS['media_marker']}"
    assert described.epoch_hint == 1541702596
    assert described.slot_source == "slots"
    assert described.warnings == ()
    assert described.capabilities == {
        Operation.CHAT, Operation.GENERATE, Operation.TOKENIZE, Operation.LOAD, Operation.UNLOAD,
    }  # fmt: skip


async def test_digests_of_equal_models_agree_and_of_others_differ(engine: Answers, probe: LlamaServerProbe) -> None:
    first = (await probe.describe()).facts.models
    assert first[0].digest == first[1].digest
    assert len(first[0].digest) == 64
    engine.set("/props", 200, PROPS | {"model_path": "/elsewhere/SmolLM2-135M-Instruct.Q4_1.gguf"})
    assert (await probe.describe()).facts.models[0].digest == first[0].digest
    engine.set("/v1/models", 200, {"data": [{"id": "smol", "meta": META | {"n_params": 1}}]})
    assert (await probe.describe()).facts.models[0].digest != first[0].digest


async def test_what_it_can_do_is_asked(engine: Answers, probe: LlamaServerProbe) -> None:
    engine.set("/v1/embeddings", 400, {})
    engine.set("/v1/chat/completions", 501, NOT_SUPPORTED)
    described = await probe.describe()
    assert Operation.EMBED in described.capabilities
    assert Operation.CHAT not in described.capabilities
    assert described.facts.models[0].capabilities == ("embedding",)


async def test_without_slots_and_metrics(engine: Answers, probe: LlamaServerProbe) -> None:
    engine.set("/props", 200, PROPS | {"endpoint_slots": False})
    engine.set("/metrics", 501, NOT_SUPPORTED)
    described = await probe.describe()
    assert described.slot_source == "leases"
    assert len(described.warnings) == 2
    look = await probe.look()
    assert (look.busy_slots, look.deferred, look.slots) == (None, None, ())
    assert engine.count("/slots") == 0
    assert engine.count("/metrics") == 1


async def test_a_look(engine: Answers, probe: LlamaServerProbe) -> None:
    await probe.describe()
    engine.set("/slots", 200, BUSY_SLOTS)
    engine.set_metrics(processing=1, deferred=3, decodes=100)
    look = await probe.look()
    assert (look.busy_slots, look.deferred, look.working) == (1, 3, True)
    assert look.slots == (SlotState(0, True, 4096, 50), SlotState(1, False, 4096, None))
    expected = [Residency(name, context_tokens=4096, size_bytes=96576768) for name in ("smol:latest", "tiny:latest")]
    assert list(look.residencies) == expected
    engine.set_metrics(processing=1, deferred=3, decodes=101)
    assert (await probe.look()).progress != look.progress


async def test_a_sleeping_engine_is_left_asleep(engine: Answers, probe: LlamaServerProbe) -> None:
    await probe.describe()
    before = engine.count("/metrics")
    engine.set("/props", 200, PROPS | {"is_sleeping": True})
    look = await probe.look()
    assert look.sleeping
    assert look.residencies == ()
    assert (engine.count("/slots"), engine.count("/metrics")) == (0, before)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, UNAUTHORIZED, "wants an API key"),
        (503, LOADING, "loads its model"),
        (500, {}, "/props was answered with status 500"),
        (200, ["what"], "not what the engine should say"),
        (200, PROPS | {"total_slots": 0}, "router of several models"),
    ],
)
async def test_bad_answers_in_plain_words(
    engine: Answers, probe: LlamaServerProbe, status: int, body: Any, message: str
) -> None:
    engine.set("/props", status, body)
    with pytest.raises(ProbeError, match=message) as caught:
        await probe.describe()
    assert caught.value.loading == (status == 503)


def test_metrics_text() -> None:
    body = b'# HELP llamacpp:a x\nllamacpp:a 1\nllamacpp:b{position="1"} 2\nllamacpp:c 1.5e+06\nother 3\n'
    assert parse_metrics(body) == {"a": 1.0, "c": 1.5e6}


def test_capabilities_in_the_words_of_ollama() -> None:
    both = frozenset({Operation.CHAT, Operation.INFILL})
    props = {
        "chat_template": "{% if enable_thinking %}<think>{% endif %}",
        "chat_template_caps": {"supports_tools": True},
        "modalities": {"vision": True, "audio": False},
    }
    assert model_capabilities(props, both) == ("completion", "tools", "vision", "insert", "thinking")
    assert model_capabilities({}, frozenset({Operation.EMBED})) == ("embedding",)


@pytest.mark.real
async def test_the_real_one(real_engine: RealEngine) -> None:
    probe = LlamaServerProbe(Control(real_engine.endpoint, 5))
    assert await probe.ready()
    described = await probe.describe()
    facts = described.facts
    assert (facts.slots, facts.slot_context_tokens) == (SLOTS, SLOT_CONTEXT_TOKENS)
    assert [model.name for model in facts.models] == [MODEL_NAME]
    assert facts.models[0].parameters == 134515008
    assert described.warnings == ()
    assert Operation.CHAT in described.capabilities
    assert not {Operation.EMBED, Operation.RERANK, Operation.INFILL} & described.capabilities
    look = await probe.look()
    assert look.busy_slots is not None
    assert len(look.slots) == SLOTS
    assert look.deferred == 0
    await probe.close()


@pytest.mark.real
async def test_the_real_one_over_tcp(real_engine_tcp: RealEngine) -> None:
    probe = LlamaServerProbe(Control(real_engine_tcp.endpoint, 5))
    assert (await probe.describe()).facts.slots == SLOTS
    await probe.close()


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("/models/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1"),
        ("smol", "smol"),
        ("org/name:Q4", "org/name:Q4"),
        ("/odd", "/odd"),
    ],
)
def test_a_path_is_no_name(name: str, public: str) -> None:
    assert _public_name(name) == public


async def test_it_may_have_to_serve_a_certain_model(engine: Answers) -> None:
    control = Control(parse_endpoint(engine.url), 5)
    assert (await LlamaServerProbe(control, serves=PROPS["model_path"]).look()).busy_slots == 0
    with pytest.raises(ProbeError, match="it serves /models/SmolLM2") as caught:
        await LlamaServerProbe(control, serves="/models/other.gguf").look()
    assert caught.value.another
    assert engine.count("/slots") == 1  # another one's slots are nobody's business
    await control.close()
