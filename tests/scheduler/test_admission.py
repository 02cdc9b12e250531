import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.admission import down_detail, down_reason, lasting_detail, lasting_reason, may_wait, retry_after_s
from scheduler.domain import BackendView, Decision, Health, Operation, Rejection
from scheduler.policy import Policy
from tests.scheduler.world import MODEL, OTHER_MODEL, backend, request

POLICY = Policy(completions_window_s=60.0, retry_after_min_s=1.0, retry_after_max_s=60.0)
VIEWS = [
    BackendView(backend("a", limit=4), Health.DOWN),
    BackendView(backend("b", limit=2, models=[OTHER_MODEL]), Health.READY),
]


def decision(*reasons: Rejection) -> Decision:
    return Decision("r1", rejections={str(number): reason for number, reason in enumerate(reasons)})


@pytest.mark.parametrize(
    ("reasons", "waits", "lasting"),
    [
        ([], False, Rejection.DOWN),
        ([Rejection.UNKNOWN_MODEL], False, Rejection.UNKNOWN_MODEL),
        ([Rejection.UNKNOWN_MODEL, Rejection.UNSUPPORTED], False, Rejection.UNSUPPORTED),
        ([Rejection.UNSUPPORTED, Rejection.TOO_MANY_SLOTS], False, Rejection.TOO_MANY_SLOTS),
        ([Rejection.UNKNOWN_MODEL, Rejection.NO_ROOM], True, Rejection.UNKNOWN_MODEL),
        ([Rejection.DOWN], True, Rejection.DOWN),
        ([Rejection.TRIED], True, Rejection.DOWN),
    ],
    ids=str,
)
def test_reasons(reasons: list[Rejection], waits: bool, lasting: Rejection) -> None:
    assert may_wait(decision(*reasons)) is waits
    assert lasting_reason(decision(*reasons)) is lasting


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Rejection.UNKNOWN_MODEL, "no backend has the model 'qwen3'; there are: llama3, qwen3"),
        (Rejection.UNSUPPORTED, "no backend that has 'qwen3' can answer embed requests: a"),
        (
            Rejection.TOO_MANY_SLOTS,
            "the request needs 9 slots at once, the largest running limit is 4; send it in parts",
        ),
        (Rejection.DOWN, "no backend is configured"),
    ],
    ids=str,
)
def test_details_say_what_would_help(reason: Rejection, text: str) -> None:
    asked = request(model=MODEL, seats=9, operation=Operation.EMBED)

    assert lasting_detail(reason, asked, VIEWS) == text


def test_down_detail_names_the_backends_that_matter() -> None:
    assert down_detail(request(), VIEWS) == "no backend that could answer is running: a is down"
    assert down_detail(request(), []).endswith("none is known")


@pytest.mark.parametrize(
    ("waiting", "per_s", "expected_s"),
    [(10, 2.0, 5.0), (1, 100.0, 1.0), (1000, 1.0, 60.0), (0, 0.0, 1.0), (1, 0.0, 60.0)],
)
def test_retry_after(waiting: int, per_s: float, expected_s: float) -> None:
    assert retry_after_s(waiting, per_s, POLICY) == expected_s


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_retry_after_is_bounded_and_shrinks_with_pace(waiting: int, slow: float, fast: float) -> None:
    slow, fast = sorted((slow, fast))

    assert 1.0 <= retry_after_s(waiting, fast, POLICY) <= retry_after_s(waiting, slow, POLICY) <= 60.0


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([Rejection.DRAINING, Rejection.DRAINING], Rejection.DRAINING),
        ([Rejection.STARTING, Rejection.UNKNOWN_MODEL], Rejection.STARTING),
        ([Rejection.STARTING, Rejection.DOWN], Rejection.DOWN),
        ([Rejection.DOWN], Rejection.DOWN),
        ([], Rejection.DOWN),
    ],
)
def test_why_nothing_took_it_in_time(reasons: list[Rejection], expected: Rejection) -> None:
    decision = Decision("r", (), {str(number): reason for number, reason in enumerate(reasons)})

    assert down_reason(decision) is expected
    assert down_reason(None) is Rejection.DOWN
