from proxy.attempts import decision_text
from scheduler.domain import Candidate, Decision, Rejection


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
