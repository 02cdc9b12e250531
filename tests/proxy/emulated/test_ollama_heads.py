import pytest

from proxy.emulated.ollama_heads import JSON, error_body, go_json, ollama_head, ollama_manners, rfc3339
from proxy.emulated.wire import Connection, Exchange, Listener


async def never(exchange: Exchange) -> None:
    raise AssertionError(exchange)


async def test_a_head_is_laid_out_as_go_does() -> None:
    exchange = Exchange(Connection(Listener(ollama_manners(), never)), "GET", "/", {"origin": "http://localhost"})
    lines = ollama_head(exchange, 200, JSON, 5, True).decode().split("\r\n")
    names = [line.split(":")[0] for line in lines]
    assert names == [
        "HTTP/1.1 200 OK",
        "Access-Control-Allow-Origin",
        "Content-Type",
        "Vary",
        "Date",
        "Content-Length",
        "",
        "",
    ]
    exchange.headers = {}
    assert ollama_head(exchange, 200, [], None, False).endswith(
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def test_json_escapes_what_matters_to_html() -> None:
    assert go_json({"a": "<b> & ä"}) == '{"a":"\\u003cb\\u003e \\u0026 ä"}'.encode()


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (1_000_000_001, "1970-01-01T00:00:01.000000001Z"),
        (11_000_000_000 * 10**9, "2318-07-30T19:33:20Z"),
    ],
)
def test_times_are_printed_as_go_does(nanoseconds: int, text: str) -> None:
    assert rfc3339(nanoseconds) == text


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/api/chat", 404, b'{"error":"x"}'),
        ("/v1/chat/completions", 404, b'"type":"not_found_error","param":null'),
        ("/v1/chat/completions", 500, b'"type":"api_error"'),
        ("/v1/messages", 400, b'{"type":"error","error":{"type":"invalid_request_error"'),
        ("/v1/messages", 503, b'"overloaded_error"'),
    ],
)
def test_every_api_has_its_errors(path: str, status: int, part: bytes) -> None:
    assert part in error_body(path, status, "x")
