"""Which loaded models pins want, and which of them must stay: tables of examples."""

from typing import Any

import pytest

from scheduler.domain import BackendView, Residency
from scheduler.events import Pin
from scheduler.planning import is_pinned, only_copies, serves_pin
from scheduler.runner import Runner
from tests.scheduler.test_planning import scene, view
from tests.scheduler.world import MODEL, OTHER_MODEL


def sized(name: str, context: int, **more: Any) -> BackendView:
    return view(name, residencies=(Residency(MODEL, context),), **more)


ANYWHERE, ON_B = Pin(MODEL, "", Runner(num_ctx=8192)), Pin(MODEL, "b", Runner(num_ctx=8192))


def test_only_a_copy_that_is_what_the_pin_wants_serves_it() -> None:
    for context, serves in ((4096, False), (8192, True), (32768, True)):
        there = sized("b", context)
        assert serves_pin(there, there.residencies[0], [ANYWHERE]) is serves
        assert serves_pin(there, there.residencies[0], [ON_B]) is serves
    assert not serves_pin(sized("a", 8192), Residency(MODEL, 8192), [ON_B])
    assert not serves_pin(view("a", OTHER_MODEL), Residency(OTHER_MODEL, 8192), [ANYWHERE])


@pytest.mark.parametrize(
    ("going", "views", "pin", "only"),
    [
        pytest.param("ab", (sized("a", 4096), sized("b", 8192)), ANYWHERE, ["b"], id="the-one-that-serves"),
        pytest.param("a", (sized("a", 4096), sized("b", 8192)), ANYWHERE, [], id="another-context"),
        pytest.param("a", (sized("a", 8192), sized("b", 8192)), ANYWHERE, [], id="one-is-left"),
        pytest.param("ab", (sized("a", 8192), sized("b", 8192)), ANYWHERE, ["a", "b"], id="all-of-them"),
        pytest.param("ab", (sized("a", 8192), sized("b", 8192)), ON_B, ["b"], id="the-one-that-is-meant"),
        pytest.param("a", (sized("a", 8192), sized("b", 8192, closing=frozenset({MODEL}))), ANYWHERE, ["a"], id="last"),
        pytest.param("a", (view("a", OTHER_MODEL), sized("b", 8192)), ANYWHERE, [], id="not-there"),
    ],
)
def test_what_cannot_be_unloaded_for_a_pin(
    going: str, views: tuple[BackendView, ...], pin: Pin, only: list[str]
) -> None:
    assert only_copies(MODEL, set(going), views, [pin]) == only
    if len(only) == 1 and all(not each.closing for each in views):  # the planner keeps just that one
        kept = [each.backend.id for each in views if is_pinned(each, each.residencies[0], scene(*views, pins=(pin,)))]
        assert kept == only
