from math import inf

import msgspec
import pytest

from scheduler.domain import Measured, Report
from scheduler.policy import Policy
from scheduler.simulation.baselines import BASELINES
from scheduler.simulation.conversations import Conversation, Session, Turn
from scheduler.simulation.engine import EngineSettings
from scheduler.simulation.fleet import Fleet
from scheduler.simulation.routers import Answer, BaselineRouter, Router, SchedulerRouter
from scheduler.simulation.step_times import PRESETS, prefill_ms
from scheduler.simulation.workloads import sessions

ENGINE = EngineSettings(slots=2)
CARD = PRESETS["4090"]


def talk(name: str, arrives_ms: float, turns: int = 2, think_ms: float = 1000.0) -> Session:
    """A conversation of its own."""
    conversation = Conversation()
    made: list[Turn] = []
    for number in range(turns):
        conversation.say(hash((len(name), number)), 512)
        made.append(conversation.turn(hash((len(name), number, 1)), 10, think_ms if number else 0.0))
    return Session(name, arrives_ms, tuple(made), name)


def routers(cards: int, slots: int) -> dict[str, Router]:
    """One of each kind."""
    return {
        "rr": BaselineRouter(BASELINES["rr"](slots), cards),
        "central": BaselineRouter(BASELINES["central"](slots), cards),
        "policy": SchedulerRouter(Policy(), [EngineSettings(slots=slots)] * cards),
    }


@pytest.mark.parametrize("name", ["rr", "central", "policy"])
def test_a_lonely_client_sees_the_engine_alone(name: str) -> None:
    first, second = Fleet([ENGINE], routers(1, 2)[name]).run([talk("a", 100.0)])

    assert (first.arrived_ms, first.placed_ms, first.started_ms) == (100.0, 100.0, 100.0)
    assert first.ttft_ms == pytest.approx(prefill_ms(CARD, 512))
    assert second.arrived_ms == pytest.approx(first.ended_ms + 1000.0), "it thinks first"
    assert (first.id, second.id, first.tenant) == ("a.0", "a.1", "a")
    assert second.prompt_tokens == 512 + 10 + 512
    assert second.cached_tokens == 512 + 9


@pytest.mark.parametrize("name", ["rr", "central", "policy"])
def test_every_request_is_answered_once(name: str) -> None:
    clients = sessions("chat", 1.0, 5, 60.0)
    settings = msgspec.structs.replace(ENGINE, host_tokens=8000, copies_idle=True)

    records = Fleet([settings] * 3, routers(3, 2)[name], 1000.0).run(clients)

    assert sorted(record.id for record in records) == sorted(
        f"{client.id}.{number}" for client in clients for number in range(len(client.turns))
    )
    for record in records:
        assert record.arrived_ms <= record.placed_ms <= record.started_ms < record.first_token_ms <= record.ended_ms
        assert 0 <= record.cached_tokens < record.prompt_tokens
        assert record.backend in (0, 1, 2)


def test_late_binding_never_feeds_an_engine_queue() -> None:
    for name in ("central", "policy"):
        fleet = Fleet([ENGINE] * 2, routers(2, 2)[name])
        fleet.run([talk("abcdefgh"[: number + 1], float(number), 1) for number in range(8)])
        assert [engine.deferred_max for engine in fleet.engines] == [0, 0]

    fleet = Fleet([ENGINE] * 2, routers(2, 2)["rr"])
    fleet.run([talk("abcdefgh"[: number + 1], float(number), 1) for number in range(8)])
    assert [engine.deferred_max for engine in fleet.engines] == [2, 2]


def test_the_same_run_twice_is_the_same() -> None:
    clients = sessions("rag", 3.0, 2, 40.0)

    runs = [Fleet([ENGINE] * 2, routers(2, 2)["policy"], 1000.0).run(clients) for _ in range(2)]

    assert runs[0] == runs[1]


def test_a_refused_client_does_not_come_back() -> None:
    router = SchedulerRouter(Policy(max_waiting=0), [EngineSettings(slots=1)])

    records = Fleet([EngineSettings(slots=1)], router).run([talk("a", 0.0), talk("bb", 1.0)])

    assert {record.id: record.rejected for record in records} == {"a.0": "", "a.1": "", "bb.0": "queue-full"}


class Silent(BaselineRouter):
    """Takes requests and never places one."""

    def arrived(self, request_id: str, turn: Turn, _tenant: str, _priority: str, now_ms: float) -> list[Answer]:
        return []


def test_a_router_that_forgets_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="1 requests wait"):
        Fleet([ENGINE], Silent(BASELINES["rr"](1), 1)).run([talk("a", 0.0)])


class Watching(BaselineRouter):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(BASELINES["rr"](2), 1)
        self.told: list[Measured] = []
        self.reports: list[Report] = []

    def ended(self, request_id: str, measured: Measured, now_ms: float) -> list[Answer]:
        self.told.append(measured)
        return super().ended(request_id, measured, now_ms)

    def reported(self, report: Report, now_ms: float) -> list[Answer]:
        self.reports.append(report)
        return []


def test_a_router_is_told_what_answers_cost_and_what_slots_hold() -> None:
    router = Watching()
    (record,) = Fleet([ENGINE], router, 50.0).run([talk("a", 10.0, 1)])

    (measured,) = router.told
    assert (measured.prompt_tokens, measured.cached_tokens, measured.output_tokens, measured.slot) == (512, 0, 10, 1)
    assert measured.first_byte_ms == pytest.approx(record.first_token_ms - 10.0)
    assert measured.prompt_ms == pytest.approx(prefill_ms(CARD, 512))
    assert measured.output_ms == pytest.approx(record.ended_ms - record.first_token_ms)
    assert router.reports[0].busy_slots == 1
    assert [report.asked_at_s for report in router.reports] == pytest.approx([0.05, 0.1])
    assert inf == Fleet([ENGINE], router).engines[0].next_event_ms()
