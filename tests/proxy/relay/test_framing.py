from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.relay.framing import LAST_CHUNK, ChunkedBody, FramingError, parse_head
from tests.proxy.relay.rig import chunk


class Body:
    """What llhttp, which has nothing of ours, makes of a chunked answer."""

    def __init__(self, framed: bytes) -> None:
        self.data = b""
        self.complete = False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed)

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_message_complete(self) -> None:
        self.complete = True


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


bodies = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"a\r\n"]), max_size=6)
cuts = st.lists(st.integers(0, 10_000), max_size=30)


@given(
    bodies,
    cuts,
    st.sampled_from([b"", b"X-Trailer: 1\r\n", b"A: b\r\nC: d\r\n"]),
    st.sampled_from([b"", b";x=y", b";q"]),
)
def test_any_split_gives_the_same_body_and_raw_bytes(
    parts: list[bytes], at: list[int], trailers: bytes, extension: bytes
) -> None:
    framed = b"".join(chunk(part).replace(b"\r\n", extension + b"\r\n", 1) for part in parts)
    chunks = ChunkedBody()
    raw = body = b""
    for piece in pieces_of(framed + b"0\r\n" + trailers + b"\r\n", at):
        assert not chunks.done
        more_raw, more_body = chunks.feed(piece)
        raw, body = raw + more_raw, body + more_body
        assert not chunks.at_boundary or Body(raw + LAST_CHUNK).complete
    assert chunks.done
    assert chunks.surplus == b""
    assert body == b"".join(parts)
    assert raw == framed
    assert Body(raw + LAST_CHUNK).data == body


@given(bodies, cuts)
def test_the_last_chunk_never_goes_out_as_raw_bytes(parts: list[bytes], at: list[int]) -> None:
    framed = b"".join(map(chunk, parts))
    chunks = ChunkedBody()
    raw = b"".join(chunks.feed(piece)[0] for piece in pieces_of(framed + LAST_CHUNK, at))
    assert not Body(raw).complete
    assert raw == framed


@given(st.binary(max_size=60), cuts)
def test_whatever_it_takes_llhttp_takes_too(data: bytes, at: list[int]) -> None:
    chunks = ChunkedBody()
    raw = b""
    try:
        for piece in pieces_of(data, at):
            raw += chunks.feed(piece)[0]
            if chunks.done:
                break
    except FramingError:
        return
    Body(raw)


@pytest.mark.parametrize(
    "data",
    [
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5 ;x\r\nhello\r\n",
        b"5_0\r\n",
        b"-1\r\n",
        b"!\r\n",
        b"!!!\r\n",
        b"!" * 19 + b"\r\n",
        b"\r\n",
        b"5\nhello\n",
        b"5\r\nhelloXX",
        b"5\r\nhello\n\r",
        b"5\r\nhello\r5",
        b"fffffffff\r\n",
        b"5;" + b"x" * 2000,
        b"0\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
        "٥\r\nhello\r\n".encode(),
    ],
)
def test_what_is_not_chunked_coding_is_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(data)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 2037, 2038, 2039, 2040, 2041, 2042, 4096])
@pytest.mark.parametrize("line", [b"%x", b"%X", b"%03x", b"%08X", b"%x;ext"])
def test_one_whole_chunk_however_its_size_is_written(size: int, line: bytes) -> None:
    body = b"z" * size
    raw = line % size + b"\r\n" + body + b"\r\n"
    chunks = ChunkedBody()
    assert chunks.feed(raw) == (raw, body)
    assert chunks.feed(raw) == (raw, body)
    assert chunks.at_boundary


def test_a_read_within_a_chunk_is_never_taken_for_one() -> None:
    for inside in (b"!\r\n", b"1\r\nx\r\n", b"0\r\n\r\n"):
        chunks = ChunkedBody()
        assert chunks.feed(b"%x\r\n" % len(inside)) == (b"%x\r\n" % len(inside), b"")
        assert chunks.feed(inside) == (inside, inside)
        assert chunks.feed(b"\r\n0\r\n\r\n") == (b"\r\n", b"")
        assert chunks.done


def test_bytes_after_the_end_are_told() -> None:
    chunks = ChunkedBody()
    assert chunks.feed(b"1\r\nx\r\n0\r\n\r\nHTTP/1.1 200") == (b"1\r\nx\r\n", b"x")
    assert chunks.done
    assert chunks.surplus == b"HTTP/1.1 200"


def test_a_head_is_read_with_its_framing() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-Name: a\xc3\xa9\r\n\r\n")
    assert (head.status, head.chunked, head.length, head.keep_alive) == (200, False, 12, True)
    assert head.headers == [("Content-Length", "12"), ("X-Name", "aé")]
    assert parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").chunked
    assert parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").length == 0


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
    ],
)
def test_whether_the_engine_keeps_the_connection(block: bytes, kept: bool) -> None:
    assert parse_head(block).keep_alive is kept


@pytest.mark.parametrize(
    "block",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: 1\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
    ],
)
def test_an_ambiguous_head_is_refused(block: bytes) -> None:
    with pytest.raises(FramingError):
        parse_head(block)
