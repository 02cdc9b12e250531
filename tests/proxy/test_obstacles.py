"""The numbers behind a rejection."""

from typing import Any

import msgspec
import pytest

from proxy.obstacles import obstacles
from scheduler.domain import (
    Backend,
    BackendView,
    Candidate,
    Decision,
    Dialect,
    Engine,
    Health,
    Operation,
    Rejection,
    Request,
    Snapshot,
)

NOW_S = 50.0


def request(**values: Any) -> Request:
    """A request that waits."""
    first = Request("r1", Operation.CHAT, Dialect.OLLAMA, "m:latest", arrived_s=40.0, wait_until_s=600.0)
    return msgspec.structs.replace(first, **values)


def view(**values: Any) -> BackendView:
    """A backend of which two requests may run at once."""
    return BackendView(Backend("gpu0", Engine.OLLAMA, slots=4, running_limit=2), Health.READY, **values)


@pytest.mark.parametrize(
    ("reason", "seen", "asked", "detail"),
    [
        (Rejection.NO_ROOM, {"seats_leased": 2}, {}, "2 of 2 seats taken"),
        (
            Rejection.NO_ROOM,
            {"seats_leased": 1, "seats_elsewhere": 1, "foreign_busy": 1},
            {},
            "3 of 2 seats taken, 1 by other proxies, 1 around slotgate",
        ),
        (Rejection.NO_ROOM, {"seats_leased": 1}, {"seats": 2}, "1 of 2 seats taken; it needs 2"),
        (Rejection.NO_ROOM, {"held_for": "r0"}, {}, "kept for r0, which needs several seats"),
        (Rejection.NO_ROOM, {}, {}, None),  # it has room by now
        (Rejection.COOLING, {"cooling_until_s": NOW_S + 1.25}, {}, "1.2 s of its pause are left"),
        (Rejection.COOLING, {"cooling_until_s": NOW_S}, {}, None),
        (Rejection.TOO_MANY_SLOTS, {}, {"seats": 3}, "it needs 3 seats at once, the limit is 2"),
        (Rejection.DOWN, {}, {}, None),
    ],
)
def test_numbers(reason: Rejection, seen: dict[str, Any], asked: dict[str, Any], detail: str | None) -> None:
    told = obstacles(Decision("r1", (), {"gpu0": reason}), request(**asked), Snapshot(NOW_S, (view(**seen),)))
    assert told == ({} if detail is None else {"gpu0": detail})


def test_what_the_decision_says_itself_stays() -> None:
    decision = Decision("r1", (), {"gpu0": Rejection.NO_ROOM, "gone": Rejection.NO_ROOM}, {"gpu0": "5 of 3 GB"})
    assert obstacles(decision, request(), Snapshot(NOW_S, (view(seats_leased=2),))) == {"gpu0": "5 of 3 GB"}


def test_a_candidate_that_is_full_by_now() -> None:
    decision = Decision("r1", (Candidate("gpu0", 1.0, {}), Candidate("gone", 2.0, {})))
    assert obstacles(decision, request(), Snapshot(NOW_S, (view(seats_leased=1),))) == {}
    assert obstacles(decision, request(), Snapshot(NOW_S, (view(seats_leased=2),))) == {"gpu0": "2 of 2 seats taken"}
