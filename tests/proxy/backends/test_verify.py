"""What the engine really took against what was wanted."""

from pathlib import Path

import msgspec
import pytest

from proxy.backends.probes import Description
from proxy.backends.verify import assumed_slots, make_backend, mismatches
from proxy.config import BackendConfig
from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Engine, Operation

LLAMA = Engine.LLAMA_SERVER


def description(slots: int = 4, context: int = 4096, *warnings: str) -> Description:
    facts = EngineFacts(LLAMA, models=(ModelFacts("Smol"),), slots=slots, slot_context_tokens=context)
    return Description(facts, frozenset({Operation.CHAT}), "slots", warnings)


def test_before_it_has_said_anything() -> None:
    config = BackendConfig(model=Path("/m/a.gguf"), slots=16)
    backend = make_backend("a", config, LLAMA, 3, expected_model="Smol")
    assert (backend.slots, backend.running_limit, backend.epoch, backend.managed) == (16, 8, 3, True)
    assert backend.models == {"smol:latest"}
    assert backend.slot_source == "leases"


def test_the_slots_of_the_engine_win() -> None:
    config = BackendConfig(url="http://box:1", slots=4, running_limit=6)
    backend = make_backend("a", config, LLAMA, 0, description=description(slots=2))
    assert (backend.slots, backend.running_limit, backend.managed) == (2, 2, False)
    assert backend.models == {"smol:latest"}
    assert backend.capabilities == {Operation.CHAT}
    assert backend.slot_source == "slots"
    assert make_backend("a", config, LLAMA, 0, description=description(slots=16)).running_limit == 6


def test_what_is_told_of_its_card_is_passed_on() -> None:
    assert make_backend("a", BackendConfig(url="http://box:1", gpu_name="RTX 4090"), LLAMA, 0).gpu_name == "RTX 4090"
    assert make_backend("a", BackendConfig(url="http://box:1"), LLAMA, 0).gpu_name is None


def test_mismatches_of_a_managed_engine() -> None:
    config = BackendConfig(model=Path("/m/a.gguf"), slots=4, context_tokens=4096)
    assert mismatches(config, description()) == ()
    assert mismatches(config, description(context=4352)) == ()
    assert mismatches(config, description(2, 2048, "start it with --metrics")) == (
        "start it with --metrics",
        "slots = 4 was wanted, the engine has 2",
        "context_tokens = 4096 was wanted, a slot of the engine has 2048",
    )


def test_an_external_engine_has_what_it_has() -> None:
    assert mismatches(BackendConfig(url="http://box:1"), description(2, 2048)) == ()
    config = BackendConfig(url="http://box:1", running_limit=4)
    assert mismatches(config, description(2)) == ("running_limit = 4 is more than the engine's 2 slots",)


def test_the_slots_of_an_external_ollama_are_an_assumption_until_configured() -> None:
    facts = EngineFacts(Engine.OLLAMA, slots=4)
    described = Description(facts, frozenset({Operation.CHAT}), "leases", slots_assumed=True)
    (warning,) = mismatches(BackendConfig(url="http://box:1"), described)
    assert "set slots to its OLLAMA_NUM_PARALLEL" in warning
    known = msgspec.structs.replace(described, slots_assumed=False)
    assert mismatches(BackendConfig(url="http://box:1"), known) == ()
    assert mismatches(BackendConfig(url="http://box:1", slots=4), known) == ()
    assert mismatches(BackendConfig(engine="ollama"), known) == ()
    (warning,) = mismatches(BackendConfig(url="http://box:1", slots=8), known)
    assert warning == "slots = 8 is configured, its OLLAMA_NUM_PARALLEL is 4"


def test_what_the_environment_overrides_is_no_mismatch() -> None:
    facts = EngineFacts(Engine.OLLAMA, slots=2, slot_context_tokens=2048)
    described = Description(facts, frozenset({Operation.CHAT}), "children")
    assert len(mismatches(BackendConfig(engine="ollama"), described)) == 2
    env = {"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_CONTEXT_LENGTH": "2048"}
    assert mismatches(BackendConfig(engine="ollama", env=env), described) == ()


def test_what_an_ollama_loads_is_told_by_model() -> None:
    models = (
        ModelFacts("Smol", context_tokens=8192, weights="ab", default_context=4096),
        ModelFacts("Embed:latest", context_tokens=512, capabilities=("embedding",)),
        ModelFacts("elsewhere:cloud"),
    )
    facts = EngineFacts(Engine.OLLAMA, models=models, slots=2, max_loaded=3)
    described = Description(facts, frozenset({Operation.CHAT}), "children")
    backend = make_backend("a", BackendConfig(engine="ollama"), Engine.OLLAMA, 1, description=described)
    assert backend.contexts == {"smol:latest": 4096}
    assert backend.most_context == {"smol:latest": 8192, "embed:latest": 512}
    assert backend.weights == {"smol:latest": "ab"}
    assert backend.embeds_only == {"embed:latest"}
    assert (backend.max_loaded, backend.slot_source) == (3, "children")
    other = make_backend("a", BackendConfig(), LLAMA, 1, description=described)
    assert (other.contexts, other.most_context, other.max_loaded) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("config", "engine", "slots"),
    [
        ({"url": "http://127.0.0.1:1"}, Engine.OLLAMA, 1),
        ({"url": "http://127.0.0.1:1", "slots": 4}, Engine.OLLAMA, 4),
        ({"url": "http://127.0.0.1:1"}, Engine.LLAMA_SERVER, 4),
        ({"engine": "ollama"}, Engine.OLLAMA, 4),
    ],
)
def test_an_external_ollama_has_one_slot_unless_told(config: dict[str, object], engine: Engine, slots: int) -> None:
    assert assumed_slots(BackendConfig.model_validate(config), engine) == slots


def test_a_running_limit_that_finds_itself_may_be_all_slots() -> None:
    fixed = make_backend("a", BackendConfig(slots=16), Engine.LLAMA_SERVER, 1)
    found = make_backend("a", BackendConfig(slots=16, running_limit="auto"), Engine.LLAMA_SERVER, 1)

    assert (fixed.running_limit, fixed.auto_limit) == (8, False)
    assert (found.running_limit, found.auto_limit) == (16, True)
