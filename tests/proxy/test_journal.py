"""The journal: what is remembered of decisions, and that it is bounded whatever happens."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.journal import Journal
from scheduler.domain import (
    Backend,
    BackendView,
    Candidate,
    Decision,
    Engine,
    Health,
    Measured,
    Outcome,
    Prompt,
    Rejection,
    Snapshot,
)
from tests.proxy.test_obstacles import request


def decision(request_id: str = "r1", backends: int = 1, rejected: int = 0) -> Decision:
    ranking = tuple(
        Candidate(f"gpu{number}", 20.0 * (number + 1), {"active": 20.0 * (number + 1)}, 3, 600, 76)
        for number in range(backends)
    )
    return Decision(
        request_id, ranking, {f"down{number}": Rejection.DOWN for number in range(rejected)}, policy_version=4
    )


def test_a_decision_and_what_came_of_it() -> None:
    now = iter([100.0, 101.5])
    journal = Journal(clock=lambda: next(now))
    journal.decided("r1", decision(backends=2, rejected=1), slot=3, predicted=600)
    journal.ended("r1", Measured(prompt_tokens=676, cached_tokens=590, output_tokens=40, slot=3), Outcome.DONE)

    found = journal.explain("r1")
    assert found is not None
    [told] = found.decisions
    assert (found.id, found.outcome, found.ended_at_unix_s) == ("r1", "done", 101.5)
    assert (told.at_unix_s, told.policy_version, told.slot, told.predicted_cached_tokens) == (100.0, 4, 3, 600)
    assert [(each.backend, each.cost_ms, each.terms_ms, each.fresh_tokens) for each in told.ranking] == [
        ("gpu0", 20.0, {"active": 20.0}, 76),
        ("gpu1", 40.0, {"active": 40.0}, 76),
    ]
    assert told.rejections == {"down0": "down"}
    assert found.answer is not None
    assert (found.answer.prompt_tokens, found.answer.cached_tokens, found.answer.prompt_ms) == (676, 590, None)


def test_a_request_that_still_runs() -> None:
    journal = Journal()
    journal.decided("r1", decision(), None, None)
    found = journal.explain("r1")
    assert found is not None
    assert (found.outcome, found.ended_at_unix_s, found.answer) == (None, None, None)


def test_attempts_are_told_in_their_order() -> None:
    journal = Journal()
    journal.decided("r1", decision(backends=2), None, None)
    journal.decided("r1", decision(backends=0, rejected=2), None, None)
    journal.ended("r1", None, Outcome.FAILED)
    found = journal.explain("r1")
    assert found is not None
    assert [len(each.ranking) for each in found.decisions] == [2, 0]
    assert (found.outcome, found.answer) == ("failed", None)


def test_decisions_to_wait_are_told_with_what_stood_in_the_way() -> None:
    journal = Journal(clock=lambda: 100.0)
    full = BackendView(Backend("gpu0", Engine.OLLAMA, slots=4, running_limit=2), Health.READY, seats_leased=2)
    seen = (request(), Snapshot(5.0, (full,)))
    journal.waits("r1", Decision("r1", (), {"gpu0": Rejection.NO_ROOM}, policy_version=4), None, *seen)
    journal.waits("r1", decision(), 0.75, *seen)
    journal.waits("r1", decision(), None, *seen)
    journal.decided("r1", decision(), 3, 600)
    found = journal.explain("r1")
    assert found is not None
    assert [(each.waits, each.holds_s, each.tenant_full) for each in found.decisions] == [
        (True, None, False),
        (True, 0.75, False),
        (True, None, True),
        (False, None, False),
    ]
    assert (found.decisions[0].at_unix_s, found.decisions[0].details) == (100.0, {"gpu0": "2 of 2 seats taken"})
    assert len(journal) == 4


def test_the_prompt_of_one_that_waits_is_not_kept() -> None:
    journal = Journal()
    prompt = Prompt(tuple(range(1000)), ((256_000, 7),))
    known = sys.getrefcount(prompt)
    journal.waits("r1", decision(), None, request(prompt=prompt), Snapshot(0.0, ()))
    assert sys.getrefcount(prompt) == known


def test_what_was_never_decided_is_not_there() -> None:
    journal = Journal()
    journal.ended("r1", None, Outcome.REJECTED)
    assert journal.explain("r1") is None
    assert len(journal) == 0


def test_the_oldest_decisions_are_forgotten() -> None:
    journal = Journal(kept=3)
    for request_id in ("r1", "r2", "r1", "r3"):
        journal.decided(request_id, decision(request_id), None, None)
    first = journal.explain("r1")
    assert first is not None
    assert len(first.decisions) == 1
    journal.decided("r4", decision("r4"), None, None)
    assert journal.explain("r2") is None
    assert len(journal) == 3


def test_decisions_about_large_fleets_are_fewer() -> None:
    journal = Journal(kept=100, backends=64)
    for number in range(10):
        journal.decided(f"r{number}", decision(f"r{number}", backends=12, rejected=4), None, None)
    assert len(journal) == 4
    journal.decided("large", decision("large", backends=200), None, None)
    assert len(journal) == 1
    assert journal.explain("large") is not None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.sampled_from(["ends", "waits", "goes"])), max_size=60)
)
def test_it_is_bounded_and_consistent(steps: list[tuple[int, int, str]]) -> None:
    journal = Journal(kept=7, backends=12)
    for number, backends, what in steps:
        if what == "ends":
            journal.ended(f"r{number}", None, Outcome.DONE)
        elif what == "waits":
            journal.waits(f"r{number}", decision(f"r{number}", backends), None, request(), Snapshot(0.0, ()))
        else:
            journal.decided(f"r{number}", decision(f"r{number}", backends), None, None)
        known = [found for each in range(6) if (found := journal.explain(f"r{each}")) is not None]
        decisions = [told for found in known for told in found.decisions]
        assert len(decisions) == len(journal) <= 7
        assert sum(len(told.ranking) for told in decisions) <= 12
        assert len(journal._entries) == len(known)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_name(outcome: Outcome) -> None:
    journal = Journal()
    journal.decided("r1", decision(), None, None)
    journal.ended("r1", None, outcome)
    found = journal.explain("r1")
    assert found is not None
    assert found.outcome == outcome.value
