import pytest

from proxy.relay.headers import render_head, status_line, to_client, to_engine, unsized


def test_an_engine_sees_nothing_of_one_hop_and_no_credentials() -> None:
    headers = [
        ("Connection", "keep-alive, X-Named"),
        ("X-Named", "1"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("Authorization", "Bearer k"),
        ("Cookie", "a=b"),
        ("X-Api-Key", "k"),
        ("X-Conversation-Id", "c"),
        ("Accept-Encoding", "gzip"),
        ("Origin", "http://a"),
        ("Content-Type", "application/json"),
        ("User-Agent", "ollama"),
    ]
    assert to_engine(headers) == headers[-2:]


def test_a_client_sees_nothing_of_one_hop_and_no_cors_of_the_engine() -> None:
    headers = [
        ("Server", "llama.cpp"),
        ("Keep-Alive", "timeout=5, max=100"),
        ("Access-Control-Allow-Origin", ""),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
        ("Connection", "close"),
        ("Content-Type", "text/event-stream"),
        ("Date", "Sun, 29 Nov 2026 19:19:48 GMT"),
    ]
    assert to_client(headers) == headers[-2:]


def test_a_head_is_written_as_read() -> None:
    odd = b"\xff\xc3\xa9".decode("utf-8", "surrogateescape")
    assert render_head(status_line(200), [("A", odd)]) == b"HTTP/1.1 200 OK\r\nA: \xff\xc3\xa9\r\n\r\n"
    assert status_line(499) == "HTTP/1.1 499 "


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\nX: 1", "a\rb", "\0"])
def test_no_value_adds_a_header(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        render_head("GET / HTTP/1.1", [("A", value)])
    with pytest.raises(ValueError, match="line break"):
        render_head("GET / HTTP/1.1", [(value, "A")])


def test_a_length_is_dropped_however_it_is_spelled() -> None:
    assert unsized([("CONTENT-length", "5"), ("X", "y")]) == [("X", "y")]
