import os

import pytest
from backports import zstd

from proxy.dialects import ClientError, Route, find
from proxy.dialects.encoding import MAX_FRAMES, MAX_UNPACKED_BYTES, unpacked

TEXT = b'{"model":"m","messages":[]}'


def route(path: str = "/v1/chat/completions") -> Route:
    found = find("POST", path)
    assert isinstance(found, Route)
    return found


def refusal(body: bytes, encoding: str = "zstd", path: str = "/v1/chat/completions") -> ClientError:
    with pytest.raises(ClientError) as caught:
        unpacked(route(path), body, [("Content-Encoding", encoding)])
    return caught.value


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"]
)
def test_zstd_is_unpacked_where_ollama_does_it(path: str) -> None:
    for packed in (zstd.compress(TEXT), zstd.compress(TEXT[:9]) + zstd.compress(TEXT[9:])):
        assert unpacked(route(path), packed, [("content-encoding", " ZSTD ")]) == TEXT
    assert unpacked(route(path), TEXT, [("Content-Encoding", "identity"), ("Accept", "x")]) == TEXT


@pytest.mark.parametrize("path", ["/api/chat", "/completion", "/v1/rerank", "/v1/audio/transcriptions"])
def test_other_routes_take_no_encoding(path: str) -> None:
    assert refusal(zstd.compress(TEXT), path=path).status == 415
    assert refusal(b"\x1f\x8b", "gzip").status == 415


def test_what_cannot_be_unpacked() -> None:
    packed = zstd.compress(TEXT)
    for broken in (b"no zstd at all", packed[:-3], packed[:8] + b"\xff" + packed[9:]):
        error = refusal(broken)
        assert (error.status, error.message[:36]) == (400, "failed to decompress request body: U"[:36]) or (
            error.status == 400 and error.message.startswith("failed to decompress request body")
        )


def test_bombs_and_large_windows_are_refused() -> None:
    error = refusal(zstd.compress(b"\0" * (MAX_UNPACKED_BYTES + 1)))
    assert (error.status, error.message) == (400, "http: request body too large")
    many = zstd.compress(b"\0" * (MAX_UNPACKED_BYTES // 2 + 1))
    assert refusal(many + many).message == "http: request body too large"
    exact = zstd.compress(b"\0" * MAX_UNPACKED_BYTES)
    assert len(unpacked(route(), exact, [("Content-Encoding", "zstd")])) == MAX_UNPACKED_BYTES
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 26})
    data = os.urandom(1000)
    packed = wide.compress(data) + wide.flush()
    assert refusal(packed).message.startswith("failed to decompress request body")


@pytest.mark.parametrize("empty", [zstd.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4)])
def test_a_body_of_nothing_but_empty_frames_is_refused(empty: bytes) -> None:
    """Unpacked one by one, a mebibyte of them takes seconds, and four times as long with each doubling."""
    text = zstd.compress(TEXT)
    assert unpacked(route(), text + empty * (MAX_FRAMES - 1), [("Content-Encoding", "zstd")]) == TEXT
    assert refusal(text + empty * MAX_FRAMES).message.endswith(f"more than {MAX_FRAMES} frames")
