from hypothesis import given
from hypothesis import strategies as st

from scheduler.slot_shares import MOST, SlotShares


def test_a_single_tenant_pays_the_price_as_it_is() -> None:
    shares = SlotShares()
    shares.used("a", 0, "me")
    shares.used("a", 1, "me")

    assert shares.weight("a", 0) == shares.weight("a", 7) == shares.weight("b", 0) == 1.0


def test_what_a_tenant_below_its_share_would_lose_counts_more() -> None:
    shares = SlotShares()
    for slot in range(9):
        shares.used("a", slot, "greedy")
    shares.used("a", 9, "light")

    assert shares.weight("a", 9) == 5.0
    assert shares.weight("a", 0) == 1.0


def test_no_loss_counts_without_end() -> None:
    shares = SlotShares()
    for slot in range(99):
        shares.used("a", slot, "greedy")
    shares.used("b", 0, "light")

    assert shares.weight("b", 0) == MOST


def test_a_slot_belongs_to_whom_used_it_last() -> None:
    shares = SlotShares()
    shares.used("a", 0, "one")
    shares.used("a", 1, "one")
    shares.used("a", 2, "one")
    shares.used("a", 3, "two")
    shares.used("a", 3, "one")

    assert shares.weight("a", 3) == 1.0


def test_a_backend_that_restarts_keeps_nothing_for_anybody() -> None:
    shares = SlotShares()
    for slot in range(3):
        shares.used("a", slot, "greedy")
    shares.used("b", 0, "light")
    shares.void("a")

    assert shares.weight("b", 0) == shares.weight("a", 0) == 1.0


def test_another_proxy_goes_on_from_there_but_for_slots_that_it_saw_used() -> None:
    shares, other = SlotShares(), SlotShares()
    for slot in range(9):
        shares.used("a", slot, "greedy")
    shares.used("a", 9, "light")
    other.used("a", 0, "light")

    other.restore("a", shares.picture("a"))

    assert dict(other.picture("a")) == dict(shares.picture("a")) | {0: "light"}
    assert other.weight("a", 9) == 2.5


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.sampled_from("xyz"))))
def test_weights_stay_in_their_range_and_forget_nothing_wrongly(uses: list[tuple[str, int, str]]) -> None:
    shares = SlotShares()
    owners: dict[tuple[str, int], str] = {}
    for backend, slot, tenant in uses:
        shares.used(backend, slot, tenant)
        owners[backend, slot] = tenant
    counts = {tenant: list(owners.values()).count(tenant) for tenant in set(owners.values())}
    for (backend, slot), tenant in owners.items():
        expected = len(owners) / len(counts) / counts[tenant] if len(counts) > 1 else 1.0
        assert shares.weight(backend, slot) == max(1.0, min(MOST, expected))
