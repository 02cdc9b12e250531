import msgspec
import pytest

from proxy.dialects import render_error
from scheduler.domain import Dialect


@pytest.mark.parametrize(
    ("dialect", "status", "kind"),
    [
        (Dialect.OPENAI, 400, "invalid_request_error"),
        (Dialect.OPENAI, 404, "not_found_error"),
        (Dialect.OPENAI, 415, "invalid_request_error"),
        (Dialect.OPENAI, 429, "rate_limit_error"),
        (Dialect.OPENAI, 503, "api_error"),
        (Dialect.ANTHROPIC, 413, "request_too_large"),
        (Dialect.ANTHROPIC, 503, "overloaded_error"),
        (Dialect.ANTHROPIC, 529, "overloaded_error"),
        (Dialect.ANTHROPIC, 500, "api_error"),
        (Dialect.LLAMACPP, 400, "invalid_request_error"),
        (Dialect.LLAMACPP, 501, "not_supported_error"),
        (Dialect.LLAMACPP, 503, "unavailable_error"),
        (Dialect.LLAMACPP, 500, "server_error"),
        (Dialect.LLAMACPP, 418, "invalid_request_error"),
    ],
)
def test_types_follow_from_the_status(dialect: Dialect, status: int, kind: str) -> None:
    rendered, _, body = render_error(dialect, status, "", "why")
    error = msgspec.json.decode(body)["error"]
    assert (rendered, error["type"], error["message"]) == (status, kind, "why")
    assert msgspec.json.decode(render_error(dialect, status, "own", "why")[2])["error"]["type"] == "own"


def test_retry_after_is_in_whole_seconds() -> None:
    for seconds, shown in ((0.0, "1"), (0.2, "1"), (2.1, "3")):
        _, headers, _ = render_error(Dialect.OLLAMA, 503, "", "busy", seconds)
        assert ("Retry-After", shown) in headers
    assert "Retry-After" not in dict(render_error(Dialect.OLLAMA, 503, "", "busy")[1])


def test_the_forms() -> None:
    assert render_error(Dialect.OLLAMA, 400, "", 'a "b"')[2] == b'{"error":"a \\"b\\""}'
    assert render_error(Dialect.OPENAI, 404, "", "x")[2] == (
        b'{"error":{"message":"x","type":"not_found_error","param":null,"code":null}}\n'
    )
    assert render_error(Dialect.LLAMACPP, 501, "", "x")[2] == (
        b'{"error":{"code":501,"message":"x","type":"not_supported_error"}}'
    )
