"""What is known of the models on disk."""

from typing import Any

import msgspec
import pytest

from proxy.dialects import ClientError
from proxy.dialects.facts import EngineFacts, ModelFacts
from proxy.endpoint import Endpoint, parse_endpoint
from proxy.model_store import models
from proxy.model_store.grouping import doubtful
from proxy.model_store.models import Models
from proxy.model_store.wishes import Change, Wish
from scheduler.domain import Backend, BackendView, Engine, Health, Residency


class Fleet:
    """Stands in for the fleet: what backends told, and who was asked to tell anew."""

    def __init__(self) -> None:
        self.known: dict[str, EngineFacts] = {}
        self.places: dict[str, str] = {}
        self.asked: list[str] = []
        self.news: dict[str, EngineFacts] = {}

    def facts(self, backend_id: str) -> EngineFacts | None:
        return self.known.get(backend_id)

    def endpoint(self, backend_id: str) -> Endpoint:
        if backend_id not in self.places:
            raise LookupError
        return parse_endpoint(self.places[backend_id])

    def store_id(self, backend_id: str) -> str:
        return f"box/{backend_id}"

    async def list_models(self, backend_id: str) -> None:
        self.asked.append(backend_id)
        self.known |= self.news


def facts(*names: str, store: str = "", engine: Engine = Engine.OLLAMA) -> EngineFacts:
    return EngineFacts(engine, models=tuple(ModelFacts(name, digest=f"d-{name}") for name in names), model_store=store)


def view(name: str, health: Health = Health.READY) -> BackendView:
    return BackendView(Backend(name, Engine.OLLAMA, slots=1, running_limit=1), health)


def scene(**known: EngineFacts) -> tuple[Models, Fleet, list[BackendView]]:
    fleet, views = Fleet(), [view(name) for name in known]
    fleet.known = known
    stands_in: Any = fleet
    return Models(stands_in, lambda: views), fleet, views


def test_ollamas_only_and_only_those_that_told() -> None:
    known, _, views = scene(a=facts("x", store="disk"), b=facts(store="disk"), c=facts(engine=Engine.LLAMA_SERVER))
    views += [view("silent")]
    assert [store.backends for store in known.stores()] == [("a", "b")]


def test_only_those_on_this_host_may_share_a_directory_unknown_to_us() -> None:
    known, fleet, _ = scene(a=facts(), b=facts(), c=facts(), d=facts(), e=facts(store="disk"))
    fleet.places = {
        "a": "http://127.0.0.1:1",
        "b": "http://localhost:2",
        "c": "http://10.0.0.1:3",
        "e": "http://[::1]:4",
    }
    assert doubtful(known.stores()) == ("a", "b")


def test_without_an_ollama_there_is_nothing_to_change() -> None:
    known, _, _ = scene(c=facts(engine=Engine.LLAMA_SERVER))
    with pytest.raises(ClientError) as refused:
        known.stores()
    assert refused.value.status == 501


def test_who_can_be_asked_is_known_at_each_moment() -> None:
    known, _, views = scene(a=facts(store="disk"), b=facts(store="disk"))
    [store] = known.stores()
    views[0] = view("a", Health.DOWN)
    assert known.usable(store) == ["b"]
    views[0] = view("a", Health.DRAINING)
    assert known.usable(store) == ["a", "b"]


def test_who_has_a_model_in_memory() -> None:
    known, _, views = scene(a=facts("smol"), b=facts("smol"))
    views[1] = msgspec.structs.replace(views[1], residencies=(Residency("smol:latest"),))
    assert known.loaded_on("Smol") == ["b"]
    assert known.loaded_on("other") == []


def test_digests() -> None:
    known, _, _ = scene(a=facts("Smol", store="disk"), b=facts("smol:latest", store="disk"))
    [store] = known.stores()
    assert known.digests(store, "smol") == {"d-Smol", "d-smol:latest"}
    assert known.digests(store, "nope") == frozenset()


@pytest.mark.parametrize(
    ("wish", "before", "after"),
    [
        (Wish(Change.PULL, "x", {}), (), ("x",)),
        (Wish(Change.CREATE, "x", {}), (), ("x",)),
        (Wish(Change.DELETE, "x", {}), ("x",), ()),
        (Wish(Change.COPY, "x", {}, destination="y"), ("x",), ("x", "y")),
    ],
)
async def test_a_change_is_seen_before_it_is_told(wish: Wish, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    known, fleet, _ = scene(a=facts(*before, store="disk"), b=facts(*before, store="disk"))
    fleet.news = {name: facts(*after, store="disk") for name in ("a", "b")}
    await known.changed(wish, known.stores())
    assert fleet.asked == ["a", "b"]
    assert all(known._shows(name, wish) for name in ("a", "b"))


async def test_one_that_shows_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SHOWN_WITHIN_S", 0.05)
    known, fleet, _ = scene(a=facts())
    await known.changed(Wish(Change.PULL, "x", {}), known.stores())
    assert fleet.asked == ["a"]
