"""Which Ollama is the one for cloud models."""

from proxy.backends.cloud_choice import CloudChoice
from scheduler.domain import Backend, Engine
from scheduler.events import BackendChanged, BackendLeft, Event


def ollama(name: str, engine: Engine = Engine.OLLAMA) -> BackendChanged:
    return BackendChanged(Backend(id=name, engine=engine, slots=1, running_limit=1))


def marks(told: list[Event]) -> dict[str, bool]:
    return {event.backend.id: event.backend.cloud for event in told if isinstance(event, BackendChanged)}


def test_the_first_ollama_of_the_configuration_whichever_answers_first() -> None:
    choice = CloudChoice(["a", "b", "c"], None)
    assert marks(choice.take(ollama("a", Engine.LLAMA_SERVER))) == {"a": False}
    assert marks(choice.take(ollama("c"))) == {"c": True}
    assert marks(choice.take(ollama("b"))) == {"b": True, "c": False}
    assert marks(choice.take(ollama("c"))) == {"c": False}
    assert marks(choice.take(ollama("b"))) == {"b": True}


def test_an_engine_that_turns_out_to_be_another() -> None:
    choice = CloudChoice(["a", "b"], None)
    choice.take(ollama("a"))
    choice.take(ollama("b"))
    assert marks(choice.take(ollama("a", Engine.LLAMA_SERVER))) == {"a": False, "b": True}


def test_the_configured_one_and_no_other() -> None:
    choice = CloudChoice(["a", "b"], "b")
    assert marks(choice.take(ollama("a"))) == {"a": False}
    assert marks(choice.take(ollama("b"))) == {"b": True}


def test_other_facts_pass() -> None:
    left = BackendLeft("a")
    assert CloudChoice(["a"], None).take(left) == [left]
