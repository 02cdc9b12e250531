"""The mirror of what this proxy holds, without any store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.holdings import Holdings, Stand, fair_share


@given(limit=st.integers(0, 64), proxies=st.integers(1, 20), backend_id=st.text(max_size=8))
def test_shares_add_up_to_the_limit_and_differ_by_one_at_most(limit: int, proxies: int, backend_id: str) -> None:
    shares = [fair_share(limit, proxies, rank, backend_id) for rank in range(proxies)]

    assert sum(shares) == limit
    assert max(shares) - min(shares) <= 1


def test_the_rest_is_not_always_the_same_proxys() -> None:
    first = [fair_share(1, 2, 0, f"g{i}") for i in range(32)]

    assert {0, 1} == set(first)


def test_only_what_is_held_counts_as_held() -> None:
    holdings = Holdings()
    holdings.ask("g0", "asked", 1, 1, 8)
    holdings.ask("g0", "held", 2, 1, 8).stand = Stand.HELD
    holdings.ask("g0", "gone", 4, 1, 8).stand = Stand.HELD
    assert holdings.give_back("g0", "gone", 0.0)
    assert not holdings.give_back("g0", "gone", 0.0)
    assert not holdings.give_back("g0", "never", 0.0)

    assert holdings.seats("g0") == 2
    assert holdings.seats_possible("g0") == 7
    assert holdings.backends() == ["g0"]
    for nonce, holding in list(holdings.of("g0").items()):
        holdings.forget("g0", nonce, holding)
    assert holdings.backends() == []


def test_asking_again_changes_nothing_unless_it_was_given_back() -> None:
    holdings = Holdings()
    first = holdings.ask("g0", "n", 1, 1, 8)
    first.stand = Stand.HELD

    assert holdings.ask("g0", "n", 1, 1, 8) is first
    holdings.give_back("g0", "n", 0.0)
    assert holdings.ask("g0", "n", 1, 1, 8).stand is Stand.ASKED


def test_what_was_claimed_anew_stays_when_the_former_is_forgotten() -> None:
    holdings = Holdings()
    former = holdings.ask("g0", "n", 1, 1, 8)
    holdings.give_back("g0", "n", 0.0)
    anew = holdings.ask("g0", "n", 1, 1, 8)
    holdings.forget("g0", "n", former)
    holdings.forget("none", "n", former)

    assert holdings.of("g0")["n"] is anew
    assert holdings.backends() == ["g0"]


def test_a_grant_is_taken_unless_the_claim_was_given_back() -> None:
    holdings = Holdings()
    twice = holdings.ask("g0", "twice", 1, 1, 8)
    holdings.forget("g0", "twice", twice)  # refused the one time, granted the other
    assert holdings.take("g0", "twice", twice)
    assert holdings.of("g0")["twice"].stand is Stand.HELD
    back = holdings.ask("g1", "back", 1, 1, 8)
    holdings.give_back("g1", "back", 0.0)
    holdings.forget("g1", "back", back)

    assert not holdings.take("g1", "back", back)
    granted, _, _ = holdings.decide_alone("g1", "back", back, share_of=1, rank=0, others_known=False, now_s=0.0)
    assert not granted
    assert holdings.backends() == ["g0"]


def test_a_newer_epoch_voids_what_is_older() -> None:
    holdings = Holdings()
    holdings.ask("g0", "n", 1, 1, 8).stand = Stand.HELD
    holdings.hear("g0", 0.0, (0, 0, 0, 2, 8))

    assert holdings.of("g0")["n"].void
    assert holdings.seats("g0") == holdings.seats_possible("g0") == 0


@pytest.mark.parametrize(("draining", "before", "after"), [(1, False, True), (0, True, False), (-1, True, True)])
def test_no_word_on_draining_changes_nothing(draining: int, before: bool, after: bool) -> None:
    holdings = Holdings()
    holdings.hear("g0", 0.0, (0, 0, int(before)))

    seen = holdings.hear("g0", 0.0, (3, 1, draining))

    assert (seen.draining, seen.flag_missing, seen.elsewhere) == (after, draining < 0, 2)


def alone(holdings: Holdings, nonce: str, seats: int, *, others_known: bool = False) -> bool:
    holding = holdings.ask("g0", nonce, seats, 1, 4)
    return holdings.decide_alone("g0", nonce, holding, share_of=2, rank=0, others_known=others_known, now_s=0.0)[0]


def test_alone_grants_up_to_the_share() -> None:
    holdings = Holdings()

    assert [alone(holdings, "a", 1), alone(holdings, "b", 2), alone(holdings, "c", 1)] == [True, False, True]
    assert alone(holdings, "a", 1)
    assert alone(holdings, "none", 0)
    assert holdings.of("g0")["b"].stand is Stand.GONE


def test_alone_counts_others_while_they_are_known() -> None:
    holdings = Holdings()
    holdings.hear("g0", 0.0, (3, 0, -1))

    assert [alone(holdings, name, 1, others_known=True) for name in "ab"] == [True, False]


@given(
    limit=st.integers(1, 32), counts=st.lists(st.integers(0, 16), min_size=2, max_size=6), name=st.sampled_from("abc")
)
def test_together_they_never_take_more_than_the_limit(limit: int, counts: list[int], name: str) -> None:
    """Whatever each held when the store went: one that holds more than its share takes nothing until it holds less."""
    held = [min(count, max(0, limit - sum(counts[:number]))) for number, count in enumerate(counts)]
    most = 0
    for rank, mine in enumerate(held):
        holdings = Holdings()
        holdings.hear(name, 0.0, (sum(held), mine, -1))
        part = holdings.others_part(name, limit, share_of=len(held), rank=rank, others_known=True)
        most += max(mine, limit - part)
        later = holdings.others_part(name, limit, share_of=len(held), rank=rank, others_known=False)
        assert limit - later == fair_share(limit, len(held), rank, name)
    assert most <= limit


def test_nothing_is_remembered_for_ever() -> None:
    holdings = Holdings()
    for name in ("old", "kept", "held"):
        holdings.hear(name, 1.0, (0, 0, 0))
    holdings.hear("new", 9.0, (0, 0, 0))
    holdings.ask("held", "n", 1, 1, 8)
    holdings.ask("old", "gone", 1, 1, 8)
    holdings.give_back("old", "gone", 1.0)
    holdings.ask("new", "gone", 1, 1, 8)
    holdings.give_back("new", "gone", 9.0)

    holdings.prune(["kept"], seen_before_s=5.0, gone_before_s=5.0)

    assert holdings.seen.keys() == {"kept", "held", "new"}
    assert holdings.backends() == ["held", "new"]


def test_alone_a_slot_may_be_named_only_where_nobody_else_can_name_it() -> None:
    holdings = Holdings()

    def claims(nonce: str, slot: int | None, *, share_of: int = 1, names: bool = False) -> tuple[bool, bool]:
        holding = holdings.ask("g0", nonce, 1, 1, 8, slot)
        granted, _, slot_refused = holdings.decide_alone(
            "g0", nonce, holding, share_of=share_of, rank=0, others_known=False, now_s=0.0, names=names
        )
        return granted, slot_refused

    assert claims("a", 0) == (True, False)
    assert claims("a", 0) == (True, False), "said again"
    assert claims("b", 0) == (False, True)
    assert claims("b", 1) == (True, False)
    assert claims("c", 2, share_of=2) == (False, True)
    assert claims("c", 1, share_of=2, names=True) == (False, True), "we are at it ourselves"
    assert claims("c", 2, share_of=2, names=True) == (True, False), "we hear of what others name"
    assert claims("d", None) == (True, False)
    assert claims("e", 3) == (False, True), "one is at a slot that nobody knows"


def test_what_was_held_and_ended_without_the_store_is_marked() -> None:
    holdings = Holdings()
    holdings.ask("g0", "held", 1, 1, 8).stand = Stand.HELD
    holdings.ask("g0", "asked", 1, 1, 8)
    for nonce in ("held", "asked"):
        holdings.give_back("g0", nonce, 0.0, b"news", away=True)

    assert [holdings.of("g0")[nonce].over for nonce in ("held", "asked")] == [True, False]
