import msgspec
import pytest

from proxy.dialects import listing
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.dialects.listing import PsEntry, SlotEntry, human_number
from scheduler.domain import Engine
from tests.proxy.dialects.support import FACTS, NOW_NS, captured

SMOL = ModelFacts(
    name="smol",
    digest="e56e912d9f4104355ddcc0167bd5664f5e031da8759cbcefbc4a6ef00d30c601",
    size_bytes=98362720,
    modified_at="2026-11-29T19:12:43.799875269Z",
    family="llama",
    parameters=134_515_008,
    quantization="Q4_1",
    context_tokens=8192,
    embedding_length=576,
    vocabulary=49152,
)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(134_515_008, "134.52M"), (8_000_000_000, "8B"), (7_241_732_096, "7.2B"), (26_280_000, "26.28M"),
     (3_000_000, "3M"), (12_345, "12K"), (999, "999"), (0, "0")],
)  # fmt: skip
def test_numbers_of_weights(count: int, shown: str) -> None:
    assert human_number(count) == shown


def test_tags_as_captured() -> None:
    example = captured("ollama/004").answer
    assert listing.ollama_tags([SMOL]) == example
    entry = msgspec.json.decode(example)["models"][0]
    assert listing.ollama_tags([ModelFacts(name="x", listing=entry)]) == example
    assert listing.ollama_tags([]) == b'{"models":[]}'


def test_models_as_captured() -> None:
    assert listing.openai_models([SMOL]) == captured("ollama/070").answer + b"\n"
    assert listing.openai_model(SMOL, "smol") == captured("ollama/071").answer + b"\n"
    theirs = msgspec.json.decode(listing.openai_model(ModelFacts(name="hf.co/Me/x"), "hf.co/me/x"))
    assert (theirs["owned_by"], theirs["created"]) == ("me", 0)
    assert msgspec.json.decode(listing.openai_models([])) == {"object": "list", "data": []}


def test_ps_is_ollamas_with_slots() -> None:
    slots = (SlotEntry(0, "busy", "gpu0", 12, 4096), SlotEntry(1, "idle", "gpu0"))
    entry = PsEntry(SMOL, 324817386, 0, 4096, 1_795_980_258.25, slots)
    (shown,) = msgspec.json.decode(listing.ollama_ps([entry], NOW_NS))["models"]
    (example,) = msgspec.json.decode(captured("ollama/023").answer)["models"]
    assert shown.pop("slots") == [
        {"id": 0, "state": "busy", "backend": "gpu0", "cached_tokens": 12, "context_tokens": 4096},
        {"id": 1, "state": "idle", "backend": "gpu0", "cached_tokens": None, "context_tokens": None},
    ]
    assert list(shown) == list(example)
    assert shown | {"expires_at": ""} == example | {"expires_at": ""}
    assert shown["expires_at"] == "2026-11-29T19:24:18.25Z"


def test_the_longest_lived_and_the_newest_come_first() -> None:
    other = ModelFacts(name="other", modified_at="2026-11-30T00:00:00Z", listing={"name": "other"})
    shown = msgspec.json.decode(listing.ollama_ps([PsEntry(SMOL, expires_at_unix_s=1.0), PsEntry(other)], NOW_NS))
    assert [model["name"] for model in shown["models"]] == ["other:latest", "smol:latest"]
    tags = msgspec.json.decode(listing.ollama_tags([SMOL, other]))
    assert [model["name"] for model in tags["models"]] == ["other", "smol:latest"]
    models = msgspec.json.decode(listing.openai_models([SMOL, other]))
    assert [model["id"] for model in models["data"]] == ["other:latest", "smol:latest"]


def test_never_unloaded_and_own_details() -> None:
    entry = PsEntry(SMOL, details={"family": "x", "context_length": 8192, "embedding_length": 576})
    (shown,) = msgspec.json.decode(listing.ollama_ps([entry], NOW_NS))["models"]
    assert shown["expires_at"].startswith("2319-")
    assert shown["details"] == {"family": "x"}


def test_show_has_ollamas_fields_in_order() -> None:
    props = {
        "model_path": "/m/smol.gguf",
        "default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.800000011920929, "top_k": 40}},
    }
    facts = msgspec.structs.replace(FACTS, props=props, chat_template="{{ x }} <|end|>")
    raw = listing.ollama_show(facts, SMOL)
    assert b"\\u003c|end|\\u003e" in raw
    shown = msgspec.json.decode(raw)
    order = list(msgspec.json.decode(captured("ollama/006").answer.split(b',"tensors"')[0] + b"}"))
    assert [key for key in shown if key in order] == order
    assert list(shown)[len(order) :] == ["capabilities", "modified_at"]
    assert shown["model_info"] == {
        "general.architecture": "llama",
        "general.parameter_count": 134515008,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "llama.vocab_size": 49152,
    }
    assert shown["parameters"].splitlines()[:2] == [
        "num_ctx                        4096",
        "temperature                    0.8",
    ]
    assert "/m/" not in raw.decode()
    bare = msgspec.json.decode(listing.ollama_show(EngineFacts(engine=Engine.LLAMA_SERVER), ModelFacts(name="x")))
    assert bare["model_info"] == {"general.architecture": "unknown"}
    assert "parameters" not in bare


def test_slots_and_props() -> None:
    slots = [SlotEntry(0, "busy", "gpu0", 12, 4096), SlotEntry(0, "idle", "gpu1")]
    shown = msgspec.json.decode(listing.llamacpp_slots(slots))
    assert [(slot["id"], slot["is_processing"], slot["backend"], slot["n_ctx"]) for slot in shown] == [
        (0, True, "gpu0", 4096),
        (1, False, "gpu1", 0),
    ]
    assert listing.llamacpp_no_slot()[0] == 503
    facts = msgspec.structs.replace(
        FACTS, props={"model_path": "/secret", "media_marker": "x", "n": 1, "total_slots": 4}
    )
    props = msgspec.json.decode(listing.llamacpp_props([facts, FACTS]))
    assert props == {
        "n": 1, "total_slots": 8, "endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": False,
    }  # fmt: skip
    assert msgspec.json.decode(listing.llamacpp_props([]))["total_slots"] == 0


def test_root_as_captured() -> None:
    assert captured("ollama/001").answer == listing.ROOT_TEXT
