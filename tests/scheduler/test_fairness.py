import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler import fairness
from scheduler.fairness import Shares

NORMAL, LOW = 1, 2


def shares(**left: float) -> Shares:
    """Tenants that may still use so much of a quantum of 100."""
    made = Shares()
    for tenant, tokens in left.items():
        made.charge(NORMAL, tenant, 100.0 - tokens, 100.0)
    return made


@pytest.mark.parametrize(
    ("left", "turn", "after"),
    [
        pytest.param({}, [], {}, id="nobody-waits"),
        pytest.param({"x": 100, "y": 1}, ["x", "y"], {"x": 100, "y": 1}, id="both-have-something-left"),
        pytest.param({"x": 0, "y": 1}, ["y"], {"x": 0, "y": 1}, id="nothing-left-is-not-enough"),
        pytest.param({"x": -5, "y": 1}, ["y"], {"x": -5, "y": 1}, id="who-used-more-than-its-share-waits"),
        pytest.param({"x": 0, "y": 0}, ["x", "y"], {"x": 100, "y": 100}, id="all-used-up: the next turn"),
        pytest.param({"x": -30, "y": -90}, ["x", "y"], {"x": 70, "y": 10}, id="what-was-too-much-counts"),
        pytest.param({"x": -30, "y": -150}, ["x"], {"x": 70, "y": -50}, id="one-turn-is-not-enough-for-y"),
        pytest.param({"x": -250, "y": -1000}, ["x"], {"x": 50, "y": -700}, id="as-many-turns-as-x-needs"),
        pytest.param({"x": -100, "y": -199}, ["x", "y"], {"x": 100, "y": 1}, id="x-needs-two: just-nothing-left"),
        pytest.param({"x": 0, "y": -100}, ["x"], {"x": 100, "y": 0}, id="not-more-turns-than-needed"),
        pytest.param({"x": -1000}, ["x"], {"x": -1000}, id="alone: its-turn-whatever-it-used"),
    ],
)
def test_whose_turn_it_is(left: dict[str, float], turn: list[str], after: dict[str, float]) -> None:
    known = shares(**left)

    assert sorted(known.eligible(NORMAL, list(left), 100.0)) == turn
    assert {tenant: known.left(NORMAL, tenant, 100.0) for tenant in left} == after


@pytest.mark.parametrize(
    ("left", "others", "after"),
    [
        pytest.param(-1000, False, 100, id="no-debt"),
        pytest.param(0, False, 100, id="nothing-left"),
        pytest.param(40, False, 40, id="nor-a-gift"),
        pytest.param(-1000, True, -1000, id="but-others-wait-elsewhere"),
    ],
)
def test_who_is_alone_owes_nothing(left: float, others: bool, after: float) -> None:
    known = shares(x=left)

    known.alone(NORMAL, "x", 100.0, others=others)

    assert known.left(NORMAL, "x", 100.0) == after


def test_a_tenant_that_nobody_knows_has_a_whole_quantum() -> None:
    assert Shares().left(NORMAL, "x", 100.0) == 100.0
    assert shares(y=-10).eligible(NORMAL, ["x", "y"], 100.0) == ["x"]


def test_those_that_do_not_wait_get_no_turns() -> None:
    known = shares(x=-50, y=-50, z=-50)

    known.eligible(NORMAL, ["x", "y"], 100.0)

    assert known.left(NORMAL, "z", 100.0) == -50


def test_priorities_have_accounts_of_their_own() -> None:
    known = shares(x=-50)

    assert known.left(LOW, "x", 100.0) == 100.0


def test_without_a_quantum_it_is_always_everybodys_turn_and_nobody_owes_anything() -> None:
    known = Shares()
    known.charge(NORMAL, "x", 1e6, 0.0)

    known.alone(NORMAL, "x", 0.0, others=False)

    assert known.eligible(NORMAL, ["x", "y"], 0.0) == ["x", "y"]
    assert known.left(NORMAL, "x", 100.0) == 100.0


def test_what_was_charged_too_much_comes_back_but_not_more_than_a_quantum() -> None:
    known = shares(x=-100)
    known.charge(NORMAL, "x", -150.0, 100.0)
    assert known.left(NORMAL, "x", 100.0) == 50

    known.charge(NORMAL, "x", -150.0, 100.0)

    assert known.left(NORMAL, "x", 100.0) == 100


def test_requests_that_run_are_counted_over_all_priorities() -> None:
    known = Shares()
    for _ in range(2):
        known.began("x")
    assert (known.running("x"), known.running("y")) == (2, 0)

    for _ in range(3):
        known.ended("x")

    assert known.running("x") == 0
    assert not known._running, "nothing is remembered of those that run nothing"


def test_the_tenants_that_were_seen_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "KEPT", 3)
    known = shares(a=-1, b=-2, c=-3)
    known.left(NORMAL, "a", 100.0)

    known.charge(NORMAL, "d", 4.0, 100.0)

    assert {tenant for _, tenant in known._left} == {"c", "a", "d"}
    assert known.left(NORMAL, "b", 100.0) == 100.0, "begins anew"


MOST = 500.0


@given(
    quantum=st.floats(1.0, 1000.0),
    tenants=st.integers(2, 5),
    requests=st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, MOST)), max_size=200),
)
def test_tenants_that_always_wait_use_the_same_but_for_a_quantum_and_a_request(
    quantum: float, tenants: int, requests: list[tuple[int, float]]
) -> None:
    """Whoever goes of those whose turn it is: the bound of deficit round robin, where requests are paid afterwards."""
    known = Shares()
    used = {str(number): 0.0 for number in range(tenants)}
    for choice, tokens in requests:
        turn = sorted(known.eligible(NORMAL, list(used), quantum))
        assert turn, "it is always somebody's turn"
        tenant = turn[choice % len(turn)]
        known.charge(NORMAL, tenant, tokens, quantum)
        used[tenant] += tokens

        assert max(used.values()) - min(used.values()) <= (quantum + MOST) * 1.000001


@given(
    quantum=st.floats(1.0, 1000.0),
    past=st.lists(st.tuples(st.sampled_from("xyz"), st.floats(0.0, MOST)), max_size=50),
    requests=st.lists(st.floats(1.0, MOST), min_size=60, max_size=60),
)
def test_whatever_was_before_a_waiting_tenant_gets_its_turn(
    quantum: float, past: list[tuple[str, float]], requests: list[float]
) -> None:
    """What each used while it was alone is not held against it, nor saved up."""
    known = Shares()
    for tenant, tokens in past:
        known.alone(NORMAL, tenant, quantum, others=False)
        known.charge(NORMAL, tenant, tokens, quantum)
    before_x = 0.0
    for tokens in requests:
        turn = known.eligible(NORMAL, "xyz", quantum)
        if "x" in turn:
            break
        before_x += tokens
        known.charge(NORMAL, max(turn), tokens, quantum)

    # The others use up what they had, then x needs turns for one request, in each of which they use a quantum.
    assert before_x <= 2 * (quantum + MOST) + 2 * (MOST + quantum)


def test_another_proxy_goes_on_with_the_same_shares() -> None:
    shares, other = Shares(), Shares()
    shares.charge(1, "x", 700.0, 1000.0)
    shares.charge(0, "y", 100.0, 1000.0)

    other.restore(shares.picture())

    assert other.picture() == shares.picture()
    assert (other.left(1, "x", 1000.0), other.left(0, "y", 1000.0)) == (300.0, 900.0)
