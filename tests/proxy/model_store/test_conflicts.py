"""Models that have one name and are not one."""

from structlog.testing import capture_logs

from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.model_store.conflicts import ConflictLog, DoubtLog, chosen, conflicts, warning
from scheduler.domain import Engine


def facts(*models: ModelFacts, engine: Engine = Engine.OLLAMA) -> EngineFacts:
    return EngineFacts(engine, models=models)


def model(name: str, digest: str, modified_at: str = "") -> ModelFacts:
    return ModelFacts(name, digest, modified_at=modified_at)


def test_what_differs_is_found_by_name() -> None:
    backends = [
        ("gpu0", facts(model("Smol", "aa"), model("same:1b", "cc"))),
        ("gpu1", facts(model("smol:latest", "bb"), model("same:1b", "cc"), model("one", "dd"))),
        ("llama", facts(model("smol", "made-up"), engine=Engine.LLAMA_SERVER)),
    ]
    assert conflicts(backends) == {"smol:latest": {"gpu0": "aa", "gpu1": "bb"}}


def test_the_list_shows_what_most_have_then_what_is_newest() -> None:
    old, new = model("m", "aa", "2026-01-01T00:00:00Z"), model("m", "bb", "2026-02-01T00:00:00Z")
    assert chosen([old, new]).digest == "bb"
    assert chosen([old, new, old]).digest == "aa"
    assert chosen([model("m", "xx"), model("m", "yy")]).digest == "xx"


def test_the_warning_names_places_and_the_cure() -> None:
    text = warning("smol:latest", {"gpu0": "a" * 64, "gpu1": "b" * 64, "gpu2": "a" * 64})
    assert text == (
        "smol is not the same on all backends: aaaaaaaaaaaa on gpu0, gpu2; bbbbbbbbbbbb on gpu1. "
        "`slotgate pull smol` makes it so"
    )


def test_each_is_logged_once_until_it_changes() -> None:
    told = ConflictLog()
    with capture_logs() as logged:
        told.see({"m:latest": {"a": "1", "b": "2"}})
        told.see({"m:latest": {"a": "1", "b": "2"}})
        told.see({"m:latest": {"a": "1", "b": "3"}})
        told.see({})
        told.see({"m:latest": {"a": "1", "b": "3"}})
    assert [entry["digests"]["b"] for entry in logged] == ["2", "3", "3"]


def test_a_doubt_is_logged_once_until_it_changes() -> None:
    told = DoubtLog()
    with capture_logs() as logged:
        for backends in ((), ("a", "b"), ("a", "b"), ("a", "b", "c"), ()):
            told.see(backends)
    assert [entry["backends"] for entry in logged] == [("a", "b"), ("a", "b", "c")]
    assert "set store" in logged[0]["fix"]
