"""When what runs at a backend is expected to end; what is kept of that, and when it is looked at anew."""

from math import inf

import pytest

from scheduler.estimates import PRIOR_OUTPUT_TOKENS
from tests.scheduler.room import NOW_S, SYSTEM, Room
from tests.scheduler.world import talk

STEP_MS = 10.0


def test_nothing_ends_where_nothing_runs() -> None:
    room = Room()

    assert room.outlook.endings.expected(room.view(), NOW_S, 0) == ({}, inf, inf)


def test_of_several_one_ends_sooner_than_each() -> None:
    room = Room()
    for number in range(2):
        room.start(talk(f"r{number}", (number, 100)))
    answer_ms = PRIOR_OUTPUT_TOKENS * STEP_MS

    found = room.outlook.endings.expected(room.view(), NOW_S, 0)

    assert list(found.by_nonce) == ["n1", "n2"]
    assert found.by_nonce["n1"] == pytest.approx(100.0 + answer_ms)
    assert found.any_ms == found.least_ms == pytest.approx((100.0 + answer_ms) / 2)


def test_it_is_looked_at_anew_when_something_changed() -> None:
    room = Room()
    lease = room.start(talk("r", SYSTEM))
    endings, view = room.outlook.endings, room.view()
    before = endings.expected(view, NOW_S, 0)

    assert endings.expected(view, NOW_S, 0) is before
    assert endings.expected(view, NOW_S, 1) is not before, "a request began or ended"
    assert endings.expected(view, NOW_S + 1.0, 1).least_ms < before.least_ms
    lease.committed = True
    room.outlook.answered(lease, NOW_S + 1.0)
    later = endings.expected(view, NOW_S + 1.0, 1)
    assert later.by_nonce["n1"] == pytest.approx(PRIOR_OUTPUT_TOKENS * STEP_MS), "its first byte came"
