import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler.domain import SlotState
from scheduler.mirror import MOST_SLOTS, Mirror
from scheduler.slot_contents import Reuse
from tests.scheduler.prompts import TOKENS_PER_BYTE, Message, prompt_of

SYSTEM, USER, ANSWER, NEXT, OTHER = (1, 128), (2, 64), (3, 64), (4, 64), (5, 64)
NEVER = float("-inf")


def length(messages: list[Message]) -> int:
    return sum(tokens for _, tokens in messages)


def run(mirror: Mirror, nonce: str, messages: list[Message], slot: int | None, now_s: float, output: int = 64) -> None:
    mirror.take(nonce, prompt_of(messages), length(messages), slot, now_s)
    mirror.done(nonce, length(messages), output, now_s)


def offers(mirror: Mirror, messages: list[Message]) -> dict[int, Reuse]:
    return {reuse.slot: reuse for reuse in mirror.reuses(prompt_of(messages), TOKENS_PER_BYTE)}


def test_a_fresh_backend_offers_nothing_but_room() -> None:
    mirror = Mirror(2)

    assert mirror.idle() == 2
    assert mirror.reuses(prompt_of([SYSTEM]), TOKENS_PER_BYTE) == [
        Reuse(0, 0, 128, 0, 0, NEVER),
        Reuse(1, 0, 128, 0, 0, NEVER),
    ]
    assert mirror.reuses(None, TOKENS_PER_BYTE) == [Reuse(0, 0, 0, 0, 0, NEVER), Reuse(1, 0, 0, 0, 0, NEVER)]


def test_what_idle_slots_offer() -> None:
    mirror = Mirror(4)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    run(mirror, "b", [SYSTEM, OTHER], 1, 2.0)
    run(mirror, "c", [OTHER], 2, 3.0)
    mirror.take("d", prompt_of([SYSTEM, NEXT]), 192, 3, 4.0)

    assert mirror.reuses(prompt_of([SYSTEM, USER, ANSWER, NEXT]), TOKENS_PER_BYTE) == [
        Reuse(0, 255, 64, 0, 0, 1.0),  # the conversation goes on
        Reuse(1, 128, 192, 127, 0, 2.0),
        Reuse(2, 0, 320, 127, 0, 3.0),
    ]
    assert mirror.reuses(prompt_of([NEXT]), TOKENS_PER_BYTE) == [
        Reuse(0, 0, 64, 255, 128, 1.0),  # the system prompt is in another slot too
        Reuse(1, 0, 64, 255, 128, 2.0),
        Reuse(2, 0, 64, 127, 0, 3.0),
    ]
    assert mirror.reuses(None, TOKENS_PER_BYTE)[0] == Reuse(0, 0, 0, 255, 128, 1.0)


def test_the_engine_chooses_where_nothing_is_named() -> None:
    mirror = Mirror(3)
    prompts = [[SYSTEM, USER], [SYSTEM, OTHER], [OTHER]]

    assert [mirror.take(str(each), prompt_of(each), length(each), None, 0.0) for each in prompts] == [2, 1, 0]
    assert mirror.take("full", prompt_of([NEXT]), 64, None, 0.0) is None
    assert mirror.idle() == 0


def test_a_slot_that_is_not_idle_cannot_be_named() -> None:
    mirror = Mirror(2)
    mirror.take("a", None, 10, 0, 0.0)

    assert mirror.take("b", None, 10, 0, 0.0) == 1
    assert mirror.take("c", None, 10, 7, 0.0) is None


def test_the_same_nonce_twice_is_one_request() -> None:
    mirror = Mirror(2)

    assert mirror.take("a", None, 10, None, 0.0) == 1
    assert mirror.take("a", None, 10, None, 0.0) == 1
    mirror.done("a", 10, 10, 1.0)
    version = mirror.version
    mirror.done("a", 10, 10, 1.0)
    mirror.dropped("a", 1.0)
    mirror.abandon("a")
    mirror.correct("a", 5)
    assert (mirror.idle(), mirror.version, mirror.predicted("a")) == (2, version, None)


def test_several_seats() -> None:
    mirror = Mirror(4)

    assert mirror.take("a", prompt_of([SYSTEM, USER]), 192, None, 0.0, seats=3) == 3
    assert (mirror.idle(), mirror.predicted("a")) == (1, None)
    mirror.done("a", 192, 300, 1.0)

    assert mirror.idle() == 4
    found = offers(mirror, [SYSTEM, USER, ANSWER, NEXT])
    assert {slot: reuse.reused_tokens for slot, reuse in found.items()} == {3: 192, 2: 0, 1: 0, 0: 0}


def test_a_request_that_got_no_slot_ends_quietly() -> None:
    mirror = Mirror(1)
    mirror.take("a", None, 10, None, 0.0)
    mirror.take("b", prompt_of([SYSTEM]), 128, None, 0.0)
    mirror.done("b", 128, 10, 1.0)
    mirror.done("a", 10, 10, 2.0)

    assert mirror.idle() == 1


@pytest.mark.parametrize(("answered", "reused"), [(False, 0), (True, 192)])
def test_a_cancelled_request_leaves_its_prompt_if_it_was_computed(answered: bool, reused: int) -> None:
    mirror = Mirror(1)
    mirror.take("a", prompt_of([SYSTEM, USER]), 192, 0, 0.0)
    mirror.dropped("a", 1.0, answered=answered)

    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[0].reused_tokens == reused


def test_what_was_not_told_is_estimated() -> None:
    mirror = Mirror(1)
    mirror.take("a", prompt_of([SYSTEM, USER]), 192, 0, 0.0)
    mirror.done("a", None, None, 1.0)

    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[0] == Reuse(0, 192, 128, 0, 0, 1.0)


def test_later() -> None:
    mirror = Mirror(4)
    question = prompt_of([SYSTEM, OTHER])
    mirror.take("a", prompt_of([SYSTEM, USER]), 192, 0, 0.0)
    mirror.take("b", question, 192, 1, 0.0)
    mirror.take("c", prompt_of([OTHER]), 64, 2, 0.0)

    assert mirror.later(question, TOKENS_PER_BYTE) == [("b", 191), ("a", 128)]
    assert mirror.later(None, TOKENS_PER_BYTE) == []
    mirror.abandon("b")
    assert mirror.later(question, TOKENS_PER_BYTE) == [("a", 128)]
    assert mirror.idle() == 1
    mirror.done("a", 192, 10, 1.0)
    assert mirror.later(question, TOKENS_PER_BYTE) == []


def test_common_bytes_of_any_slot() -> None:
    mirror = Mirror(2)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    mirror.take("b", prompt_of([SYSTEM, USER, ANSWER]), 256, 1, 2.0)

    asked = ([SYSTEM, USER, ANSWER, NEXT], [SYSTEM, OTHER], [OTHER], [(7, 3)])
    assert [mirror.common_bytes(prompt_of(messages)) for messages in asked] == [4 * 256, 4 * 128, 0, 0]
    mirror.dropped("b", 3.0)
    assert mirror.common_bytes(prompt_of(asked[0])) == 4 * 192


def test_predictions_that_come_true_keep_the_trust() -> None:
    mirror = Mirror(2)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    mirror.take("b", prompt_of([SYSTEM, USER, ANSWER, NEXT]), 320, 0, 2.0)

    assert mirror.predicted("b") == 255
    for cached in (191, 255, 319, 9999):  # within the tolerance, or more than we knew of
        mirror.correct("b", cached)
    assert mirror.trust == 1.0


def test_low_trust_scales_what_is_promised() -> None:
    mirror = Mirror(3, host_tokens=10_000)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    mirror.take("b", prompt_of([SYSTEM]), 128, 1, 2.0)
    for _ in range(7):
        mirror.take("wrong", prompt_of([SYSTEM, USER, ANSWER]), 256, 2, 3.0)
        mirror.done("wrong", 256, 1, 3.0)
        mirror.take("wrong", prompt_of([SYSTEM, USER, ANSWER, NEXT]), 320, 2, 3.0)
        version = mirror.version
        mirror.correct("wrong", 0)
        assert mirror.version > version
        mirror.dropped("wrong", 3.0)

    assert mirror.trust == pytest.approx(0.9**7)
    reused = int(255 * 0.9**7)
    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[0] == Reuse(0, reused, 64 + 255 - reused, 0, 0, 1.0)
    assert mirror.later(prompt_of([SYSTEM, OTHER]), TOKENS_PER_BYTE) == [("b", int(128 * 0.9**7))]
    mirror.clear()
    assert mirror.trust == 1.0


def test_a_wrong_prediction_of_the_engines_choice_cuts_what_we_believed() -> None:
    following = [SYSTEM, USER, ANSWER, NEXT]
    mirror = Mirror(4)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    run(mirror, "b", [SYSTEM, USER], 1, 2.0)
    run(mirror, "c", [SYSTEM, OTHER], 2, 3.0)
    mirror.take("d", prompt_of([SYSTEM, USER]), 192, 3, 4.0)

    assert mirror.take("e", prompt_of(following), 320, None, 5.0) == 0
    mirror.done("d", 192, 64, 6.0)
    mirror.correct("e", 130)

    found = {slot: reuse.reused_tokens for slot, reuse in offers(mirror, following).items()}
    assert found == {1: 130, 2: 128, 3: 255}  # 3 was busy when the engine chose


def test_a_wrong_prediction_for_a_named_slot_says_nothing_of_others() -> None:
    following = [SYSTEM, USER, ANSWER, NEXT]
    mirror = Mirror(2)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    run(mirror, "b", [SYSTEM, USER], 1, 2.0)
    mirror.take("e", prompt_of(following), 320, 0, 5.0)
    mirror.correct("e", 0)

    assert offers(mirror, following)[1].reused_tokens == 255


@pytest.mark.parametrize(
    ("reported", "asked_at_s", "alone", "reused"),
    [
        (SlotState(id=0, busy=False, cached_tokens=255), 2.0, True, 255),
        (SlotState(id=0, busy=False, cached_tokens=200), 2.0, True, 200),
        (SlotState(id=0, busy=False, cached_tokens=0), 2.0, True, 0),
        (SlotState(id=0, busy=False), 2.0, True, 255),
        (SlotState(id=0, busy=False, cached_tokens=310), 2.0, True, 255),
        (SlotState(id=0, busy=False, cached_tokens=330), 2.0, True, 0),  # somebody else's
        (SlotState(id=0, busy=False, cached_tokens=0), 0.5, True, 255),  # older than what we know
        (SlotState(id=0, busy=True, cached_tokens=500), 2.0, False, 0),
        (SlotState(id=0, busy=True), 0.5, True, 255),
        (SlotState(id=1, busy=True, cached_tokens=0), 2.0, True, 255),  # ours
        (SlotState(id=9, busy=True, cached_tokens=0), 2.0, True, 255),
    ],
)
def test_reports(reported: SlotState, asked_at_s: float, alone: bool, reused: int) -> None:
    mirror = Mirror(2)
    run(mirror, "a", [SYSTEM, USER], 0, 1.0)
    mirror.take("b", prompt_of([OTHER]), 64, 1, 1.5)
    version = mirror.version

    assert mirror.report([reported], asked_at_s) is alone
    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[0].reused_tokens == reused
    assert (mirror.version > version) is (reused < 255)
    before = mirror.version
    assert mirror.report([reported], asked_at_s)
    assert mirror.version == before


def test_a_foreign_request_makes_its_slot_the_last_used() -> None:
    mirror = Mirror(2)

    assert not mirror.report([SlotState(id=1, busy=True)], 5.0)
    assert mirror.take("a", prompt_of([SYSTEM]), 128, None, 6.0) == 0


def test_the_host_cache_gives_back_what_a_slot_lost() -> None:
    mirror = Mirror(1, host_tokens=1000)
    run(mirror, "a", [SYSTEM, USER], None, 1.0)
    run(mirror, "b", [(9, 64)], None, 2.0)
    following = prompt_of([SYSTEM, USER, ANSWER, NEXT])

    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[0].reused_tokens == 0
    mirror.take("c", following, 320, None, 3.0)
    assert mirror.predicted("c") == 255


@pytest.mark.parametrize(("unified", "in_slot"), [(False, 255), (True, 0)])
def test_copies_of_idle_slots(unified: bool, in_slot: int) -> None:
    mirror = Mirror(2, host_tokens=1000, copies_idle=True, unified=unified)
    run(mirror, "a", [SYSTEM, USER], 1, 1.0)
    mirror.take("b", prompt_of([OTHER]), 64, 0, 2.0)
    following = prompt_of([SYSTEM, USER, ANSWER, NEXT])

    assert offers(mirror, [SYSTEM, USER, ANSWER, NEXT])[1].reused_tokens == in_slot
    run(mirror, "c", [OTHER], 1, 3.0)  # what it had is only in the host cache now
    mirror.done("b", None, None, 4.0)
    mirror.take("d", following, 320, None, 5.0)
    assert mirror.predicted("d") == 255


STEPS = st.tuples(
    st.sampled_from(["take", "take", "done", "dropped", "abandon", "correct", "report", "clear"]),
    st.integers(0, 4),
    st.lists(st.sampled_from([SYSTEM, USER, OTHER, (6, 3), (7, 0)]), max_size=4),
    st.none() | st.integers(-1, 400),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=40), st.booleans(), st.booleans())
def test_nonsense_from_an_engine_never_makes_nonsense_here(
    steps: list[tuple[str, int, list[Message], int | None]], host: bool, unified: bool
) -> None:
    mirror = Mirror(3, host_tokens=500 if host else 0, copies_idle=True, unified=unified)
    for now_s, (what, who, messages, number) in enumerate(steps):
        nonce, version, before = str(who), mirror.version, mirror.reuses(prompt_of([SYSTEM, USER]), 0.3)
        if what == "take":
            mirror.take(nonce, prompt_of(messages) if number else None, number or 0, number, now_s, seats=1 + who // 4)
        elif what == "done":
            mirror.done(nonce, number, number, now_s)
        elif what == "dropped":
            mirror.dropped(nonce, now_s, answered=bool(messages))
        elif what == "abandon":
            mirror.abandon(nonce)
        elif what == "correct":
            mirror.correct(nonce, number or 0)
        elif what == "report":
            mirror.report([SlotState(id=who, busy=not messages, cached_tokens=number)], now_s - 0.5)
        else:
            mirror.clear()

        offered = mirror.reuses(prompt_of([SYSTEM, USER]), 0.3)
        assert version < mirror.version or offered == before
        assert len(offered) == mirror.idle() == len({reuse.slot for reuse in offered})
        for reuse in offered:
            assert reuse.reused_tokens >= 0
            assert reuse.fresh_tokens >= 1
            assert 0 <= reuse.shared_lost <= reuse.lost_tokens
        assert 0 <= mirror.trust <= 1


def test_a_slot_that_the_store_knows_to_be_free_is_vacated() -> None:
    mirror = Mirror(2)
    mirror.take("n", prompt_of([SYSTEM]), 128, 0, 1.0)

    mirror.vacate(0)
    mirror.vacate(1)
    assert mirror.idle() == 2
    assert mirror.take("m", prompt_of([OTHER]), 64, 0, 2.0) == 0
    mirror.correct("n", 0)
    mirror.done("n", 128, 50, 3.0)

    assert mirror.idle() == 1, "the end of the one before changes the slot no more"
    assert mirror.trust == 1.0


def test_of_an_engine_with_very_many_slots_only_so_many_are_accounted_for() -> None:
    assert Mirror(10_000).idle() == MOST_SLOTS
