"""What becomes of a request whose slot was refused; the rest of its way is in `test_core` and `test_failures`."""

import pytest

from scheduler import effects, events
from scheduler.requests import SLOT_TRIES
from tests.scheduler.fleet import fleet
from tests.scheduler.world import World, claimed, of_type, talk

SYSTEM = (0, 600)


def refuse_slot(world: World, claim: effects.Claim) -> list[effects.Claim]:
    """The store refuses only the slot; returns the claims that follow at once."""
    del world.claims[claim.nonce]
    refused = events.ClaimRefused(claim.request_id, claim.nonce, 0, slot_refused=True)
    return of_type(world.feed(refused), effects.Claim)


def test_another_slot_is_tried_at_once_and_the_engine_chooses_after_some() -> None:
    world = fleet(limit=SLOT_TRIES + 2)
    [claim] = of_type(world.arrive(talk("r1", SYSTEM)), effects.Claim)
    slots = []
    while claim.slot is not None:
        slots.append(claim.slot)
        [claim] = refuse_slot(world, claim)

    assert len(set(slots)) == len(slots) == SLOT_TRIES
    world.answer_claims()
    assert world.running["r1"].slot is None


def test_where_all_slots_were_refused_the_engine_chooses() -> None:
    world = fleet(limit=1)
    [claim] = of_type(world.arrive(talk("r1", SYSTEM)), effects.Claim)

    [again] = refuse_slot(world, claim)

    assert (again.backend_id, again.slot) == ("a", None), "and the backend is not paused"


def test_a_refused_slot_is_named_again_after_a_moment() -> None:
    world = fleet(limit=2)
    [claim] = of_type(world.arrive(talk("r1", SYSTEM)), effects.Claim)
    refuse_slot(world, claim)
    assert world.scheduler.outlook.naming.slots_reserved("a")

    world.pass_time(0.2)
    world.client_leaves("r1")
    world.answer_claims()

    assert not world.scheduler.outlook.naming.slots_reserved("a")


@pytest.mark.parametrize("ended", [True, False])
def test_a_refusal_pauses_the_backend_unless_a_seat_fell_free_meanwhile(ended: bool) -> None:
    world = fleet(limit=1)
    [claim] = of_type(world.arrive(talk("r1", SYSTEM)), effects.Claim)
    if ended:
        state = world.scheduler._replica.get("a")
        assert state is not None
        state.hear_ended(1, world.now_s)

    again = claimed(world.refuse(claim.nonce, seats_elsewhere=1 if ended else 0))

    assert again == ([("r1", "a")] if ended else [])
