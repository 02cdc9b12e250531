"""What a record says of a backend: nothing is lost, nothing grows without bound, and how the backend is reached."""

import hashlib
import zlib
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from proxy.backends import announced as module
from proxy.backends.announced import Announced, from_facts, reach, to_facts
from proxy.backends.boxes import Box
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.endpoint import Endpoint, Gate
from proxy.store.records import FACTS_MAX_BYTES
from scheduler.domain import Backend, Engine, Gpu, Operation
from tests.proxy.backends.remote_scene import GATE, HERE, LOOPBACK, NETWORK, THERE

TEMPLATE = "{{ messages }}" * 100
PROPS = {"chat_template": TEMPLATE, "modalities": {"vision": True}, "model_path": "/m.gguf", "media_marker": "<1>"}


def announced(**changes: Any) -> Announced:
    backend = Backend(
        "there-1/127.0.0.1:8080",
        Engine.LLAMA_SERVER,
        slots=4,
        running_limit=2,
        models=frozenset({"a", "b"}),
        capabilities=frozenset({Operation.CHAT}),
        gpu=Gpu("GPU-1", 0, "RTX 4090", 24 * 2**30),
        managed=True,
        epoch=7,
        model_bytes={"a": 1},
    )
    facts = EngineFacts(Engine.LLAMA_SERVER, models=(ModelFacts("a"),), chat_template=TEMPLATE, props=PROPS)
    plain = Announced("gpu", THERE, LOOPBACK, backend, gate=GATE, ready=True, facts=facts, facts_epoch=7)
    return msgspec.structs.replace(plain, **changes)


def through_the_store(facts: dict[str, Any]) -> dict[str, Any]:
    encoded = msgspec.json.encode(facts)
    assert len(encoded) <= FACTS_MAX_BYTES
    decoded: dict[str, Any] = msgspec.json.decode(encoded)
    return decoded


def random_name(number: int) -> str:
    """Something that cannot be packed well."""
    return "".join(f"{zlib.crc32(f'{number} {part}'.encode()):08x}" for part in range(16))


def test_nothing_is_lost_but_what_is_private_to_the_process() -> None:
    told = announced()
    facts = through_the_store(to_facts(told))
    heard = from_facts(facts)
    assert heard is not None
    assert heard.facts is not None
    assert told.facts is not None
    props = {key: value for key, value in PROPS.items() if key != "media_marker"}
    assert heard == msgspec.structs.replace(told, facts=msgspec.structs.replace(told.facts, props=props))
    assert {key: facts[key] for key in ("name", "box", "engine", "slots", "address", "gate")} == {
        "name": "gpu",
        "box": "there",
        "engine": "llama-server",
        "slots": 4,
        "address": "http://127.0.0.1:8080",
        "gate": "10.0.0.7:7000",
    }


def test_an_engine_that_has_not_said_anything_yet() -> None:
    told = announced(facts=None, gate=None)
    assert from_facts(through_the_store(to_facts(told))) == told


def test_hundreds_of_models_fit() -> None:
    listing = {"name": "x", "details": {"families": ["llama"], "quantization_level": "Q4_0", "format": "gguf"}}
    models = tuple(ModelFacts(f"model-{n}:latest", size_bytes=n, listing=listing) for n in range(500))
    told = announced(facts=EngineFacts(Engine.OLLAMA, models=models))
    with capture_logs() as logs:
        heard = from_facts(through_the_store(to_facts(told)))
    assert (heard, logs) == (told, [])


def test_hundreds_of_an_ollamas_models_fit() -> None:
    """With digests, which cannot be packed: of each one's manifest, and of what it is loaded from."""
    names = [f"model-{number}:latest" for number in range(400)]
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    weights = {name: hashlib.sha256(digest.encode()).hexdigest() for name, digest in digests.items()}
    models = tuple(ModelFacts(name, digest=digests[name], listing={"digest": digests[name]}) for name in names)
    facts = EngineFacts(Engine.OLLAMA, models=models)
    contexts = dict.fromkeys(names, 4096)
    backend = msgspec.structs.replace(
        announced().backend, models=frozenset(names), weights=weights, contexts=contexts, most_context=contexts
    )
    told = announced(backend=backend, facts=facts)
    said_twice = tuple(msgspec.structs.replace(model, weights=weights[model.name]) for model in models)
    with capture_logs() as logs:
        heard = from_facts(
            through_the_store(to_facts(announced(backend=backend, facts=EngineFacts(Engine.OLLAMA, models=said_twice))))
        )
    assert (heard, logs) == (told, [])


@pytest.mark.parametrize("count", [1500, 8000])
def test_too_much_is_shortened_and_told_in_the_log(count: int) -> None:
    names = [random_name(number) for number in range(count)]
    models = tuple(ModelFacts(name, listing={"digest": name[::-1]}) for name in names)
    backend = msgspec.structs.replace(
        announced().backend,
        models=frozenset(names),
        model_bytes=dict.fromkeys(names, 1),
        contexts=dict.fromkeys(names, 2),
        weights={name: name for name in names},
        embeds_only=frozenset(names),
    )
    told = announced(backend=backend, facts=EngineFacts(Engine.OLLAMA, models=models, chat_template=random_name(1)))
    with capture_logs() as logs:
        heard = from_facts(through_the_store(to_facts(told)))
    assert heard is not None
    assert heard.facts is not None
    assert len(heard.facts.models) < count
    assert heard.backend.models <= backend.models
    left = heard.backend
    assert left.model_bytes.keys() | left.contexts.keys() | left.weights.keys() | left.embeds_only <= left.models
    assert len(logs) == 1


def test_what_is_no_record_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    good = to_facts(announced())
    for bad in ({}, {"detail": 1}, {"detail": "x"}, {"detail": good["detail"][:-10]}, {"detail": "é"}):
        assert from_facts(bad) is None
    monkeypatch.setattr(module, "UNPACKED_MAX_BYTES", 100)
    assert from_facts(good) is None


KEY = (("Authorization", "Bearer k"),)
IN = Gate("10.0.0.7", 7000, "")


@pytest.mark.parametrize(
    ("box", "endpoint", "guarded", "gate", "headers", "expected"),
    [
        (HERE, LOOPBACK, False, None, (), LOOPBACK),
        (HERE, LOOPBACK, False, GATE, (), LOOPBACK),
        (HERE, LOOPBACK, True, GATE, KEY, msgspec.structs.replace(LOOPBACK, headers=KEY)),
        (HERE, LOOPBACK, True, GATE, None, msgspec.structs.replace(LOOPBACK, gate=IN)),
        (HERE, LOOPBACK, True, None, None, "API key"),
        (THERE, LOOPBACK, False, GATE, (), msgspec.structs.replace(LOOPBACK, gate=IN)),
        (THERE, LOOPBACK, False, None, (), "lets nobody in"),
        (THERE, LOOPBACK, True, None, KEY, "lets nobody in"),
        (THERE, Endpoint("localhost", unix_path="/x"), False, None, (), "lets nobody in"),
        (THERE, NETWORK, True, GATE, None, msgspec.structs.replace(NETWORK, gate=IN)),
        (THERE, NETWORK, False, None, (), NETWORK),
        (THERE, NETWORK, True, None, KEY, msgspec.structs.replace(NETWORK, headers=KEY)),
        (THERE, NETWORK, True, None, None, "API key"),
    ],
)
def test_how_it_is_reached(
    box: Box, endpoint: Endpoint, guarded: bool, gate: Gate | None, headers: Any, expected: Endpoint | str
) -> None:
    found, why = reach(announced(box=box, endpoint=endpoint, guarded=guarded, gate=gate), HERE, headers)
    if isinstance(expected, str):
        assert (found, expected in why) == (None, True)
    else:
        assert (found, why) == (expected, "")
