import pytest

from scheduler.leases import Ended, Lease, LeaseState
from scheduler.reconcile import Reading, read

ASKED_S = 10.0


def lease(nonce: str, granted_s: float, *, seats: int = 1, abandoned_s: float | None = None) -> Lease:
    made = Lease(nonce, "r", "a", 1, seats, None, granted_s - 0.1, granted_s=granted_s)
    made.state = LeaseState.HELD if abandoned_s is None else LeaseState.ABANDONED
    made.since_s = granted_s if abandoned_s is None else abandoned_s
    return made


def claiming(nonce: str) -> Lease:
    return Lease(nonce, "r", "a", 1, 1, None, 9.0)


@pytest.mark.parametrize(
    ("busy", "leases", "ended", "elsewhere", "expected"),
    [
        pytest.param(2, [lease("x", 9), lease("y", 9)], [], 0, Reading((), 0, 0, 0), id="all-ours"),
        pytest.param(3, [lease("x", 9)], [], 0, Reading((), 2, 0, 0), id="two-foreign"),
        pytest.param(1, [lease("x", 11)], [], 0, Reading((), 1, 1, 0), id="a-younger-lease-hides-nothing"),
        pytest.param(1, [claiming("x")], [], 0, Reading((), 1, 0, 0), id="a-claim-is-not-at-the-engine"),
        pytest.param(1, [], [Ended(9, 11, 1)], 0, Reading((), 0, 0, 0), id="what-ended-since-was-ours"),
        pytest.param(1, [], [Ended(10.2, 11, 1)], 0, Reading((), 1, 0, 1), id="what-began-and-ended-since-is-a-doubt"),
        pytest.param(0, [lease("x", 9, abandoned_s=9.5)], [], 0, Reading(("x",), 0, 0, 0), id="idle"),
        pytest.param(1, [lease("x", 9, abandoned_s=9.5)], [], 0, Reading((), 0, 0, 0), id="still-busy"),
        pytest.param(0, [lease("x", 9, abandoned_s=10.5)], [], 0, Reading((), 0, 0, 0), id="abandoned-after-the-look"),
        pytest.param(0, [lease("x", 10.2, abandoned_s=10.5)], [], 0, Reading((), 0, 1, 0), id="all-after-the-look"),
        pytest.param(
            2, [lease("x", 9), lease("y", 9, abandoned_s=9.5)], [], 0, Reading((), 0, 0, 0), id="live-and-still-busy"
        ),
        pytest.param(
            1, [lease("x", 9), lease("y", 9, abandoned_s=9.5)], [], 0, Reading(("y",), 0, 0, 0), id="only-the-live-one"
        ),
        pytest.param(
            1,
            [lease("x", 11), lease("y", 9, abandoned_s=9.5)],
            [],
            0,
            Reading((), 0, 1, 0),
            id="a-younger-lease-proves-nothing-idle",
        ),
        pytest.param(
            1,
            [lease("x", 9, abandoned_s=9.6), lease("y", 9, abandoned_s=9.5), lease("z", 9, abandoned_s=9.7)],
            [],
            0,
            Reading(("y", "x"), 0, 0, 0),
            id="as-many-as-are-proven-oldest-first",
        ),
        pytest.param(
            2,
            [lease("x", 9, seats=3, abandoned_s=9.5), lease("y", 9, abandoned_s=9.6)],
            [],
            0,
            Reading(("y",), 0, 0, 0),
            id="a-large-one-only-as-a-whole",
        ),
        pytest.param(3, [lease("x", 9, abandoned_s=9.5)], [], 2, Reading((), 2, 0, 0), id="beside-other-proxies"),
        pytest.param(2, [lease("x", 9, abandoned_s=9.5)], [], 2, Reading(("x",), 2, 0, 0), id="idle-beside-others"),
    ],
)
def test_read(busy: int, leases: list[Lease], ended: list[Ended], elsewhere: int, expected: Reading) -> None:
    assert read(busy, ASKED_S, leases, ended, elsewhere) == expected
