"""Who chooses the slot, and which one it is: what the outlook offers, and what then happens to requests."""

from typing import Any

import msgspec
import pytest

from scheduler import effects, events
from scheduler.domain import Engine, Measured, SlotState
from scheduler.policy import Policy
from tests.scheduler.fleet import fleet, say
from tests.scheduler.prompts import Message
from tests.scheduler.room import ANSWER, HELLO, NEXT, NOW_S, SYSTEM, Room
from tests.scheduler.world import World, backend, of_type, talk


@pytest.mark.parametrize(
    ("wanted", "names", "policy", "may"),
    [
        pytest.param({}, True, {}, True, id="we-do"),
        pytest.param({"can_name_slot": False}, True, {}, False, id="not-where-the-API-cannot-be-told"),
        pytest.param({"seats": 2}, True, {}, False, id="nor-for-several-slots-at-once"),
        pytest.param({}, False, {}, False, id="nor-where-others-use-the-engine"),
        pytest.param({}, True, {"choose_slot": False}, False, id="nor-against-the-policy"),
    ],
)
def test_who_chooses_the_slot(wanted: dict[str, Any], names: bool, policy: dict[str, Any], may: bool) -> None:
    room = Room()
    room.names = names

    fit = room.fit(talk("r", SYSTEM, HELLO, **wanted), Policy(**policy))

    assert (fit.slot is not None) is may
    assert fit.fresh_tokens == 600


def test_where_the_engine_chooses_it_is_expected_to_follow_its_own_rules() -> None:
    """It takes what is more than a tenth of the prompt, whatever is lost there; so it destroys long conversations."""
    room = Room()
    room.run((0, 128), (9, 4000))

    fit = room.fit(talk("r", (0, 128), (1, 600), can_name_slot=False))

    assert (fit.slot, fit.reused_tokens) == (None, 128)
    assert fit.loss_ms > 0.0
    assert room.fit(talk("r", (0, 128), (1, 6000), can_name_slot=False)).reused_tokens == 0, "too little in common"


def test_a_slot_is_named_once_at_a_time() -> None:
    room = Room()
    slots = [room.claim(talk(f"r{number}", SYSTEM, HELLO)).work for number in range(3)]

    assert [work.slot for work in slots if work] == [0, 1, 2]
    assert room.fit(talk("r", SYSTEM, HELLO)).slot is None, "none is left"


@pytest.mark.parametrize("how", ["refused", "granted-and-ended"])
def test_a_named_slot_may_be_named_again_once_its_claim_is_gone(how: str) -> None:
    room, wanted = Room(backend("a", limit=1)), talk("r", SYSTEM, HELLO)
    lease = room.claim(wanted)
    assert room.fit(wanted).slot is None

    if how == "refused":
        room.ledger.refuse(lease.nonce)
        room.outlook.gone(lease, room.now_s)
    else:
        room.grant(lease, wanted)
        assert room.fit(wanted).slot is None
        room.end(lease, wanted)

    assert room.fit(wanted).slot == 0


def test_while_the_engine_chose_for_somebody_nobody_knows_which_slots_are_idle() -> None:
    room, plain = Room(), talk("r", HELLO, can_name_slot=False)
    lease = room.start(plain)
    other = room.start(plain)
    assert room.fit(talk("r", SYSTEM)).slot is None

    room.end(lease, plain)
    assert room.fit(talk("r", SYSTEM)).slot is None, "one of them still runs"
    room.end(other, plain)

    assert room.fit(talk("r", SYSTEM)).slot is not None


def test_a_slot_that_the_engine_may_have_taken_meanwhile_is_not_named() -> None:
    room, named, plain = Room(), talk("r1", SYSTEM), talk("r2", HELLO, can_name_slot=False)
    lease = room.claim(named)
    room.start(plain)

    room.grant(lease, named)

    assert lease.work is not None
    assert lease.work.slot is None


def test_nor_is_one_of_an_engine_that_others_were_seen_to_use_meanwhile() -> None:
    room, named = Room(), talk("r1", SYSTEM)
    lease = room.claim(named)
    room.names = False

    room.grant(lease, named)

    assert lease.work is not None
    assert lease.work.slot is None


def test_a_claim_that_nobody_wanted_any_more_changes_nothing_for_those_that_run() -> None:
    room, plain = Room(), talk("r", HELLO, can_name_slot=False)
    unwanted = room.claim(plain)
    room.start(plain)

    room.ledger.grant(unwanted.nonce, NOW_S)
    room.ledger.release(unwanted.nonce, NOW_S)
    room.outlook.gone(unwanted, NOW_S)

    assert room.fit(talk("r", SYSTEM)).slot is None, "the other one's slot is still not known"


def test_other_slots_than_we_thought_mean_that_nothing_is_known_until_those_that_run_have_ended() -> None:
    room, wanted = Room(), talk("r", SYSTEM, HELLO)
    room.run(SYSTEM, HELLO)
    lease, waiting = room.start(wanted), room.claim(talk("r2", (5, 50)))
    room.backend = msgspec.structs.replace(room.backend, slots=2)

    room.outlook.resized("a")

    assert waiting.work is not None
    assert waiting.work.slot is None
    assert room.outlook.slot_shares.picture("a") == ()
    fit = room.fit(talk("r", SYSTEM, HELLO, ANSWER, NEXT))
    assert (fit.slot, fit.reused_tokens) == (None, 0)
    room.end(lease, wanted)
    assert len(room.outlook.mirror(room.backend, None).reuses(None, 1.0)) == 2
    assert room.fit(wanted).slot in (0, 1)


@pytest.mark.parametrize(
    ("named", "answered", "as_said"), [(True, None, True), (True, 0, True), (True, 2, False), (False, 2, True)]
)
def test_whether_the_slot_answered_that_was_named(named: bool, answered: int | None, as_said: bool) -> None:
    room, wanted = Room(), talk("r", SYSTEM, can_name_slot=named)

    assert room.end(room.start(wanted), wanted, Measured(slot=answered)) is as_said


def test_a_look_that_shows_a_slot_busy_which_we_hold_for_idle() -> None:
    room = Room()
    room.start(talk("r", SYSTEM))
    ours, theirs = SlotState(0, True), SlotState(1, True)

    assert room.outlook.reported(room.backend, (ours, SlotState(1, False)), NOW_S + 1.0)
    assert room.outlook.reported(room.backend, (), NOW_S + 1.0)
    assert not room.outlook.reported(room.backend, (ours, theirs), NOW_S + 1.0)
    ollama = msgspec.structs.replace(room.backend, engine=Engine.OLLAMA)
    assert room.outlook.reported(ollama, (ours, theirs), NOW_S + 1.0), "its slots belong to models"


# In the world


def test_turns_of_two_conversations_stay_on_their_slots() -> None:
    world = fleet()
    talks: dict[str, list[Message]] = {"x": [(0, 64), (10, 500)], "y": [(0, 64), (20, 500)]}
    slots: dict[str, set[int | None]] = {"x": set(), "y": set()}
    for turn in range(4):
        for who, messages in talks.items():
            dispatch = say(world, f"{who}{turn}", *messages)
            slots[who].add(dispatch.slot)
            cached = world.engines.of("a").cached[dispatch.nonce]
            assert dispatch.decision.ranking[0].reused_tokens == pytest.approx(cached, abs=64)
            world.end(dispatch.request_id, answer=(100 + 10 * turn + ord(who), 30))
            messages += [(100 + 10 * turn + ord(who), 30), (500 + 10 * turn + ord(who), 40)]

    assert len(slots["x"]) == len(slots["y"]) == 1
    assert slots["x"] != slots["y"]


def test_a_slot_that_was_not_the_one_that_answered_ends_our_choosing_until_the_engine_was_idle() -> None:
    world = fleet()
    say(world, "r1", SYSTEM)

    done = world.end("r1", answer=(9, 20), other_slot=1)

    (told,) = of_type(done, effects.SlotChoice)
    assert (told.backend_id, told.ours) == ("a", False)
    assert "slot 1 answered" in told.because
    assert say(world, "r2", SYSTEM, HELLO).slot is None
    world.end("r2")

    assert of_type(world.look("a", foreign=1), effects.SlotChoice) == [], "still not sure"
    (told,) = of_type(world.look("a"), effects.SlotChoice)

    assert told.ours
    assert say(world, "r3", SYSTEM, HELLO).slot is not None


def test_a_look_that_tells_nothing_of_slots_proves_nothing() -> None:
    world = fleet()
    say(world, "r1", SYSTEM)
    world.end("r1", answer=(9, 20), other_slot=1)

    report = msgspec.structs.replace(world.report("a"), busy_slots=None)
    world.feed(events.BackendReported(report))

    assert not world.view("a").names_slots


def test_a_slot_that_somebody_else_was_seen_on_is_not_named() -> None:
    world = fleet()
    world.engines.of("a").foreigner_comes(0, world.now_s)

    (told,) = of_type(world.look("a", shown=True), effects.SlotChoice)

    assert not told.ours
    assert say(world, "r1", SYSTEM).slot is None
    world.engines.of("a").foreigners_leave()
    world.end("r1")
    world.look("a", shown=True)
    assert say(world, "r2", SYSTEM).slot is not None


def test_a_foreigner_is_seen_by_its_slot_even_where_the_number_of_busy_ones_seems_right() -> None:
    """One slot is busy, and one request of ours that was abandoned may be at it; but not on that slot."""
    world = fleet()
    dispatch = say(world, "r1", SYSTEM)
    world.client_leaves("r1")
    world.notice(dispatch.nonce)
    world.engines.of("a").foreigner_comes(1, world.now_s)

    done = world.look("a", shown=True)

    assert world.view("a").foreign_busy == 0
    assert of_type(done, effects.SlotChoice) == [
        effects.SlotChoice("a", False, "a slot is busy that is idle by our account")
    ]


def test_nor_one_whose_claim_was_under_way_when_somebody_else_was_seen() -> None:
    world = fleet()
    world.arrive(talk("r1", SYSTEM))
    world.engines.of("a").foreigner_comes(0, world.now_s)
    world.look("a", shown=True)

    world.answer_claims()

    assert world.running["r1"].slot is None


def test_a_claim_that_nobody_wants_any_more_hides_no_request_whose_slot_is_not_known() -> None:
    world = fleet()
    say(world, "plain", HELLO, can_name_slot=False)
    world.arrive(talk("left", HELLO, can_name_slot=False))
    world.client_leaves("left")
    world.answer_claims()

    assert say(world, "r", SYSTEM).slot is None


@pytest.mark.parametrize(
    ("joins", "told"),
    [
        pytest.param(backend("a", limit=3, managed=True), True, id="one-that-we-started"),
        pytest.param(backend("a", limit=3), False, id="an-external-one-before-its-first-look"),
        pytest.param(backend("a", limit=3, managed=True, slot_source="leases"), False, id="one-that-hides-its-slots"),
        pytest.param(backend("a", limit=3, managed=True, engine=Engine.OLLAMA), False, id="ollama-chooses-by-itself"),
    ],
)
def test_whose_slots_are_ours_to_name(joins: Any, told: bool) -> None:
    world = World()
    world.join(joins)

    assert (say(world, "r1", SYSTEM).slot is not None) is told


def test_an_external_engine_s_slots_are_named_once_a_look_showed_nobody_else() -> None:
    world = World()
    world.join(backend("a", limit=3))
    assert [told.ours for told in of_type(world.look("a"), effects.SlotChoice)] == [True]
    assert say(world, "r1", SYSTEM).slot is not None

    told = of_type(world.feed(events.OccupancyReported("a", 1, world.now_s)), effects.SlotChoice)
    assert told == [effects.SlotChoice("a", False, "other proxies use it")]
    assert say(world, "r2", HELLO).slot is None


def test_a_restarted_engine_holds_nothing() -> None:
    world = fleet()
    say(world, "r1", SYSTEM, HELLO)
    world.end("r1", answer=ANSWER)

    world.join(backend("a", limit=3, epoch=2))

    assert say(world, "r2", SYSTEM, HELLO, ANSWER, NEXT).decision.ranking[0].reused_tokens == 0


def test_an_engine_with_fewer_slots_than_we_thought_is_not_told_one_that_it_has_not() -> None:
    world = World()
    world.join(backend("a", limit=2, slots=4, managed=True))
    for number in range(4):
        say(world, f"r{number}", (10 + number, 100))
        world.end(f"r{number}", answer=(20 + number, 10))
    world.engines.gone("a")

    world.join(backend("a", limit=1, managed=True))

    for number in range(4):
        dispatch = say(world, f"s{number}", (10 + number, 100), (20 + number, 10), (30 + number, 10))
        assert dispatch.slot in (None, 0)
        world.end(f"s{number}")
