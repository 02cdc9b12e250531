"""Slots that leases name, and what is told of leases: the scripts directly on each kind of store."""

from tests.proxy.store.raw_scripts import KEYS, Raw, claim, claim_fully, expire, release, renew, slots, told


def named(raw: Raw, nonce: str, slot: int | str, limit: int = 8, by: str = "a/", seats: int = 1) -> tuple[int, int]:
    """Granted, refused because of the slot."""
    reply = claim_fully(raw, nonce, seats, limit, by=by, slot=slot)
    return reply[0], reply[6]


GRANTED, SLOT_REFUSED, REFUSED = (1, 0), (0, 1), (0, 0)


def test_each_slot_is_held_by_one_lease(raw: Raw) -> None:
    assert named(raw, "n1", 0) == GRANTED
    assert named(raw, "n2", 0, by="b/") == SLOT_REFUSED
    assert named(raw, "n2", 1, by="b/") == GRANTED
    assert slots(raw) == {0: "a/n1", 1: "b/n2"}
    release(raw, "n1", slot=0)
    assert slots(raw) == {1: "b/n2"}
    assert named(raw, "n3", 0, by="b/") == GRANTED


def test_a_named_slot_is_refused_while_a_lease_is_anywhere(raw: Raw) -> None:
    claim(raw, "any", limit=8)
    assert named(raw, "n1", 0) == SLOT_REFUSED
    assert named(raw, "n1", "") == GRANTED
    release(raw, "any")
    assert named(raw, "n2", 0) == SLOT_REFUSED
    release(raw, "n1")
    assert named(raw, "n2", 0) == GRANTED
    assert named(raw, "n3", "") == GRANTED, "a claim without a slot is never refused because of slots"


def test_a_refusal_for_another_reason_is_none_because_of_the_slot(raw: Raw) -> None:
    named(raw, "n1", 0)
    assert named(raw, "n2", 0, limit=1) == REFUSED
    assert claim_fully(raw, "n2", epoch=0, slot=0)[6] == 0


def test_a_claim_said_again_keeps_its_slot(raw: Raw) -> None:
    assert named(raw, "n1", 0) == named(raw, "n1", 0) == GRANTED
    assert slots(raw) == {0: "a/n1"}


def test_several_seats_may_name_a_slot_and_none_names_nothing(raw: Raw) -> None:
    assert named(raw, "n1", 0, seats=2) == GRANTED
    assert named(raw, "n2", 1) == GRANTED
    assert named(raw, "n0", 2, seats=0) == GRANTED
    assert slots(raw) == {0: "a/n1", 1: "a/n2"}


def test_entries_of_leases_that_are_gone_count_for_nothing(raw: Raw) -> None:
    expire(raw, "n1", slot=0)
    assert named(raw, "n2", 0, by="b/") == GRANTED
    release(raw, "n2", by="b/")  # by one who does not know the slot
    assert slots(raw) == {0: "b/n2"}
    assert named(raw, "n3", 5) == GRANTED
    assert slots(raw) == {5: "a/n3"}, "purged on the way"


def test_a_release_frees_nobody_elses_slot(raw: Raw) -> None:
    expire(raw, "n1", slot=0)
    named(raw, "n2", 0, by="b/")
    release(raw, "n1", slot=0)

    assert slots(raw) == {0: "b/n2"}


def test_a_lease_that_is_taken_again_takes_its_slot_again_if_it_is_free(raw: Raw) -> None:
    expire(raw, "n1", slot=0)
    expire(raw, "n2", slot=1)
    named(raw, "other", 1, by="b/")
    renew(raw, ("n1", 1, 1, "held", 0), ("n2", 1, 1, "held", 1), limit=8)

    assert slots(raw) == {0: "a/n1", 1: "b/other"}
    assert named(raw, "n3", 2) == SLOT_REFUSED, "n2 is somewhere"
    release(raw, "other", by="b/", slot=1)
    renew(raw, ("n1", 1, 1, "held", 0), ("n2", 1, 1, "held", 1), limit=8)
    assert slots(raw) == {0: "a/n1", 1: "a/n2"}
    assert named(raw, "n3", 2) == GRANTED


def test_slots_are_told_again_to_a_store_that_lost_them(raw: Raw) -> None:
    renew(raw, ("n1", 1, 1, "must", 0), ("n2", 1, 1, "must"), ("asked", 1, 1, "asked", 3))

    assert slots(raw) == {0: "a/n1"}
    renew(raw, ("n1", 1, 1, "gone", 0))
    assert slots(raw) == {}


def test_slots_live_as_long_as_their_leases(raw: Raw) -> None:
    named(raw, "n1", 0)

    assert 0 < raw.pttl(KEYS.slots("g0")) <= 31_000


def test_a_claim_of_another_life_changes_nothing(raw: Raw) -> None:
    assert claim_fully(raw, "n1", life="old") == [-1]
    assert raw.keys() == [KEYS.life.encode()]


def test_a_claim_is_refused_beyond_the_most_of_its_owner(raw: Raw) -> None:
    assert claim_fully(raw, "n1", limit=8, most=1)[0] == 1
    assert claim_fully(raw, "n2", limit=8, most=1)[:3] == [0, 1, 1]
    assert claim_fully(raw, "n1", limit=8, most=0)[0] == 1, "said again"
    assert claim_fully(raw, "n2", limit=8, most=1, by="b/")[0] == 1


def test_what_happened_is_told_in_the_same_step_and_once(raw: Raw) -> None:
    for _ in range(2):
        claim_fully(raw, "n1", news="taken 1")
    claim_fully(raw, "n2", limit=1, news="refused")
    claim_fully(raw, "n3", by="b/")
    for _ in range(2):
        release(raw, "n1", news="over 1")
    release(raw, "n3", by="b/")

    assert told(raw) == [(b"a", b"d", b"taken 1"), (b"a", b"d", b"over 1")]


def test_a_renewal_tells_what_it_drops(raw: Raw) -> None:
    claim(raw, "there", limit=8)
    named = [("there", 1, 1, "gone", "", "1"), ("not", 1, 1, "gone", "", "2"), ("alone", 1, 1, "over", "", "3")]
    renew(raw, *named)
    renew(raw, *named[:2])

    assert [news for _, _, news in told(raw)] == [b"1", b"3"]
