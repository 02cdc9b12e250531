from proxy.relay import AttemptError
from scheduler.domain import Failure


def test_a_failed_attempt_says_why_and_whether_it_can_be_retried() -> None:
    error = AttemptError(Failure.LOADING, "Loading model")
    assert str(error) == "loading: Loading model"
    assert not error.committed
    assert str(AttemptError(Failure.RESET, "")) == "reset"
