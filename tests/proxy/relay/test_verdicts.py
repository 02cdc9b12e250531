import pytest

from proxy.relay.verdicts import opens_with_error, retryable
from scheduler.domain import Failure


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', Failure.LOADING),
        (503, b"", Failure.OVERLOADED),
        (429, b"", Failure.OVERLOADED),
        (502, b"", Failure.ENGINE_ERROR),
        (504, b"", Failure.ENGINE_ERROR),
        (500, b'{"error":"llama runner process has terminated: exit status 2"}', Failure.ENGINE_ERROR),
        (500, b'{"error":"model failed to load, invalid tensor"}', None),
        (400, b"unexpected EOF", None),
        (404, b'{"error":"model \'x\' not found"}', None),
        (501, b"", None),
    ],
)
def test_refusals(status: int, body: bytes, failure: Failure | None) -> None:
    assert retryable(status, body) is failure


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"error":{"code":500}}\n\n',
        b'data:{"error":"x"}\n\n',
        b'{"error":"x"}\n',
        b"event: error\ndata: {}\n\n",
        b'data: {"type":"error","error":{}}\n\n',
        b'error: {"code":500}\n\n',
    ],
)
def test_a_stream_that_opens_with_an_error_is_known_as_soon_as_its_bytes_allow(data: bytes) -> None:
    verdicts = [opens_with_error(data[:size]) for size in range(len(data) + 1)]
    first = verdicts.index(True)
    assert set(verdicts[:first]) == {None}
    assert set(verdicts[first:]) == {True}


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices":[]}\n\n',
        b'data: {"error":null,"x":1}\n\n',
        b'{"model":"m"}',
        b"event: message_start\n",
        b":\n\n",
        b"plain text",
        b'{"errors":[]}',
    ],
)
def test_other_streams_are_let_through(data: bytes) -> None:
    assert opens_with_error(data) is False
