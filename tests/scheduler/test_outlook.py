"""What a request would find at a backend, at 1 ms per token to compute and 10 ms per token of an answer."""

from math import inf
from typing import Any

import msgspec
import pytest

from scheduler.case import Case
from scheduler.domain import Engine, Gpu, Measured, Residency
from scheduler.endings import LEAST_LEFT_TOKENS, OUTRUN
from scheduler.estimates import PRIOR_OUTPUT_TOKENS, Estimates
from scheduler.outlook import NOTHING, SLOW_LIMIT, Fit, Reuses
from scheduler.policy import Policy
from scheduler.priors import rates_for
from tests.scheduler.room import ANSWER, HELLO, NEXT, NOW_S, POLICY, RATES, SYSTEM, Room
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request, talk

# What is reused, and what that costs


def test_a_new_prompt_is_computed_whole() -> None:
    assert Room().fit(talk("r", SYSTEM, HELLO)) == Fit(slot=0, fresh_tokens=600, prefill_ms=600.0)


def test_a_conversation_goes_on_where_it_was_and_only_what_is_new_is_computed() -> None:
    room = Room()
    assert room.run(SYSTEM, HELLO) == 0

    fit = room.fit(talk("r", SYSTEM, HELLO, ANSWER, NEXT))

    assert (fit.slot, fit.reused_tokens, fit.fresh_tokens, fit.prefill_ms) == (0, 650, 100, 100.0)
    assert fit.loss_ms == 0.0, "nothing is overwritten"


def test_another_conversation_takes_an_empty_slot_rather_than_one_that_would_lose_a_long_one() -> None:
    room = Room()
    long = (9, 4000)
    room.run((0, 64), long)

    fit = room.fit(talk("r", (0, 64), HELLO))

    assert (fit.slot, fit.reused_tokens, fit.loss_ms) == (1, 0, 0.0)


def test_what_is_lost_costs_less_the_longer_nobody_came_back_for_it() -> None:
    room = Room()
    for number in range(3):
        room.run((10 + number, 1000))
    losses = [room.fit(talk("r", HELLO), now_s=NOW_S + age_s).loss_ms for age_s in (1.0, 30.0, 600.0, 1e6)]

    assert losses == sorted(losses, reverse=True)
    assert 0.0 < losses[1] < losses[0] <= 1050.0
    assert losses[3] == pytest.approx(0.0, abs=1e-3)


def test_of_full_slots_the_one_that_was_used_longest_ago_is_overwritten() -> None:
    room = Room()
    slots = []
    for number in range(3):
        room.now_s += 10.0
        slots.append(room.run((10 + number, 1000)))

    assert set(slots) == {0, 1, 2}
    assert room.fit(talk("r", HELLO)).slot == slots[0]


def test_a_tenant_with_few_slots_keeps_them_beside_one_that_would_take_them_all() -> None:
    slots = []
    for light in ("", "light"):
        room = Room()
        of_light = room.run((10, 1000), tenant=light)
        for number in range(2):
            room.now_s += 10.0
            room.run((11 + number, 1000))
        slots.append((of_light, room.fit(talk("r", HELLO), now_s=room.now_s + 10.0).slot))

    assert slots[0][0] == slots[0][1], "of one tenant's slots the oldest goes"
    assert slots[1][0] != slots[1][1], "but not the only one of another"


@pytest.mark.parametrize(
    ("changes", "loses"),
    [
        pytest.param({}, True, id="what-is-lost-counts"),
        pytest.param({"loss_weight": 0.0}, False, id="not-without-a-weight"),
        pytest.param({"shared_loss_weight": 0.0}, False, id="not-what-another-slot-holds-too"),
    ],
)
def test_the_price_of_losing_a_copy(changes: dict[str, Any], loses: bool) -> None:
    room = Room(backend("a", limit=2))
    first, second = talk("r1", SYSTEM, HELLO), talk("r2", SYSTEM, HELLO)
    leases = room.start(first), room.start(second)
    for lease, wanted in zip(leases, (first, second), strict=True):
        room.end(lease, wanted, Measured(prompt_tokens=600, output_tokens=1))

    fit = room.fit(talk("r", (7, 300)), Policy(**changes))

    assert (fit.loss_ms > 0.0) is loses
    assert fit.fresh_tokens == 300


def test_without_a_prompt_only_what_goes_before_it_is_known() -> None:
    room = Room()
    assert room.fit(request("r")) is NOTHING
    room.start(talk("r1", SYSTEM, HELLO))

    assert room.fit(request("r")) == Fit(pending_ms=600.0)
    assert room.fit(talk("r", HELLO, seats=0)) == Fit(pending_ms=600.0)


def test_when_all_slots_are_taken_a_prompt_is_computed_whole() -> None:
    room = Room(backend("a", limit=1))
    room.run(SYSTEM, HELLO)
    room.start(talk("r1", SYSTEM, HELLO, ANSWER))

    fit = room.fit(talk("r", SYSTEM, HELLO, ANSWER, NEXT))

    assert (fit.slot, fit.reused_tokens, fit.fresh_tokens) == (None, 0, 751)


def test_slots_of_an_ollama_belong_to_one_model() -> None:
    room = Room(backend("a", limit=2, models=[MODEL, OTHER_MODEL], engine=Engine.OLLAMA))
    room.run(SYSTEM, HELLO)

    assert room.fit(talk("r", SYSTEM, HELLO)).reused_tokens == 599
    assert room.fit(talk("r", SYSTEM, HELLO, model=OTHER_MODEL)).reused_tokens == 0
    assert set(room.outlook.mirrors("a")) == {MODEL, OTHER_MODEL}

    room.outlook.loaded(room.backend, [Residency(OTHER_MODEL)], NOW_S)

    assert room.fit(talk("r", SYSTEM, HELLO)).reused_tokens == 0, "it was unloaded"


def test_what_was_read_of_an_engine_says_nothing_of_the_next_one() -> None:
    room, wanted, memory = Room(), talk("r", SYSTEM, HELLO), Reuses()
    room.run(SYSTEM, HELLO)
    version = room.outlook.mirror(room.backend, MODEL).version
    assert room.outlook.fit(room.view(), Case(wanted, POLICY, NOW_S), memory).reused_tokens == 599

    room.outlook.void("a")
    room.outlook.mirror(room.backend, MODEL).version = version  # by chance

    assert room.outlook.fit(room.view(), Case(wanted, POLICY, NOW_S), memory).reused_tokens == 0


# What is being computed, and when it ends


def test_prompts_that_are_being_computed_until_their_first_byte() -> None:
    room = Room()
    first = room.start(talk("r1", SYSTEM, HELLO))
    room.start(talk("r2", (7, 100)))
    assert room.outlook.pending_ms("a", NOW_S) == 700.0
    assert room.outlook.pending_ms("a", NOW_S + 0.3) == pytest.approx(300.0), (
        "one has 300 ms left, the other one should be through"
    )
    assert [room.outlook.prefills("a", least, NOW_S) for least in (0, 100, 101, 601)] == [2, 2, 1, 0]

    room.answer(first)

    assert room.outlook.pending_ms("a", NOW_S) == 100.0
    assert room.outlook.prefills("a", 0, NOW_S) == 1


def test_a_request_without_a_prompt_is_no_prompt_to_compute() -> None:
    room = Room()
    room.start(request("r"))

    assert room.outlook.prefills("a", 0, NOW_S) == 0


def test_claims_to_an_engine_that_is_gone_compute_nothing_at_the_next_one() -> None:
    room = Room()
    room.claim(talk("r1", SYSTEM, HELLO))

    room.ledger.void("a", NOW_S)
    room.outlook.void("a")

    assert room.outlook.prefills("a", 0, NOW_S) == 0
    assert room.outlook.pending_ms("a", NOW_S) == 0.0


@pytest.mark.parametrize(
    ("passed_s", "answer_s", "expected_ms"),
    [
        pytest.param(0.0, None, 600.0 + 10 * PRIOR_OUTPUT_TOKENS, id="all-of-it"),
        pytest.param(0.5, None, 100.0 + 10 * PRIOR_OUTPUT_TOKENS, id="some-of-the-prompt-is-computed"),
        pytest.param(5.0, None, 10 * PRIOR_OUTPUT_TOKENS, id="all-of-it-should-be"),
        pytest.param(0.6, 0.5, 10 * PRIOR_OUTPUT_TOKENS - 500, id="half-a-second-into-its-answer"),
        pytest.param(0.6, 100.0, OUTRUN * 100_000, id="older-than-expected: half-of-its-age"),
        pytest.param(0.6, 10 * PRIOR_OUTPUT_TOKENS / 1000, OUTRUN * 10 * PRIOR_OUTPUT_TOKENS, id="just-as-expected"),
    ],
)
def test_time_until_a_lease_ends(passed_s: float, answer_s: float | None, expected_ms: float) -> None:
    room = Room()
    lease = room.start(talk("r", SYSTEM, HELLO))
    now_s = room.now_s = NOW_S + passed_s
    if answer_s is not None:
        room.answer(lease)
        now_s += answer_s

    assert room.outlook.endings.remaining_ms(lease, now_s, room.view()) == pytest.approx(expected_ms)


def test_time_until_a_lease_ends_is_never_nothing_and_may_be_unknown() -> None:
    room = Room()
    lease = room.start(talk("r", SYSTEM, HELLO, max_output_tokens=1))
    room.answer(lease)

    assert room.outlook.endings.remaining_ms(lease, NOW_S, room.view()) == LEAST_LEFT_TOKENS * 10
    lease.work = None
    assert room.outlook.endings.remaining_ms(lease, NOW_S, room.view()) == inf


def test_what_it_costs_to_wait_for_the_conversation_s_own_slot() -> None:
    room, wanted = Room(), talk("r", SYSTEM, HELLO, NEXT)
    lease = room.start(talk("r1", SYSTEM, HELLO))
    room.answer(lease)
    case = Case(wanted, Policy(active_ms=20.0), NOW_S)

    later_ms = room.outlook.later_ms(room.view(), case, {}, full=False)

    assert later_ms == pytest.approx(10 * PRIOR_OUTPUT_TOKENS + 100.0, abs=5.0), "the answer, then what is new"
    assert room.outlook.later_ms(room.view(), Case(request("r"), POLICY, NOW_S), {}, full=True) == inf
    assert room.outlook.later_ms(room.view(), Case(talk("r", (8, 300)), POLICY, NOW_S), {}, full=False) == inf


def test_nothing_is_waited_for_where_nothing_runs() -> None:
    room = Room()
    room.claim(talk("r1", SYSTEM, HELLO))

    assert room.outlook.later_ms(room.view(), Case(talk("r", SYSTEM, NEXT), POLICY, NOW_S), {}, full=True) == inf


def test_of_a_full_backend_any_seat_that_falls_free_will_do() -> None:
    """Its third slot is idle, and holds the conversation; one of the two requests that run must end first."""
    room = Room()
    room.run(SYSTEM, HELLO)
    for number in (1, 2):
        room.answer(room.start(talk(f"r{number}", (10 + number, 100))))
    wanted = talk("r", SYSTEM, HELLO, ANSWER, NEXT)
    policy = Policy(active_ms=0.0, stall_weight=0.0)

    later_ms = room.outlook.later_ms(room.view(), Case(wanted, policy, NOW_S), {}, full=True)

    answer_ms = 10.0 * room.outlook.estimates.output_tokens(MODEL, "", None)
    assert later_ms == pytest.approx(answer_ms / 2 + 100.0), "of two, one ends in half of the time"


# What was learned, and what is forgotten


def test_what_answers_tell_is_learned_for_the_tenant_and_its_limit() -> None:
    room = Room()
    wanted = talk("r", SYSTEM, HELLO, tenant="x", max_output_tokens=4000)
    for _ in range(30):
        lease = room.start(wanted)
        room.end(lease, wanted, Measured(prompt_tokens=1200, output_tokens=2000))
    estimates = room.outlook.estimates

    assert estimates.output_tokens(MODEL, "x", 4000) > 4 * PRIOR_OUTPUT_TOKENS
    assert estimates.tokens_per_byte(MODEL) == pytest.approx(0.5, rel=0.1)
    assert room.outlook.tokens(wanted) == pytest.approx(1200, rel=0.1)
    lease = room.claim(wanted)
    assert lease.work is not None
    assert lease.work.output_tokens == estimates.output_tokens(MODEL, "x", 4000)


def test_who_sets_a_small_limit_gets_short_answers() -> None:
    room = Room()
    for limit, tokens in ((4000, 2000), (10, 2)):
        wanted = talk("r", SYSTEM, tenant="x", max_output_tokens=limit)
        for _ in range(200):
            room.end(room.start(wanted), wanted, Measured(prompt_tokens=400, output_tokens=tokens))

    assert room.outlook.estimates.output_tokens(MODEL, "x", 10) < 5
    assert room.outlook.estimates.output_tokens(MODEL, "x", 4000) > 1000


def test_a_first_answer_tells_more_than_the_card_s_name() -> None:
    fast = msgspec.structs.replace(backend("a", managed=True), model_bytes={OTHER_MODEL: 10**8})
    room = Room(fast)
    known_model, other = (room.outlook.estimates.prefill_ms("a", model, 1000) for model in (OTHER_MODEL, "x:latest"))

    assert 0.0 < known_model < other, "a small model is computed sooner than one of the usual size"


@pytest.mark.parametrize(("step_ms", "limit"), [(10.0, 2), (60.0, 2), (1000.0, 2)])
def test_the_running_limit_is_never_above_what_is_allowed(step_ms: float, limit: int) -> None:
    room = Room()
    room.outlook.estimates.prior("a", MODEL, msgspec.structs.replace(RATES, step_first_ms=step_ms))

    assert room.outlook.running_limit(room.backend, MODEL, 50.0) == limit


def test_the_running_limit_keeps_the_time_per_token_unless_nothing_can() -> None:
    room = Room(backend("a", limit=16))
    room.outlook.estimates.prior("a", MODEL, msgspec.structs.replace(RATES, step_further_ms=10.0))

    assert room.outlook.running_limit(room.backend, MODEL, 55.0) == 5
    assert room.outlook.running_limit(room.backend, MODEL, 5.0) == SLOW_LIMIT


def test_what_a_truncated_request_left_is_not_believed_in_unless_its_answer_had_begun() -> None:
    room, wanted = Room(), talk("r", SYSTEM, HELLO)
    lease = room.start(wanted)
    room.ledger.release(lease.nonce, NOW_S)
    room.outlook.gone(lease, NOW_S)
    assert room.fit(wanted).reused_tokens == 0

    lease = room.start(wanted)
    room.answer(lease)
    room.ledger.release(lease.nonce, NOW_S)
    room.outlook.gone(lease, NOW_S)

    assert room.fit(wanted).reused_tokens == 599, "then the prompt was computed"


def test_a_backend_that_left_is_forgotten() -> None:
    room = Room()
    room.run(SYSTEM, HELLO)
    room.claim(talk("r", SYSTEM))
    room.start(talk("r", SYSTEM, can_name_slot=False))

    room.ledger.void("a", NOW_S)
    room.outlook.left("a")

    assert room.outlook.mirrors("a") == {}
    assert not room.outlook.naming.reserved
    assert not room.outlook.naming.unnamed
    assert not any(row.backend_id == "a" for row in room.outlook.estimates.table(0.0, {}))


# How fast a card is thought to be


@pytest.mark.parametrize(
    ("changes", "like"),
    [
        pytest.param({"gpu_name": "NVIDIA H200"}, "h200", id="as-somebody-told"),
        pytest.param({"gpu_name": "cpu"}, None, id="no-card-as-somebody-told"),
        pytest.param({}, "unknown", id="an-engine-elsewhere-has-some-card"),
        pytest.param({"managed": True}, None, id="an-engine-of-ours-without-a-card-has-none"),
        pytest.param({"gpu": Gpu("u", 0, "NVIDIA H200", 1), "gpu_name": "cpu"}, "h200", id="nvml-knows-better"),
    ],
)
def test_a_new_backend_is_as_fast_as_its_card(changes: dict[str, Any], like: str | None) -> None:
    outlook = Room().outlook
    outlook.changed(msgspec.structs.replace(backend("new"), **changes))

    expected = Estimates()
    expected.prior("new", "", rates_for(like))
    assert outlook.estimates.step_ms("new", "", 1) == expected.step_ms("new", "", 1)


def test_of_an_answer_that_comes_as_a_whole_the_prompt_is_computed_when_it_should_be() -> None:
    room = Room()
    room.streams = False
    lease = room.start(talk("r", SYSTEM, HELLO))

    assert [room.outlook.prefills("a", 1, NOW_S + passed_s) for passed_s in (0.0, 0.59, 0.61)] == [1, 1, 0]
    whole_ms = 10 * PRIOR_OUTPUT_TOKENS
    left_ms = [room.outlook.endings.remaining_ms(lease, NOW_S + passed_s, room.view()) for passed_s in (0.5, 1.1, 60.6)]
    assert left_ms == pytest.approx([100.0 + whole_ms, whole_ms - 500.0, OUTRUN * 60_000.0])


def test_another_slot_than_the_named_one_leaves_both_unknown() -> None:
    room = Room()
    wanted = talk("r", SYSTEM, HELLO)
    first = room.run(SYSTEM, HELLO)
    lease = room.start(wanted)
    assert lease.work is not None
    assert lease.work.slot == first

    other = 2 if first == 0 else 0
    assert not room.end(lease, wanted, Measured(prompt_tokens=600, cached_tokens=0, output_tokens=9, slot=other))
    assert {reuse.reused_tokens for reuse in room.outlook.mirror(room.backend, MODEL).reuses(wanted.prompt, 0.25)} == {
        0
    }
