from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.admission import (
    Admission,
    down_detail,
    down_reason,
    lasting_detail,
    lasting_reason,
    may_wait,
    retry_after_s,
)
from scheduler.domain import BackendView, Decision, Health, Operation, Rejection
from scheduler.leases import Ledger
from scheduler.policy import Policy
from scheduler.replica import Replica
from scheduler.waiting import Ticket, WaitingLine
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

POLICY = Policy(completions_window_s=60.0, retry_after_min_s=1.0, retry_after_max_s=60.0)
VIEWS = [
    BackendView(backend("a", limit=4), Health.DOWN),
    BackendView(backend("b", limit=2, models=[OTHER_MODEL]), Health.READY),
]


def decision(*reasons: Rejection) -> Decision:
    return Decision("r1", rejections={str(number): reason for number, reason in enumerate(reasons)})


@pytest.mark.parametrize(
    ("reasons", "waits", "lasting"),
    [
        ([], False, Rejection.DOWN),
        ([Rejection.UNKNOWN_MODEL], False, Rejection.UNKNOWN_MODEL),
        ([Rejection.UNKNOWN_MODEL, Rejection.UNSUPPORTED], False, Rejection.UNSUPPORTED),
        ([Rejection.UNSUPPORTED, Rejection.TOO_MANY_SLOTS], False, Rejection.TOO_MANY_SLOTS),
        ([Rejection.UNKNOWN_MODEL, Rejection.NO_ROOM], True, Rejection.UNKNOWN_MODEL),
        ([Rejection.DOWN], True, Rejection.DOWN),
        ([Rejection.TRIED], True, Rejection.DOWN),
    ],
    ids=str,
)
def test_reasons(reasons: list[Rejection], waits: bool, lasting: Rejection) -> None:
    assert may_wait(decision(*reasons)) is waits
    assert lasting_reason(decision(*reasons)) is lasting


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Rejection.UNKNOWN_MODEL, "no backend has the model 'qwen3'; there are: llama3, qwen3"),
        (Rejection.UNSUPPORTED, "no backend that has 'qwen3' can answer embed requests: a"),
        (
            Rejection.TOO_MANY_SLOTS,
            "the request needs 9 slots at once, the largest running limit is 4; send it in parts",
        ),
        (Rejection.DOWN, "no backend is configured"),
    ],
    ids=str,
)
def test_details_say_what_would_help(reason: Rejection, text: str) -> None:
    asked = request(model=MODEL, seats=9, operation=Operation.EMBED)

    assert lasting_detail(reason, asked, VIEWS) == text


def test_down_detail_names_the_backends_that_matter() -> None:
    assert down_detail(request(), VIEWS) == "no backend that could answer is running: a is down"
    assert down_detail(request(), []).endswith("none is known")


@pytest.mark.parametrize(
    ("waiting", "per_s", "expected_s"),
    [(10, 2.0, 5.0), (1, 100.0, 1.0), (1000, 1.0, 60.0), (0, 0.0, 1.0), (1, 0.0, 60.0)],
)
def test_retry_after(waiting: int, per_s: float, expected_s: float) -> None:
    assert retry_after_s(waiting, per_s, POLICY) == expected_s


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_retry_after_is_bounded_and_shrinks_with_pace(waiting: int, slow: float, fast: float) -> None:
    slow, fast = sorted((slow, fast))

    assert 1.0 <= retry_after_s(waiting, fast, POLICY) <= retry_after_s(waiting, slow, POLICY) <= 60.0


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([Rejection.DRAINING, Rejection.DRAINING], Rejection.DRAINING),
        ([Rejection.STARTING, Rejection.UNKNOWN_MODEL], Rejection.STARTING),
        ([Rejection.STARTING, Rejection.DOWN], Rejection.DOWN),
        ([Rejection.DOWN], Rejection.DOWN),
        ([], Rejection.DOWN),
    ],
)
def test_why_nothing_took_it_in_time(reasons: list[Rejection], expected: Rejection) -> None:
    decision = Decision("r", (), {str(number): reason for number, reason in enumerate(reasons)})

    assert down_reason(decision) is expected
    assert down_reason(None) is Rejection.DOWN


NOW_S = 60.0
"""A minute after the first request ended."""


class Door:
    """A line with some tickets in it, before a backend with two seats."""

    def __init__(self, waiting: int = 0, **policy: Any) -> None:
        self.line = WaitingLine()
        self.count = 0
        self.policy = Policy(completions_window_s=120.0, **policy)
        replica = Replica(Ledger())
        replica.join(backend("a", limit=2))
        self.admission = Admission(self.policy, self.line, replica)
        for _ in range(waiting):
            self.wait()

    def ticket(self, *, admitted: bool = False, wait_s: float = 300.0, **more: Any) -> Ticket:
        self.count += 1
        made = Ticket(request(f"r{self.count}", wait_s=wait_s, **more), self.count)
        made.admitted = admitted
        return made

    def wait(self, **more: Any) -> None:
        self.line.add(self.ticket(**more))

    def refusal(self, *, now_s: float = NOW_S, **more: Any) -> Rejection | None:
        found = self.admission.refusal(self.ticket(**more), now_s)
        return found[0] if found else None


@pytest.mark.parametrize(
    ("door", "ticket", "expected"),
    [
        pytest.param(Door(2), {}, None, id="there-is-room-in-the-line"),
        pytest.param(Door(2, max_waiting=2), {}, Rejection.QUEUE_FULL, id="the-line-is-full"),
        pytest.param(Door(2, max_waiting=2), {"admitted": True}, None, id="not-for-one-that-had-its-turn"),
        pytest.param(Door(4, max_waiting=2), {"admitted": True}, Rejection.QUEUE_FULL, id="of-these-one-per-seat"),
        pytest.param(Door(), {"wait_s": 60.0}, Rejection.WAITED_TOO_LONG, id="its-time-is-over"),
        pytest.param(Door(), {"wait_s": 60.1}, None, id="its-time-is-not-over"),
        pytest.param(Door(), {"wait_s": 1.0, "admitted": True}, Rejection.WAITED_TOO_LONG, id="nor-may-it-exceed-that"),
        pytest.param(Door(2, tenant_max_waiting=2), {}, Rejection.TENANT_BUSY, id="its-client-has-enough-waiting"),
        pytest.param(Door(2, tenant_max_waiting=2), {"tenant": "y"}, None, id="another-client-has-not"),
        pytest.param(Door(2, tenant_max_waiting=2), {"admitted": True}, None, id="nor-does-that-count-after-its-turn"),
        pytest.param(Door(2, max_waiting=2, tenant_max_waiting=2), {}, Rejection.QUEUE_FULL, id="the-line-comes-first"),
    ],
)
def test_who_may_wait(door: Door, ticket: dict[str, Any], expected: Rejection | None) -> None:
    assert door.refusal(**ticket) is expected


def complete(door: Door, count: int, *, seats: int = 1) -> None:
    for _ in range(count):
        door.admission.completed(seats, NOW_S - 60.0)


@pytest.mark.parametrize(
    ("waiting", "per_window", "ticket", "expected"),
    [
        pytest.param(9, 60, {}, None, id="ten-at-one-a-second"),
        pytest.param(10, 60, {}, Rejection.QUEUE_FULL, id="eleven"),
        pytest.param(10, 120, {}, None, id="at-twice-the-pace"),
        pytest.param(10, 60, {"priority": "high"}, None, id="a-higher-one-goes-before-them"),
        pytest.param(10, 60, {"admitted": True}, None, id="one-that-had-its-turn"),
        pytest.param(10, 3, {}, Rejection.QUEUE_FULL, id="three-tell-enough"),
        pytest.param(10, 2, {}, None, id="two-do-not"),
        pytest.param(10, 0, {}, None, id="nothing-is-known-yet"),
    ],
)
def test_who_would_wait_too_long_is_refused_at_once(
    waiting: int, per_window: int, ticket: dict[str, Any], expected: Rejection | None
) -> None:
    door = Door(waiting, max_expected_wait_s=10.5)
    complete(door, per_window)

    assert door.refusal(**ticket) is expected


def test_lower_and_younger_ones_do_not_make_anybody_wait() -> None:
    door = Door()
    asked = door.ticket()
    door.wait(priority="low")
    door.wait()
    complete(door, 60)

    assert door.admission.expected_wait_s(asked, NOW_S) == pytest.approx(1.0), "its own turn"


def test_the_expected_wait_counts_requests_on_both_sides_however_many_seats_they_have() -> None:
    door = Door()
    for _ in range(5):
        door.wait(seats=4)
    complete(door, 30, seats=4)

    assert door.admission.expected_wait_s(door.ticket(), NOW_S) == pytest.approx(12.0)


@pytest.mark.parametrize(("count", "known"), [(0, False), (2, False), (3, True)])
def test_without_evidence_there_is_no_expected_wait(count: int, known: bool) -> None:
    door = Door(4)
    complete(door, count, seats=8)

    assert (door.admission.expected_wait_s(door.ticket(), NOW_S) is not None) is known
    assert door.admission.expected_wait_s(door.ticket(), NOW_S + 200.0) is None, "that is long ago"


def test_retry_after_counts_the_seats_that_wait_and_its_own() -> None:
    door = Door()
    door.wait(seats=3)
    door.admission.completed(30, NOW_S - 60.0)

    assert door.admission.retry_after_s(door.ticket(seats=2), NOW_S) == pytest.approx(10.0)


def test_another_window_begins_to_count_anew_and_another_policy_is_in_force() -> None:
    door = Door(1)
    complete(door, 600)
    assert door.admission.expected_wait_s(door.ticket(), NOW_S) == pytest.approx(0.2)

    door.admission.change(Policy(completions_window_s=120.0, max_waiting=1))
    assert door.refusal() is Rejection.QUEUE_FULL
    assert door.admission.expected_wait_s(door.ticket(), NOW_S) == pytest.approx(0.2), "the same window goes on"

    door.admission.change(Policy(completions_window_s=100.0))
    complete(door, 60)
    assert door.admission.expected_wait_s(door.ticket(), NOW_S) == pytest.approx(2.0)


def test_an_idle_time_says_nothing_of_the_pace() -> None:
    door = Door(5)
    for second in range(1, 7):
        door.admission.completed(1, 90_000.0 + second)

    expected_s = door.admission.expected_wait_s(door.ticket(), 90_006.0)

    assert expected_s is not None
    assert 4.0 <= expected_s <= 8.0, "six in six seconds, and six before it"
