from proxy.relay import AttemptError, ReplyTransform, Watch
from scheduler.domain import Failure
from tests.proxy.relay.rig import EndMark, Upper


def test_a_failed_attempt_says_why_and_whether_it_can_be_retried() -> None:
    error = AttemptError(Failure.LOADING, "Loading model")
    assert str(error) == "loading: Loading model"
    assert not error.committed
    assert str(AttemptError(Failure.RESET, "")) == "reset"


def test_the_protocols_can_be_met() -> None:
    assert isinstance(Upper(), ReplyTransform)
    assert isinstance(EndMark(), Watch)
