"""Which backends share a model store."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.model_store.grouping import Holder, doubt, doubtful, model_stores


def test_shared_and_own() -> None:
    stores = model_stores([Holder("b", "box/b", "disk"), Holder("a", "box/a", "disk"), Holder("c", "box/c")])

    assert [store.backends for store in stores] == [("a", "b"), ("c",)]
    assert stores[0].shown == "a, b"


def test_backends_without_a_known_directory_share_nothing() -> None:
    assert len(model_stores([Holder("a", "box/a"), Holder("b", "box/b")])) == 2


HOLDERS = [Holder("a", "1/a", "x"), Holder("b", "1/b", "x"), Holder("c", "2/c"), Holder("d", "2/d", "y")]


@given(st.permutations(HOLDERS))
def test_all_proxies_see_the_same(holders: list[Holder]) -> None:
    """Whatever each calls the backends, and in whatever order it knows them: locks and first backends agree."""
    renamed = [Holder(f"elsewhere-{each.backend_id}", each.store_id, each.directory) for each in holders]
    stores, others = model_stores(holders), model_stores(renamed)

    assert [store.id for store in stores] == [store.id for store in others]
    assert [store.backends[0] for store in stores] == ["a", "c", "d"]
    assert sorted(name for store in stores for name in store.backends) == ["a", "b", "c", "d"]


def test_two_on_this_host_that_nobody_knows_may_be_one() -> None:
    def found(*holders: Holder) -> tuple[str, ...]:
        return doubtful(model_stores(holders))

    unknown, other = Holder("b", "box/b", is_here=True), Holder("a", "box/a", is_here=True)
    assert found(unknown, other) == ("a", "b")
    assert found(unknown) == ()
    assert found(unknown, Holder("c", "box/c", "disk", is_here=True)) == ()
    assert found(unknown, Holder("d", "elsewhere/d")) == ()
    assert doubt(("a", "b")) == 'if a, b share a directory, set store = "NAME" in their [[backends]]'
