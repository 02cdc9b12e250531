from scheduler.leases import ENDED_KEPT, Lease, LeaseState, Ledger


def claim(ledger: Ledger, nonce: str, *, seats: int = 1, at_s: float = 0.0, backend_id: str = "a") -> Lease:
    lease = Lease(nonce, f"r-{nonce}", backend_id, 1, seats, None, at_s)
    ledger.claim(lease)
    return lease


def test_a_lease_counts_from_the_claim_to_the_release() -> None:
    ledger = Ledger()
    lease = claim(ledger, "n", seats=2)
    assert (ledger.seats("a"), lease.state) == (2, LeaseState.CLAIMING)

    assert ledger.grant("n", 1.0) is lease
    assert (ledger.seats("a"), lease.state, lease.since_s) == (2, LeaseState.HELD, 1.0)

    ledger.abandon("n", 2.0)
    assert (ledger.seats("a"), lease.state, lease.since_s) == (2, LeaseState.ABANDONED, 2.0)

    assert ledger.release("n", 3.0) is lease
    assert (ledger.seats("a"), len(ledger)) == (0, 0)


def test_seats_are_counted_by_model_whoever_holds_them() -> None:
    ledger = Ledger()
    for number, (model, owner) in enumerate([("m", ""), ("m", "two"), ("n", ""), (None, "")]):
        lease = Lease(f"n{number}", "r", "a", 1, 1 + number, model, 0.0, owner=owner)
        (ledger.hear if owner else ledger.claim)(lease)
    assert ledger.seats_by_model("a") == {"m": 3, "n": 3}
    ledger.void("a", 1.0)
    assert ledger.seats_by_model("a") == {"m": 2}, "what is on its way to a new engine does not count"
    assert ledger.seats_by_model("b") == {}


def test_what_comes_twice_or_is_unknown_does_nothing() -> None:
    ledger = Ledger()
    claim(ledger, "n")
    assert ledger.release("n", 0.5) is None, "not granted: nothing to give back"
    ledger.abandon("n", 0.5)
    assert ledger.grant("n", 1.0) is not None
    assert ledger.grant("n", 1.1) is None
    assert ledger.refuse("n") is None, "granted already"
    ledger.disown("n", 1.2)
    assert [lease.state for lease in ledger] == [LeaseState.HELD]
    assert ledger.release("n", 2.0) is not None
    assert ledger.release("n", 2.1) is None
    assert ledger.grant("n", 2.2) is None
    assert ledger.refuse("?") is None
    ledger.abandon("?", 3.0)
    ledger.disown("?", 3.0)
    assert ledger.get("?") is None


def test_a_refused_claim_frees_its_seats() -> None:
    ledger = Ledger()
    lease = claim(ledger, "n")

    assert ledger.refuse("n") is lease
    assert (ledger.seats("a"), len(ledger)) == (0, 0)


def test_a_disowned_claim_counts_until_it_is_answered() -> None:
    ledger = Ledger()
    claim(ledger, "n")
    ledger.disown("n", 1.0)
    assert ledger.seats("a") == 1

    granted = ledger.grant("n", 2.0)

    assert granted is not None
    assert granted.state is LeaseState.UNWANTED
    assert ledger.release("n", 2.0) is granted
    assert ledger.seats("a") == 0


def test_a_restart_voids_what_was_granted_and_uncounts_what_was_not() -> None:
    ledger = Ledger()
    held, claiming = claim(ledger, "held"), claim(ledger, "claiming", seats=2)
    other = claim(ledger, "other", backend_id="b")
    ledger.grant("held", 1.0)

    assert ledger.void("a", 2.0) == [held]

    assert (ledger.seats("a"), ledger.seats("b")) == (0, 1)
    assert claiming.state is LeaseState.UNWANTED
    assert list(ledger) == [claiming, other]
    assert ledger.void("a", 3.0) == []
    claim(ledger, "new")
    assert ledger.refuse("claiming") is claiming
    assert ledger.seats("a") == 1, "the old claim is not subtracted twice"


def test_remembers_what_ended_while_a_look_may_be_under_way() -> None:
    ledger = Ledger()
    for number, ends_s in enumerate((5.0, 6.0, 7.0)):
        claim(ledger, str(number))
        ledger.grant(str(number), 1.0)
        ledger.release(str(number), ends_s, remember=True)

    assert [ended.released_s for ended in ledger.ended_after("a", 5.5) or ()] == [6.0, 7.0]
    ledger.forget_ended("a", 6.0)
    assert [ended.released_s for ended in ledger.ended_after("a", 0.0) or ()] == [7.0]
    ledger.forget_ended("a", 9.0)
    assert ledger.ended_after("a", 0.0) == []
    assert not ledger._ended


def test_the_memory_of_ended_leases_is_bounded_and_says_when_it_is_not_enough() -> None:
    ledger = Ledger()
    for number in range(ENDED_KEPT + 10):
        claim(ledger, str(number))
        ledger.grant(str(number), float(number))
        ledger.release(str(number), number + 0.5, remember=True)

    assert ledger.ended_after("a", 3.0) is None
    assert len(ledger.ended_after("a", 100.0) or ()) == ENDED_KEPT + 10 - 100
    ledger.void("a", 1e6)
    assert ledger.ended_after("a", 3.0) == []


# Of other proxies


def hear(ledger: Ledger, nonce: str, *, seats: int = 1, heard_s: float = 1.0) -> Lease:
    lease = Lease(nonce, "r", "a", 1, seats, None, heard_s, LeaseState.HELD, granted_s=heard_s, owner="two")
    ledger.hear(lease)
    return lease


def test_leases_of_other_proxies_stand_beside_ours_and_owe_nothing() -> None:
    ledger = Ledger()
    ours, theirs = claim(ledger, "n"), hear(ledger, "m", seats=2)

    assert (ledger.seats("a"), ledger.seats_elsewhere("a")) == (1, 2)
    assert (list(ledger), len(ledger), ledger.of("a")) == ([ours], 1, [ours])
    assert (list(ledger.at("a")), list(ledger.elsewhere())) == ([ours, theirs], [theirs])
    assert (ledger.get("m"), ledger.heard("m"), ledger.heard("n")) == (None, theirs, None)
    assert ledger.release("m", 2.0) is None
    assert ledger.void("a", 2.0) == [], "what others hold they let go themselves"
    assert ledger.seats_elsewhere("a") == 2

    assert ledger.unhear("m", 3.0) is theirs
    assert ledger.unhear("m", 3.1) is None
    assert (ledger.seats_elsewhere("a"), list(ledger.elsewhere())) == (0, [])


def test_one_that_ended_elsewhere_explains_what_a_look_saw_of_it() -> None:
    ledger = Ledger()
    hear(ledger, "m", heard_s=5.0)
    ledger.unhear("m", 7.0, remember=True)

    [ended] = ledger.ended_after("a", 4.0) or []

    assert (ended.seats, ended.granted_s) == (1, float("-inf")), "it may have been granted before we heard of it"
    assert ledger.ended_after("a", 7.0) == []
