"""Who goes next. What holding is for is in `test_holding`, shares of tenants in `test_tenants`."""

from typing import Any

import pytest

from scheduler.domain import Health
from scheduler.health import Life
from scheduler.policy import Policy
from tests.scheduler.hall import Hall
from tests.scheduler.world import MODEL, OTHER_MODEL, backend


def test_nothing_freed_nothing_matched() -> None:
    hall = Hall()
    hall.wait(1)

    assert not hall.matching.unsettled
    assert hall.matches() == []


def test_a_freed_seat_goes_to_the_oldest_ticket_that_can_use_it() -> None:
    hall = Hall()
    hall.wait(1, model=OTHER_MODEL)
    hall.wait(2)
    hall.wait(3)

    hall.free("b", "b0")
    assert hall.matches() == [("r2", "b")]
    hall.free("a", "a0")
    assert hall.matches() == [("r1", "a")]
    assert [ticket.request.id for ticket in hall.matching.line] == ["r3"]
    assert not hall.matching.unsettled


def test_a_ticket_too_large_for_the_room_is_overtaken() -> None:
    hall = Hall()
    hall.wait(1, seats=2)
    hall.wait(2)

    hall.free("a", "a0")

    assert hall.matches() == [("r2", "a")]


def test_an_overdue_ticket_is_overtaken_no_more() -> None:
    hall = Hall()
    large = hall.wait(1, seats=2)
    hall.wait(2)
    hall.matching.is_overdue(large, 5.0)

    hall.free("a", "a0")
    assert hall.matches() == [], "kept for the large one"
    hall.free("b", "b0")
    assert hall.matches() == [("r2", "b")], "only one backend is"
    hall.wait(3)
    hall.free("a", "a1")
    assert hall.matches() == [("r1", "a")]
    hall.free("a", "r1/0")
    assert hall.matches() == [("r3", "a")], "and no longer than needed"


def test_seats_are_kept_for_the_overdue_ticket_itself_not_for_one_before_it() -> None:
    hall = Hall()
    overdue = hall.wait(2, seats=2)
    hall.matching.is_overdue(overdue, 5.0)
    hall.wait(1, seats=2)  # an older ticket that came back to the line

    hall.free("a", "a0")
    hall.free("a", "a1")

    assert hall.matches() == [("r2", "a")]


def test_kept_seats_are_let_go_when_the_backend_fails_or_the_ticket_leaves() -> None:
    hall = Hall()
    large = hall.wait(1, seats=2)
    hall.wait(2)
    hall.matching.is_overdue(large, 5.0)
    hall.free("a", "a0")
    assert hall.matches() == []

    hall.matching.remove(large)

    assert hall.matches() == [("r2", "a")]
    assert hall.replica.view("a").held_for == ""
    assert len(hall.deadlines) == 0


def test_seats_are_kept_elsewhere_when_the_backend_cannot_be_used_any_more() -> None:
    hall = Hall()
    hall.replica.join(backend("c")).life = Life(Health.READY)
    hall.take("c", "c0")
    hall.take("c", "c1")
    hall.matching.is_overdue(hall.wait(1, seats=2), 5.0)
    assert hall.replica.view("a").held_for == "r1"
    state = hall.replica.get("a")
    assert state is not None

    state.life = Life(Health.DOWN)
    hall.free("a", "a0")

    assert hall.matches() == []
    assert hall.replica.view("a").held_for == ""
    assert hall.replica.view("c").held_for == "r1"


def test_no_seats_are_kept_for_a_tenant_that_runs_as_many_requests_as_it_may() -> None:
    hall = Hall(Policy(tenant_max_running=1))
    capped = hall.wait(1, seats=2, tenant="x")
    hall.matching.began("x")
    hall.matching.is_overdue(capped, 5.0)
    hall.wait(2, tenant="y")

    hall.free("a", "a0")

    assert hall.replica.view("a").held_for == ""
    assert hall.matches() == [("r2", "a")]


def test_seats_kept_for_a_tenant_are_let_go_once_it_runs_as_many_as_it_may() -> None:
    hall = Hall(Policy(tenant_max_running=1))
    hall.matching.is_overdue(hall.wait(1, seats=2, tenant="x"), 5.0)
    hall.free("a", "a0")
    hall.wait(2, tenant="y")
    assert hall.matches() == [], "kept"

    hall.matching.began("x")

    assert hall.matches() == [("r2", "a")]
    hall.matching.shares.ended("x")
    hall.free("a", "a1")
    assert hall.matches() == []
    assert hall.replica.view("a").held_for == "r1", "its turn again"


def test_another_overdue_ticket_gets_the_seats_that_a_capped_tenant_cannot_use() -> None:
    hall = Hall(Policy(tenant_max_running=1))
    hall.matching.is_overdue(hall.wait(1, seats=2, tenant="x"), 5.0)
    hall.matching.is_overdue(hall.wait(2, seats=2, tenant="y"), 6.0)
    assert hall.replica.view("a").held_for == "r1"

    hall.matching.began("x")

    assert hall.matches() == []
    assert hall.replica.view("a").held_for == "r2"


def test_without_a_living_backend_the_deadline_is_near() -> None:
    hall = Hall()
    ticket = hall.wait(1, model=OTHER_MODEL)
    assert hall.deadlines.earliest_s() == 300.0
    state = hall.replica.get("a")
    assert state is not None

    state.life = Life(Health.DOWN)
    hall.replica.touch("a")
    hall.matching.shake()
    assert hall.matching.take_hopeless(10.0) == []
    assert hall.matching.is_down(ticket)
    assert hall.deadlines.earliest_s() == 40.0
    hall.wait(2, model=OTHER_MODEL, at_s=20.0)
    hall.matching.remove(ticket)
    assert hall.deadlines.earliest_s() == 50.0, "each waits as long for itself"

    state.life = Life(Health.READY)
    hall.replica.touch("a")
    hall.matching.shake()
    assert hall.matching.take_hopeless(30.0) == []
    assert hall.deadlines.earliest_s() == 300.0


def test_tickets_that_no_backend_may_ever_serve_are_hopeless() -> None:
    hall = Hall()
    lost = hall.wait(1, model=OTHER_MODEL)
    hall.wait(2)

    hall.replica.leave("a")
    hall.matching.shake()

    assert hall.matching.take_hopeless(1.0) == [lost]
    assert [ticket.request.id for ticket in hall.matching.line] == ["r2"]
    assert len(hall.deadlines) == 1


# The order


CHEAP, DEAR = 64, 4000
"""Tokens to compute: about a second's difference on an unknown card."""


@pytest.mark.parametrize(
    ("policy", "older_s", "first"),
    [
        pytest.param({}, 0.1, "cheap", id="the-one-that-costs-least"),
        pytest.param({"order": "fcfs"}, 0.1, "dear", id="fcfs: the-one-that-came-first"),
        pytest.param({"age_credit": 1.0}, 5.0, "dear", id="waiting-makes-up-for-cost"),
        pytest.param({"age_credit": 0.0}, 5.0, "cheap", id="but-not-without-credit"),
        pytest.param({"age_credit": 0.0, "age_guard_s": 5.0}, 5.0, "dear", id="past-the-age-guard: whatever-it-costs"),
        pytest.param({"prefill_weight": 0.0}, 0.1, "dear", id="where-nothing-costs-anything: the-older-one"),
        pytest.param({"window": 1}, 0.1, "dear", id="only-the-first-few-are-compared"),
        pytest.param({"window": 2}, 0.1, "cheap", id="two-are"),
    ],
)
def test_of_two_that_wait(policy: dict[str, Any], older_s: float, first: str) -> None:
    hall = Hall(Policy(**{"hold_s": 0.0, "age_guard_s": 100.0, **policy}))
    hall.wait(1, prompt_tokens=DEAR, at_s=0.0)
    hall.wait(2, prompt_tokens=CHEAP, at_s=older_s)

    hall.free("b", "b0")

    assert hall.matches(older_s + 0.01) == [("r2" if first == "cheap" else "r1", "b")]


def test_all_past_the_age_guard_go_in_their_order_before_the_others() -> None:
    hall = Hall(Policy(hold_s=0.0, age_guard_s=10.0))
    hall.wait(1, prompt_tokens=DEAR, at_s=0.0)
    hall.wait(2, prompt_tokens=CHEAP, at_s=1.0)
    hall.wait(3, prompt_tokens=1, at_s=8.0)

    for nonce in ("a0", "a1", "b0"):
        hall.free(nonce[0], nonce)

    assert [request_id for request_id, _ in hall.matches(12.0)] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("priorities", "first"),
    [
        pytest.param(["normal", "high"], "r2", id="high-before-normal"),
        pytest.param(["low", "normal"], "r2", id="normal-before-low"),
        pytest.param(["low", "high"], "r2", id="high-before-low"),
        pytest.param(["normal", "very-urgent"], "r1", id="an-unknown-one-counts-as-normal"),
        pytest.param(["low", "?"], "r2", id="and-so-before-low"),
        pytest.param(["high", "high"], "r1", id="alike: by-age"),
    ],
)
def test_a_higher_priority_goes_first_whatever_the_age_and_the_cost(priorities: list[str], first: str) -> None:
    hall = Hall(Policy(age_guard_s=0.0))
    for number, priority in enumerate(priorities, 1):
        hall.wait(number, priority=priority, prompt_tokens=1000 * number)

    hall.free("b", "b0")

    assert hall.matches(500.0) == [(first, "b")]


def test_a_seat_that_no_higher_priority_can_use_goes_to_a_lower_one() -> None:
    hall = Hall()
    hall.wait(1, priority="high", model=OTHER_MODEL)
    hall.wait(2, priority="low")

    hall.free("b", "b0")

    assert hall.matches() == [("r2", "b")]


def test_a_lower_priority_takes_no_seat_elsewhere_that_a_higher_one_waits_for() -> None:
    """Both backends fall free at once; looked at first is `b`, where the low one would rather go to `a`."""
    hall = Hall(Policy(active_ms=0.0))
    hall.wait(1, priority="low")
    hall.wait(2, priority="high", model=OTHER_MODEL)
    hall.used("b", 1.0)

    hall.free("b", "b0")
    hall.free("a", "a0")

    assert sorted(hall.matches()) == [("r1", "b"), ("r2", "a")]


def test_the_one_that_goes_may_go_to_another_backend_that_suits_it_better() -> None:
    """Looked at first is `a`; the younger one, which `b` cannot serve, gets its seat."""
    hall = Hall()
    hall.wait(1)
    hall.wait(2, model=OTHER_MODEL)
    hall.used("a", 1.0)

    hall.free("a", "a0")
    hall.free("b", "b0")

    assert hall.matches() == [("r1", "b"), ("r2", "a")]


def test_a_look_at_another_backend_gives_nobody_a_turn() -> None:
    """Looked at first is `b`; its ticket would rather go to `a`, for which others of its priority wait too."""
    hall = Hall(Policy(quantum_tokens=100, active_ms=0.0))
    shares = hall.matching.shares
    for number, tenant, model in ((1, "z", MODEL), (2, "x", OTHER_MODEL), (3, "y", OTHER_MODEL)):
        hall.wait(number, tenant=tenant, model=model)
        shares.charge(1, tenant, 150.0, 100)
    hall.used("b", 1.0)

    hall.free("b", "b0")
    hall.free("a", "a0")

    assert hall.matches() == [("r1", "a")]
    assert [shares.left(1, tenant, 100) for tenant in "xyz"] == [-50.0] * 3


def test_each_tenants_first_requests_are_compared_however_many_the_others_have() -> None:
    hall = Hall(Policy(hold_s=0.0, window=2, age_credit=0.0, quantum_tokens=0, age_guard_s=100.0))
    for number in range(10):
        hall.wait(number, tenant="x", prompt_tokens=DEAR)
    hall.wait(10, tenant="y", prompt_tokens=CHEAP)

    hall.free("b", "b0")

    assert hall.matches() == [("r10", "b")]


def test_with_more_tenants_than_the_window_has_room_for_the_oldest_are_looked_at() -> None:
    hall = Hall(Policy(hold_s=0.0, window=2, quantum_tokens=0))
    for number in (5, 3, 4, 1, 2):
        hall.wait(number, tenant=f"t{number}")

    hall.free("b", "b0")

    assert hall.matches() == [("r1", "b")]


# Prompts that are computed at once


def test_a_backend_that_computes_as_many_prompts_as_it_may_gets_small_ones_only() -> None:
    hall = Hall(Policy(hold_s=0.0, max_prefills=1, prefill_counts_tokens=256))
    hall.free("a", "a0")
    hall.compute("a", 2000)
    hall.wait(1, prompt_tokens=DEAR)
    hall.wait(2, prompt_tokens=CHEAP)

    hall.free("a", "a1")

    assert hall.matches() == [("r2", "a")]


def test_what_one_backend_cannot_take_now_another_one_may() -> None:
    """Both fall free at once, and `a`, which is looked at first, computes as much as it may."""
    hall = Hall(Policy(hold_s=0.0, max_prefills=1))
    hall.free("a", "a0")
    hall.compute("a", 2000)
    for number in (1, 2):
        hall.wait(number, prompt_tokens=DEAR)

    hall.free("a", "a1")
    hall.free("b", "b0")

    assert hall.matches() == [("r1", "b")]
    assert not hall.matching.unsettled
