from collections.abc import Mapping
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from scheduler.costs import TERMS
from scheduler.decide import decide
from scheduler.domain import BackendView, Candidate, Engine, Gpu, Health, Measured, Rejection, Residency, Snapshot
from scheduler.leases import Lease, Ledger
from scheduler.memory import GpuMemory
from scheduler.outlook import Outlook, Reuses
from scheduler.policy import Policy
from tests.scheduler.prompts import Message
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request, talk

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


def test_only_where_the_model_is_loaded() -> None:
    ollama = {"backend": backend("a", limit=4, engine=Engine.OLLAMA), "seats_leased": 3}
    idle = {"backend": backend("b", limit=4, engine=Engine.OLLAMA), "residencies": (Residency(OTHER_MODEL),)}

    assert order(fleet(a={**ollama, "residencies": (Residency(MODEL),)}, b=idle)) == ["a"]
    assert order(fleet(a=ollama, b=idle)) == []


def test_why_a_model_is_not_there_is_said() -> None:
    def seen(name: str, *loaded: Residency, **more: Any) -> dict[str, Any]:
        known = backend(name, engine=Engine.OLLAMA, contexts={MODEL: 4096})
        return {name: {"backend": known, "residencies": loaded, **more}}

    small = Residency(MODEL, context_tokens=2048)
    closing = seen("c", small, closing=frozenset({MODEL}))
    snapshot = fleet(
        **seen("a", small), **seen("b", small, loading=OTHER_MODEL), **closing, **seen("d", Residency(OTHER_MODEL))
    )

    decision = decide(snapshot, request(), Policy())

    assert set(decision.rejections.values()) == {Rejection.NOT_LOADED}
    assert list(decision.details.values()) == [
        "resident with context 2048, 4096 wanted",
        "llama3 is being loaded",
        "qwen3 is about to be unloaded",
        "its model is not in memory there",
    ]


def test_a_decision_explains_itself() -> None:
    snapshot = fleet(a={"seats_leased": 1}, b={"health": Health.DOWN}, c=FULL)

    decision = decide(snapshot, request(), Policy(version=7, active_ms=20.0))

    assert decision.request_id == "r1"
    assert decision.policy_version == 7
    assert decision.best is not None
    assert decision.best.terms_ms == dict.fromkeys(TERMS, 0.0) | {"active": 20.0}
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


# With an outlook on what backends hold


class Known:
    """Backends `a` and `b`, and what runs there."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.outlook = Outlook(self.ledger)
        self.fleet = fleet(a={"names_slots": True}, b={"names_slots": True})
        for view in self.fleet.backends:
            self.outlook.changed(view.backend)

    def runs(self, backend_id: str, tokens: int) -> Lease:
        """A prompt of so many tokens is being computed."""
        lease = Lease(f"n{tokens}", "r", backend_id, 1, 1, MODEL, NOW_S)
        self.ledger.claim(lease)
        self.outlook.claimed(lease, request("r"), Candidate(backend_id, 0.0, {}, None, 0, tokens))
        return lease

    def holds(self, backend_id: str, *messages: Message) -> None:
        """An answer to this is complete."""
        view = next(view for view in self.fleet.backends if view.backend.id == backend_id)
        wanted = talk("r", *messages)
        lease = Lease("held", "r", backend_id, 1, 1, MODEL, 0.0)
        self.ledger.claim(lease)
        self.outlook.claimed(lease, wanted, Candidate(backend_id, 0.0, {}, 0, 0, 1))
        self.ledger.grant("held", 0.0)
        self.outlook.granted(lease, view, wanted, 0.0)
        length = sum(tokens for _, tokens in messages)
        self.outlook.done(lease, view.backend, wanted, Measured(prompt_tokens=length, output_tokens=11), 1, 1.0)
        self.ledger.release("held", 1.0)
        self.outlook.gone(lease, 1.0)


def test_a_prompt_goes_where_most_of_it_is_and_says_which_slot_it_shall_use() -> None:
    known = Known()
    known.holds("b", (1, 2000))

    decision = decide(known.fleet, talk("r", (1, 2000), (2, 10), (3, 100)), Policy(), frozenset(), known.outlook)

    first, second = decision.ranking
    assert (first.backend_id, first.slot, first.reused_tokens, first.fresh_tokens) == ("b", 0, 2010, 100)
    assert (second.backend_id, second.reused_tokens, second.fresh_tokens) == ("a", 0, 2110)
    assert first.cost_ms == pytest.approx(sum(first.terms_ms.values()))


def test_but_not_at_the_price_of_stalling_many_for_little() -> None:
    known = Known()
    known.holds("b", (1, 64))
    crowded = fleet(a={"names_slots": True}, b={"seats_leased": 1, "names_slots": True})

    decision = decide(crowded, talk("r", (1, 64), (2, 10), (3, 2000)), Policy(), frozenset(), known.outlook)

    assert decision.ranking[0].backend_id == "a"


def test_a_weight_of_nothing_ignores_what_backends_hold() -> None:
    known = Known()
    known.holds("b", (1, 2000))

    decision = decide(known.fleet, talk("r", (1, 2000)), Policy(prefill_weight=0.0), frozenset(), known.outlook)

    assert decision.ranking[0].backend_id == "a"


def test_what_was_read_of_the_mirrors_is_kept_for_the_next_time() -> None:
    known, memory = Known(), Reuses()

    decide(known.fleet, talk("r", (1, 100)), Policy(), frozenset(), known.outlook, memory)

    assert set(memory) == {"a", "b"}


LIMITED = Policy(max_prefills=1, prefill_counts_tokens=256)


@pytest.mark.parametrize(
    ("running", "policy", "tokens", "expected"),
    [
        pytest.param([], LIMITED, 1000, None, id="nothing-is-computed"),
        pytest.param([1000], LIMITED, 1000, Rejection.PREFILLING, id="one-prompt-is-and-no-more-may"),
        pytest.param([1000], LIMITED, 255, None, id="a-short-one-stalls-nobody"),
        pytest.param([1000], LIMITED, 256, Rejection.PREFILLING, id="this-one-is-not-short"),
        pytest.param([255, 254], LIMITED, 1000, None, id="short-ones-do-not-count"),
        pytest.param([1000], Policy(), 1000, None, id="without-a-limit"),
        pytest.param([1000], Policy(max_prefills=2), 1000, None, id="two-may"),
        pytest.param([1], Policy(max_prefills=1, prefill_counts_tokens=0), 1, Rejection.PREFILLING, id="each-counts"),
        pytest.param([0], Policy(max_prefills=1, prefill_counts_tokens=0), 1000, None, id="but-not-without-a-prompt"),
        pytest.param([1000], Policy(max_prefills=1, prefill_counts_tokens=0), 0, None, id="nor-one-without-it"),
    ],
)
def test_prompts_that_a_backend_computes_at_once(
    running: list[int], policy: Policy, tokens: int, expected: Rejection | None
) -> None:
    known = Known()
    for size in running:
        known.runs("a", size)
    asked = talk("r", (1, tokens)) if tokens else request("r")

    decision = decide(known.fleet, asked, policy, frozenset(), known.outlook)

    assert decision.rejections.get("a") is expected
    assert [candidate.backend_id for candidate in decision.ranking].count("b") == 1


def test_a_prompt_counts_no_more_once_its_answer_began() -> None:
    known = Known()
    known.runs("a", 1000).committed = True

    assert decide(known.fleet, talk("r", (1, 1000)), LIMITED, frozenset(), known.outlook).rejections == {}


def test_a_model_that_does_not_fit_in_memory_is_not_loaded() -> None:
    gib = 2**30
    card = Gpu("GPU-1", 0, "NVIDIA GeForce RTX 4090", 24 * gib)
    ollama = msgspec.structs.replace(backend("a", engine=Engine.OLLAMA), gpu=card, model_bytes={MODEL: 5 * gib})
    snapshot = fleet(a={"backend": ollama}, b={})
    known = Known()
    known.outlook.loads.sampled("a", GpuMemory(24 * gib, 2 * gib, None, NOW_S), NOW_S)

    decision = decide(snapshot, request("r"), Policy(), frozenset(), known.outlook)

    assert decision.rejections == {"a": Rejection.NO_MEMORY}
    assert decision.details["a"].startswith("loading takes 5.0 GiB: 2.0 of 24.0 GiB are free")
    assert [candidate.backend_id for candidate in decision.ranking] == ["b"]
