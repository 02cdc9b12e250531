import msgspec
import pytest

from proxy.attempts import LOADED_MS, decision_text, measured, waiting
from proxy.dialects import Plan, Usage, plan
from proxy.requests import RequestBook
from scheduler.domain import Candidate, Decision, Measured, Rejection
from tests.proxy.dialects.support import FACTS, LLAMA, call_of

USER = [{"role": "user", "content": "x"}]
TOLD = Usage(100, 80, 12, 30.0, 250.0, 3)


def test_an_idle_box_has_nothing_to_tell() -> None:
    decision = Decision("r", (Candidate("gpu0", 0.0, {"active": 0.0}),), {})

    assert decision_text(decision) == "gpu0=0.0ms"


def test_a_decision_on_one_line() -> None:
    decision = Decision(
        "r",
        (Candidate("gpu1", 20.0, {"active": 20.0, "load": 0.0}), Candidate("gpu0", 40.0, {"active": 40.0})),
        {"gpu2": Rejection.NO_ROOM},
    )

    assert decision_text(decision) == "gpu1=20.0ms(active=20.0), gpu0=40.0ms(active=40.0); gpu2:no-room"


def test_what_the_best_one_would_find() -> None:
    best = Candidate("gpu1", 12.0, {"prefill": 12.0}, slot=3, reused_tokens=900, fresh_tokens=40)
    other = Candidate("gpu0", 90.0, {"prefill": 90.0}, slot=0, reused_tokens=0, fresh_tokens=940)

    assert decision_text(Decision("r", (best, other))) == (
        "gpu1=12.0ms(prefill=12.0)[slot=3,reused=900,fresh=40], gpu0=90.0ms(prefill=90.0)"
    )
    left = Candidate("gpu1", 12.0, {"prefill": 12.0}, reused_tokens=0, fresh_tokens=40)
    assert decision_text(Decision("r", (left,))) == "gpu1=12.0ms(prefill=12.0)[reused=0,fresh=40]"


def planned(path: str = "/v1/chat/completions", **body: object) -> Plan:
    asked: dict[str, object] = {"input": "x"} if path == "/v1/responses" else {"messages": USER}
    return plan(call_of(path, asked | body), LLAMA, FACTS)


def test_what_a_streamed_answer_cost() -> None:
    cost = measured(planned(stream=True), TOLD, 10.0, 10.05, 11.0)

    assert cost.first_byte_ms == pytest.approx(50.0)
    assert msgspec.structs.replace(cost, first_byte_ms=None) == Measured(100, 80, 12, 30.0, 250.0, None, 3)


@pytest.mark.parametrize(
    ("made", "told", "first_byte_s", "first_ms"),
    [
        (planned(), TOLD, None, 750.0),  # put together from a stream: the whole less the engine's own time
        (planned(), Usage(100, 80, 12), None, None),
        (planned(stop="x"), TOLD, None, None),  # the engine itself answered in one piece
        (planned("/v1/responses", stream=True), TOLD, 10.05, None),  # its first event is no token
        (planned(), Usage(100, 80, 12, 30.0, 5000.0), None, 0.0),
        (planned(stream=True), msgspec.structs.replace(TOLD, load_ms=LOADED_MS - 1.0), 10.05, 50.0),
        (planned(stream=True), msgspec.structs.replace(TOLD, load_ms=LOADED_MS), 10.05, None),  # it loaded the model
        (planned(), msgspec.structs.replace(TOLD, load_ms=LOADED_MS), None, None),
    ],
)
def test_when_the_first_token_came(made: Plan, told: Usage, first_byte_s: float | None, first_ms: float | None) -> None:
    found = measured(made, told, 10.0, first_byte_s, 11.0).first_byte_ms

    assert found == (None if first_ms is None else pytest.approx(first_ms))


def test_headers_of_those_that_waited() -> None:
    record = RequestBook(None).open("POST", "/api/chat", "127.0.0.1")
    assert waiting(record) == []
    record.stands((3, 12.34))
    assert waiting(record) == [("X-Slotgate-Queue-Position", "3"), ("X-Slotgate-Expected-Wait", "12.3")]


def test_an_expected_wait_that_nobody_can_tell_is_not_told() -> None:
    record = RequestBook(None).open("POST", "/api/chat", "127.0.0.1")
    record.stands((3, None))
    assert waiting(record) == [("X-Slotgate-Queue-Position", "3")]
