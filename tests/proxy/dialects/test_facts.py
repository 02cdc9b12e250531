from proxy.dialects.facts import EngineFacts, ModelFacts
from scheduler.domain import Engine


def test_unknown_is_empty_not_invented() -> None:
    facts = EngineFacts(engine=Engine.OLLAMA, models=(ModelFacts(name="x"),))
    assert facts.slots is None
    assert facts.slot_context_tokens is None
    assert facts.models[0].capabilities == ("completion",)
    assert facts.models[0].listing == {}
