from math import inf

import pytest

from scheduler.domain import SlotState
from scheduler.leases import Ended, Lease, LeaseState, Work
from scheduler.reconcile import Reading, read

ASKED_S = 10.0


def lease(nonce: str, granted_s: float, *, seats: int = 1, abandoned_s: float | None = None) -> Lease:
    made = Lease(nonce, "r", "a", 1, seats, None, granted_s - 0.1, granted_s=granted_s)
    made.state = LeaseState.HELD if abandoned_s is None else LeaseState.ABANDONED
    made.since_s = granted_s if abandoned_s is None else abandoned_s
    return made


def theirs(nonce: str, heard_s: float, *, abandoned_s: float | None = None) -> Lease:
    made = lease(nonce, heard_s, abandoned_s=abandoned_s)
    made.owner = "two"
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
        pytest.param(1, [theirs("x", 9)], [], 0, Reading((), 0, 0, 0), id="theirs"),
        pytest.param(1, [theirs("x", 11)], [], 0, Reading((), 0, 0, 0), id="theirs-heard-of-since"),
        pytest.param(1, [], [Ended(-inf, 11, 1)], 0, Reading((), 0, 0, 0), id="theirs-that-ended-since"),
        pytest.param(1, [theirs("x", inf)], [], 0, Reading((), 1, 0, 0), id="their-turn-is-not-at-the-engine"),
        pytest.param(
            1,
            [lease("x", 9, abandoned_s=9.5), theirs("y", 9)],
            [],
            0,
            Reading(("x",), 0, 0, 0),
            id="idle-beside-theirs",
        ),
        pytest.param(
            1,
            [lease("x", 9, abandoned_s=9.5), theirs("y", 9, abandoned_s=9.2)],
            [],
            0,
            Reading((), 0, 0, 0),
            id="either-may-be-the-busy-one",
        ),
        pytest.param(
            0,
            [lease("x", 9, abandoned_s=9.5), theirs("y", 9, abandoned_s=9.2)],
            [],
            0,
            Reading(("x",), 0, 0, 0),
            id="theirs-is-not-for-us-to-free",
        ),
    ],
)
def test_read(busy: int, leases: list[Lease], ended: list[Ended], elsewhere: int, expected: Reading) -> None:
    assert read(busy, ASKED_S, leases, ended, elsewhere) == expected


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        pytest.param((), ("gone",), id="no-slots-told"),
        pytest.param((SlotState(0, busy=True), SlotState(1, busy=False)), (), id="its-own-slot-is-busy-still"),
        pytest.param((SlotState(0, busy=False), SlotState(1, busy=True)), ("gone",), id="its-own-slot-is-idle"),
    ],
)
def test_a_named_slot_tells_more_than_the_count(slots: tuple[SlotState, ...], expected: tuple[str, ...]) -> None:
    """The live one has not reached its slot yet: the only busy slot is that of the abandoned one."""
    gone, live = lease("gone", 8, abandoned_s=9.5), lease("live", 9)
    gone.work = Work(100, 0, 10.0, 50.0, slot=0)
    live.work = Work(100, 0, 10.0, 50.0, slot=1)

    assert read(1, ASKED_S, [gone, live], [], 0, slots).idle == expected


def test_without_a_named_slot_every_live_one_must_be_on_its_slot() -> None:
    gone, live = lease("gone", 8, abandoned_s=9.5), lease("live", 9)
    busy = (SlotState(0, busy=True), SlotState(1, busy=False))

    assert read(1, ASKED_S, [gone, live], [], 0, busy).idle == ()
    live.committed = True
    assert read(1, ASKED_S, [gone, live], [], 0, busy).idle == ("gone",)


def test_what_was_just_sent_may_not_be_on_its_slot_yet() -> None:
    gone = lease("gone", 9.5, abandoned_s=9.6)
    gone.work = Work(100, 0, 10.0, 50.0, slot=0)
    idle = (SlotState(0, busy=False),)

    assert read(0, ASKED_S, [gone], [], 0, idle).idle == ()
    assert read(0, ASKED_S + 1.0, [gone], [], 0, idle).idle == ("gone",)
    gone.committed = True
    assert read(0, ASKED_S, [gone], [], 0, idle).idle == ("gone",), "it answered: it was there"
