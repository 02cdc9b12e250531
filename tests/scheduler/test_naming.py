"""Slots that are not to be named, and nothing kept of what is over."""

from scheduler.leases import Lease
from scheduler.naming import Naming

LEASE = Lease("n", "r", "a", 1, 1, None, 0.0)


def test_a_slot_is_reserved_until_its_claim_was_answered() -> None:
    naming = Naming()
    naming.reserve(LEASE, 3)
    assert list(naming.slots_reserved("a")) == [3]
    assert list(naming.slots_reserved("b")) == []

    naming.unreserve("b", "n")
    naming.unreserve("a", "n")
    naming.unreserve("a", "n")
    assert naming.reserved == {}


def test_a_slot_that_was_refused_is_reserved_beside_others() -> None:
    naming = Naming()
    naming.reserve(LEASE, 3)
    nonce = naming.refuse("a", 0)

    assert sorted(naming.slots_reserved("a")) == [0, 3]
    naming.unreserve("a", nonce)
    assert list(naming.slots_reserved("a")) == [3]


def test_the_engine_chooses_as_long_as_one_runs_whose_slot_it_chose() -> None:
    naming = Naming()
    for nonce in ("n", "m"):
        naming.engine_chose("a", nonce)
    naming.gone("a", "n")
    assert (naming.engine_chooses("a"), naming.engine_chooses("b")) == (True, False)

    naming.gone("a", "m")
    naming.gone("b", "m")
    assert naming.unnamed == {}


def test_with_its_engine_all_of_a_backend_is_forgotten() -> None:
    naming = Naming()
    naming.reserve(LEASE, 3)
    naming.engine_chose("a", "m")

    naming.void("a")

    assert (naming.reserved, naming.unnamed) == ({}, {})
