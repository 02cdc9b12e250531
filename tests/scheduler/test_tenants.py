"""Tenants beside each other: their shares, how much of each may run and wait, and what is charged."""

from typing import Any

import pytest

from scheduler import effects, events
from scheduler.domain import Failure, Operation, Outcome, Rejection
from scheduler.policy import Policy
from tests.scheduler.fleet import fleet, say
from tests.scheduler.prompts import Message
from tests.scheduler.world import OTHER_MODEL, World, backend, claimed, of_type, request, talk, world_of


def served(world: World, last: int = 10_000) -> list[str]:
    """Ids of what runs one after the other, each to its end."""
    order: list[str] = []
    while len(order) < last:
        world.answer_claims()
        if not world.running:
            break
        order.append(next(iter(world.running)))
        world.end(order[-1], answer=(999, 10))
    return order


def waits(world: World, request_id: str, tokens: int = 1000, **more: Any) -> None:
    """A prompt that nobody else has."""
    messages: list[Message] = [(int.from_bytes(request_id.encode(), "big"), tokens)]
    world.arrive(talk(request_id, *messages, arrived_s=world.now_s, max_output_tokens=10, **more), messages)


def crowd(quantum: int = 2000, **policy: Any) -> World:
    """One seat, taken by somebody else; everything costs the same but for its tokens."""
    world = fleet("a", limit=1, policy=Policy(quantum_tokens=quantum, hold_s=0.0, order="fcfs", **policy))
    waits(world, "first", tenant="somebody")
    world.answer_claims()
    return world


def tokens_of(order: list[str], sizes: dict[str, int]) -> dict[str, int]:
    """Tokens of what was served, by the first letter of its id."""
    used: dict[str, int] = {}
    for request_id in order:
        used[request_id[0]] = used.get(request_id[0], 0) + sizes.get(request_id[0], 0)
    return used


def test_two_tenants_that_wait_get_the_same_tokens_however_many_requests_they_have() -> None:
    world = crowd()
    sizes = {"x": 1000, "y": 4000}
    for number in range(60):
        waits(world, f"x{number}", sizes["x"], tenant="x")
    for number in range(15):
        waits(world, f"y{number}", sizes["y"], tenant="y")

    used = tokens_of(served(world, 40), sizes)

    assert abs(used["x"] - used["y"]) <= 2000 + 4000
    assert used["y"] >= 8000, "it does not wait until the older ones of the other are through"


def test_without_a_quantum_the_older_ones_go_first() -> None:
    world = crowd(quantum=0)
    for number in range(5):
        waits(world, f"x{number}", tenant="x")
    waits(world, "y", tenant="y")

    assert served(world)[1:] == ["x0", "x1", "x2", "x3", "x4", "y"]


@pytest.mark.parametrize("greedy_first", [True, False])
def test_nobody_starves_for_what_was_used_while_nobody_else_wanted_it(greedy_first: bool) -> None:
    world = fleet("a", limit=1, policy=Policy(quantum_tokens=2000, hold_s=0.0, order="fcfs"))
    for number in range(50):
        waits(world, f"alone{number}", tenant="x")
        served(world)
    waits(world, "now", tenant="z")
    world.answer_claims()
    for number in range(40):
        for tenant in ("x", "y") if greedy_first else ("y", "x"):
            waits(world, f"{tenant}{number}", tenant=tenant)

    order = served(world)[1:9]

    used = tokens_of(order, {"x": 1000, "y": 1000})
    assert abs(used["x"] - used["y"]) <= 2000 + 1000, order


def test_nor_for_what_was_used_from_the_line_while_nobody_else_was_in_it() -> None:
    world = crowd()
    for number in range(30):
        waits(world, f"x{number}", tenant="x")
    served(world, 25)
    for number in range(30):
        waits(world, f"y{number}", tenant="y")

    used = tokens_of(served(world, 9)[1:], {"x": 1000, "y": 1000})

    assert set(used) == {"x", "y"}


def test_a_tenant_that_cannot_use_the_seat_has_no_turn() -> None:
    """`y` waits for a backend that is full; `x` and `z` share the other one."""
    world = crowd()
    world.join(backend("b", limit=1, models=[OTHER_MODEL]))
    waits(world, "large", model=OTHER_MODEL, tenant="y")
    waits(world, "y", model=OTHER_MODEL, tenant="y")
    world.answer_claims()
    for number in range(10):
        waits(world, f"x{number}", tenant="x")
        waits(world, f"z{number}", tenant="z")
    world.end("first")

    order: list[str] = []
    while len(order) < 8:
        world.answer_claims()
        order.append(next(each for each in world.running if each != "large"))
        world.end(order[-1], answer=(999, 10))

    used = tokens_of(order, {"x": 1000, "z": 1000})
    assert abs(used["x"] - used["z"]) <= 3000
    assert world.waiting()[0] == "y"


@pytest.mark.parametrize("other_waits", [True, False])
def test_what_it_used_while_others_waited_for_another_backend_is_not_forgotten(other_waits: bool) -> None:
    world = crowd(quantum=2000)
    world.join(backend("b", limit=1, models=[OTHER_MODEL]))
    waits(world, "large", model=OTHER_MODEL, tenant="z")
    world.answer_claims()
    if other_waits:
        waits(world, "y", model=OTHER_MODEL, tenant="y")
    world.end("first")
    for number in range(10):
        waits(world, f"x{number}", tenant="x")
        world.answer_claims()
        world.end(f"x{number}", answer=(999, 10))

    assert (left(world, "x") <= -7000) is other_waits


def test_a_higher_priority_needs_no_turn() -> None:
    world = crowd()
    for number in range(10):
        waits(world, f"x{number}", tenant="x", priority="high")
    waits(world, "y", tenant="y", priority="normal")

    assert served(world)[-1] == "y"


def test_those_that_could_use_a_seat_share_it_though_another_one_has_its_turn_and_cannot() -> None:
    """`w` never used anything, but its prompt must not be computed beside the one that is."""
    world = fleet("a", limit=2, policy=Policy(quantum_tokens=300, hold_s=0.0, order="fcfs", max_prefills=1))
    say(world, "prefills", (1, 9000), tenant="somebody")
    say(world, "first", (2, 100), tenant="somebody", max_output_tokens=10)
    waits(world, "w", 9000, tenant="w")
    for tenant in "xz":
        for number in range(10):
            waits(world, f"{tenant}{number}", 100, tenant=tenant)

    order: list[str] = ["first"]
    while len(order) < 9:
        world.end(order[-1])
        world.answer_claims()
        order.append(next(each for each in world.running if each != "prefills"))

    used = tokens_of(order, {"x": 100, "z": 100})
    assert abs(used["x"] - used["z"]) <= 300 + 100, order


# What is charged


def left(world: World, tenant: str) -> float:
    return world.scheduler._matching.shares.left(1, tenant, world.policy.quantum_tokens)


def test_what_is_expected_is_charged_at_once_and_what_was_used_in_the_end() -> None:
    world = fleet("a", policy=Policy(quantum_tokens=20_000, output_weight=2.0))
    say(world, "r", (1, 1000), tenant="x", max_output_tokens=100)
    assert left(world, "x") == 20_000 - 1000 - 2 * 100

    world.end("r", answer=(2, 30))

    assert left(world, "x") == 20_000 - 1000 - 2 * 30


def test_what_is_cached_is_for_nothing() -> None:
    world = fleet("a", policy=Policy(quantum_tokens=20_000))
    messages: list[Message] = [(1, 1000)]
    say(world, "r1", *messages, tenant="y")
    world.end("r1", answer=(2, 30))

    say(world, "r2", (1, 1000), (2, 30), (3, 50), tenant="x", max_output_tokens=1)
    world.end("r2", answer=(4, 1))

    assert left(world, "x") == pytest.approx(20_000 - 50 - 2, abs=2)


def test_an_attempt_that_failed_costs_nothing() -> None:
    world = fleet("a", "b", policy=Policy(quantum_tokens=20_000))
    say(world, "r", (1, 1000), tenant="x", max_output_tokens=100)
    world.fail("r", Failure.CONNECT)
    assert left(world, "x") == 20_000

    world.answer_claims()
    world.end("r", answer=(2, 100))

    assert left(world, "x") == 20_000 - 1200


# Caps


def test_no_more_requests_of_a_tenant_run_than_may_even_if_all_come_at_once() -> None:
    world = world_of("a", "b", limit=4, policy=Policy(tenant_max_running=2))
    for number in range(5):
        world.arrive(request(f"x{number}", tenant="x"))
    world.arrive(request("y", tenant="y"))
    assert [claim.request_id for claim in world.claims.values()] == ["x0", "x1", "y"]

    world.answer_claims()

    assert world.waiting() == ["x2", "x3", "x4"]


@pytest.mark.parametrize("how", ["end", "fail", "client-leaves", "claim-refused", "client-leaves-while-claiming"])
def test_the_next_one_runs_as_soon_as_one_does_not_any_more(how: str) -> None:
    world = world_of("a", "b", limit=4, policy=Policy(tenant_max_running=1, max_attempts=1))
    (claim,) = of_type(world.arrive(request("x0", tenant="x")), effects.Claim)
    world.arrive(request("x1", tenant="x"))
    if "claim" not in how:
        world.answer_claims()

    if how == "end":
        done = world.end("x0")
    elif how == "fail":
        done = world.fail("x0", Failure.RESET)
    elif how == "claim-refused":
        done = world.refuse(claim.nonce, draining=True)
        assert [request_id for request_id, _ in claimed(done)] == ["x0"], "it keeps its turn"
        done = world.client_leaves("x0")
    else:
        done = world.client_leaves("x0")

    assert [request_id for request_id, _ in claimed(done)] == ["x1"]


def test_a_request_that_is_placed_anew_may_take_its_own_place() -> None:
    world = world_of("a", "b", limit=1, policy=Policy(tenant_max_running=1))
    world.arrive(request("x0", tenant="x"))
    (backend_id,) = {claim.backend_id for claim in world.claims.values()}

    done = world.leave(backend_id)

    assert [request_id for request_id, _ in claimed(done)] == ["x0"]


def test_who_needs_no_slot_is_not_counted() -> None:
    world = world_of("a", limit=4, policy=Policy(tenant_max_running=1))
    world.run(request("x0", tenant="x"))

    done = world.arrive(request("x1", tenant="x", seats=0, operation=Operation.TOKENIZE))

    assert len(of_type(done, effects.Dispatch)) == 1
    world.end("x1")
    assert claimed(world.arrive(request("x2", tenant="x"))) == []


def test_a_tenant_that_has_enough_waiting_is_told_so() -> None:
    world = world_of("a", policy=Policy(tenant_max_waiting=1))
    world.run(request("first"))
    world.arrive(request("x0", tenant="x"))

    (reject,) = of_type(world.arrive(request("x1", tenant="x")), effects.Reject)
    world.arrive(request("y0", tenant="y"))

    assert (reject.rejection, reject.detail) == (Rejection.TENANT_BUSY, "1 requests of this client wait already")
    assert reject.retry_after_s is not None
    assert world.waiting() == ["x0", "y0"]


def test_a_request_that_had_its_turn_may_wait_beside_them() -> None:
    world = world_of("a", policy=Policy(tenant_max_waiting=1))
    world.run(request("x0", tenant="x"))
    world.arrive(request("x1", tenant="x"))

    world.fail("x0", Failure.CONNECT)

    assert sorted([*world.waiting(), *(claim.request_id for claim in world.claims.values())]) == ["x0", "x1"]


def test_a_cap_that_is_lifted_lets_all_run() -> None:
    world = world_of("a", limit=4, policy=Policy(tenant_max_running=1))
    for number in range(3):
        world.arrive(request(f"x{number}", tenant="x"))

    world.policy = Policy()
    done = world.feed(events.PolicyChanged(world.policy))

    assert [request_id for request_id, _ in claimed(done)] == ["x1", "x2"]


def test_a_request_that_the_engine_refused_counts_no_more() -> None:
    world = world_of("a", limit=4, policy=Policy(tenant_max_running=1))
    world.run(request("x0", tenant="x"))

    world.end("x0", Outcome.ENGINE_REFUSED)

    assert claimed(world.arrive(request("x1", tenant="x"))) == [("x1", "a")]
