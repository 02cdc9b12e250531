from math import inf

from scheduler.domain import Measured, Report
from scheduler.policy import Policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.conversations import Conversation, Turn
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.routers import BaselineRouter, Placement, Refusal, SchedulerRouter

MEASURED = Measured(prompt_tokens=550, cached_tokens=0, output_tokens=20, prompt_ms=80.0, output_ms=200.0, slot=0)


def turn(name: int) -> Turn:
    """About one shared document."""
    talk = Conversation()
    talk.say(1, 500)
    talk.say(name, 50)
    return talk.turn(name + 1000, 20)


def scheduler(policy: Policy | None = None, slots: int = 1) -> SchedulerRouter:
    """Two backends."""
    return SchedulerRouter(policy or Policy(), [EngineSettings(slots=slots)] * 2)


def test_a_baseline_binds_at_once() -> None:
    router = BaselineRouter(BASELINES["rr"](1), 2)
    placed = [router.arrived(str(number), turn(number), "", "normal", 0.0) for number in range(3)]

    assert placed == [[Placement("0", 0)], [Placement("1", 1)], [Placement("2", 0)]]
    assert router.wake_ms() == inf
    assert router.woken(0.0) == router.reported(Report("card-0", 1, 0.0), 0.0) == []


def test_the_central_line_is_served_in_order() -> None:
    router = BaselineRouter(BASELINES["central"](1), 1)
    placed = [router.arrived(str(number), turn(number), "", "normal", 0.0) for number in range(3)]

    assert placed == [[Placement("0", 0)], [], []]
    assert router.answer_started("0", 1.0) == []
    assert router.ended("0", MEASURED, 2.0) == [Placement("1", 0)]


def test_a_baseline_counts_what_it_sent() -> None:
    router = BaselineRouter(BASELINES["dynamo"](1), 2)
    router.arrived("0", turn(1), "", "normal", 0.0)
    load = router._loads[0]
    assert (load.requests, load.prefill_tokens, load.context_tokens) == (1, 550, 550)
    router.answer_started("0", 1.0)
    assert load.prefill_tokens == 0
    router.ended("0", MEASURED, 2.0)
    assert (load.requests, load.context_tokens) == (0, 0)


def test_the_scheduler_places_and_lets_wait() -> None:
    router = scheduler()
    first, second = (router.arrived(name, turn(2), "", "normal", 0.0) for name in "ab")
    third = router.arrived("c", turn(3), "", "normal", 1.0)

    assert {answer.backend for answer in (*first, *second) if isinstance(answer, Placement)} == {0, 1}
    assert third == []
    assert [ticket.request.id for ticket in router.scheduler.waiting()] == ["c"]
    assert router.answer_started("a", 90.0) == []
    freed = router.ended("a", MEASURED, 200.0)
    assert [answer.request_id for answer in freed] == ["c"]
    assert isinstance(freed[0], Placement)
    assert freed[0].backend == first[0].backend if isinstance(first[0], Placement) else False


def test_the_scheduler_refuses_when_its_line_is_full() -> None:
    router = scheduler(Policy(max_waiting=0))
    for name in "ab":
        router.arrived(name, turn(2), "", "normal", 0.0)

    (refusal,) = router.arrived("c", turn(3), "", "normal", 1.0)

    assert refusal == Refusal("c", "queue-full")


def test_the_scheduler_is_woken_for_its_deadlines() -> None:
    router = scheduler()
    for name in "abc":
        router.arrived(name, turn(2), "", "normal", 0.0)

    assert router.wake_ms() < inf
    assert router.woken(10.0) == []
    assert router.wake_ms() > 10.0


def test_the_scheduler_names_the_slot_unless_its_policy_says_no() -> None:
    named = scheduler(slots=4).arrived("a", turn(2), "", "normal", 0.0)
    left = scheduler(Policy(choose_slot=False), slots=4).arrived("a", turn(2), "", "normal", 0.0)

    assert [answer.slot is None for answer in (*named, *left) if isinstance(answer, Placement)] == [False, True]
