from collections.abc import Mapping
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from scheduler.costs import TERMS
from scheduler.decide import decide
from scheduler.domain import BackendView, Engine, Health, Rejection, Residency, Snapshot
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

NOW_S = 50.0
COOLING = {"cooling_until_s": 51.0, "health": Health.SUSPECT}
FULL = {"seats_leased": 2}


def fleet(**backends: Mapping[str, object]) -> Snapshot:
    views = [
        msgspec.structs.replace(BackendView(backend(backend_id), Health.READY), **changes)
        for backend_id, changes in backends.items()
    ]
    return Snapshot(NOW_S, tuple(views))


def order(snapshot: Snapshot, tried: frozenset[str] = frozenset()) -> list[str]:
    return [candidate.backend_id for candidate in decide(snapshot, request(), Policy(), tried).ranking]


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        pytest.param(fleet(), [], id="no-backends"),
        pytest.param(fleet(a={"last_used_s": 3.0}, b={"last_used_s": 2.0}), ["b", "a"], id="the-least-recently-used"),
        pytest.param(fleet(b={}, a={}), ["a", "b"], id="never-used-both: by id, not by place"),
        pytest.param(fleet(a={"seats_leased": 1}, b={}), ["b", "a"], id="the-less-busy-one"),
        pytest.param(fleet(a={"seats_elsewhere": 1}, b={}), ["b", "a"], id="busy-with-other-proxies'-requests"),
        pytest.param(fleet(a={"health": Health.SUSPECT}, b={"seats_leased": 1}), ["b", "a"], id="suspect-comes-last"),
        pytest.param(fleet(a={"health": Health.SUSPECT}, b=FULL), ["a"], id="suspect-before-waiting"),
        pytest.param(fleet(a=FULL, b={"health": Health.DOWN}), [], id="nothing-has-room"),
        pytest.param(fleet(a=COOLING, b={}), ["b"], id="cooling-is-avoided"),
        pytest.param(fleet(a=COOLING, b=FULL), [], id="rather-wait-for-a-good-one-than-use-a-cooling-one"),
        pytest.param(fleet(a=COOLING, b=COOLING), ["a", "b"], id="panic-all-are-cooling"),
        pytest.param(fleet(a=COOLING, b={"health": Health.SUSPECT}), ["b"], id="no-panic-while-a-suspect-one-has-room"),
        pytest.param(fleet(a=COOLING, b={"health": Health.SUSPECT, **FULL}), ["a"], id="panic-with-a-full-suspect-one"),
        pytest.param(fleet(a={**COOLING, **FULL}, b={"health": Health.DOWN}), [], id="panic-needs-room-too"),
        pytest.param(fleet(a={**COOLING, "cooling_firm": True}), [], id="no-panic-in-a-pause-that-was-asked-for"),
        pytest.param(
            fleet(a={"cooling_until_s": 51.0, "cooling_firm": True}, b=COOLING), [], id="no-panic-while-one-only-pauses"
        ),
    ],
)  # fmt: skip
def test_ranking(snapshot: Snapshot, expected: list[str]) -> None:
    assert order(snapshot) == expected


@pytest.mark.parametrize(
    ("snapshot", "tried", "expected"),
    [
        pytest.param(fleet(a={}, b={"seats_leased": 1}), {"a"}, ["b"], id="elsewhere"),
        pytest.param(fleet(a={}, b=FULL), {"a"}, [], id="rather-wait-for-an-untried-one"),
        pytest.param(fleet(a={}, b=COOLING), {"a"}, ["b"], id="panic-before-again"),
        pytest.param(fleet(a={}, b={"health": Health.DOWN}), {"a"}, ["a"], id="again-when-none-is-left"),
        pytest.param(fleet(a=COOLING), {"a"}, [], id="again-only-after-the-cool-down"),
        pytest.param(fleet(a={"health": Health.SUSPECT}, b={"draining": True}), {"a"}, ["a"], id="again-when-suspect"),
        pytest.param(fleet(a=FULL), {"a"}, [], id="again-needs-room"),
    ],
)
def test_backends_that_failed_the_request(snapshot: Snapshot, tried: set[str], expected: list[str]) -> None:
    assert order(snapshot, frozenset(tried)) == expected


def test_a_loaded_model_beats_an_idle_backend() -> None:
    ollama = {"backend": backend("a", limit=4, engine=Engine.OLLAMA), "seats_leased": 3}
    idle = {"backend": backend("b", limit=4, engine=Engine.OLLAMA), "residencies": (Residency(OTHER_MODEL),)}

    assert order(fleet(a={**ollama, "residencies": (Residency(MODEL),)}, b=idle)) == ["a", "b"]
    assert order(fleet(a=ollama, b=idle)) == ["b", "a"]


def test_a_decision_explains_itself() -> None:
    snapshot = fleet(a={"seats_leased": 1}, b={"health": Health.DOWN}, c=FULL)

    decision = decide(snapshot, request(), Policy(version=7, active_ms=20.0))

    assert decision.request_id == "r1"
    assert decision.policy_version == 7
    assert decision.best is not None
    assert decision.best.terms_ms == {"active": 20.0, "load": 0.0, "suspect": 0.0, "cooling": 0.0}
    assert decision.best.cost_ms == 20.0
    assert decision.rejections == {"b": Rejection.DOWN, "c": Rejection.NO_ROOM}


VIEWS = st.builds(
    BackendView,
    backend=st.builds(
        backend,
        st.sampled_from("abcdef"),
        limit=st.integers(1, 4),
        models=st.sampled_from([(), (MODEL,), (OTHER_MODEL,)]),
    ),
    health=st.sampled_from(Health),
    seats_leased=st.integers(0, 4),
    seats_elsewhere=st.integers(0, 2),
    foreign_busy=st.integers(0, 2),
    last_used_s=st.floats(0, 50),
    cooling_until_s=st.sampled_from([0.0, 60.0]),
    cooling_firm=st.booleans(),
    draining=st.booleans(),
)


@given(
    views=st.lists(VIEWS, max_size=6, unique_by=lambda view: view.backend.id),
    seats=st.integers(0, 3),
    tried=st.frozensets(st.sampled_from("abcdef")),
    shuffle=st.randoms(use_true_random=False),
)
def test_every_backend_is_either_ranked_or_rejected(
    views: list[BackendView], seats: int, tried: frozenset[str], shuffle: Random
) -> None:
    asked = request(seats=seats)
    decision = decide(Snapshot(NOW_S, tuple(views)), asked, Policy(), tried)
    ranked = [candidate.backend_id for candidate in decision.ranking]
    by_id = {view.backend.id: view for view in views}

    assert sorted([*ranked, *decision.rejections]) == sorted(by_id)
    for backend_id in ranked:
        view = by_id[backend_id]
        assert MODEL in view.backend.models
        assert view.health in (Health.READY, Health.SUSPECT)
        assert not view.draining
        assert view.room >= seats
    costs = [candidate.cost_ms for candidate in decision.ranking]
    assert costs == sorted(costs)
    assert all(candidate.terms_ms.keys() == TERMS.keys() for candidate in decision.ranking)

    shuffle.shuffle(views)
    again = decide(Snapshot(NOW_S, tuple(views)), asked, Policy(), tried)
    assert again.ranking == decision.ranking, "the order of the list does not matter"
