"""Frames between proxies, as bytes."""

import asyncio

import pytest

from proxy.direct import frames
from proxy.direct.frames import (
    FORMAT,
    FRAME_MAX_BYTES,
    Answered,
    Asked,
    Frame,
    FrameError,
    Greeting,
    StoreState,
    Told,
    Welcome,
    encoded,
    read_frame,
)

ALL: list[Frame] = [
    Greeting(FORMAT, "fleet", "p.a", "p.b"),
    Welcome("p.b"),
    StoreState(True, ("p.a", "p.b")),
    Told(b"\x00\xff"),
    Asked(1),
    Answered(2**40),
]


def reader(data: bytes) -> asyncio.StreamReader:
    made = asyncio.StreamReader()
    made.feed_data(data)
    made.feed_eof()
    return made


async def test_frames_come_out_as_they_went_in() -> None:
    stream = reader(b"".join(map(encoded, ALL)))
    assert [await read_frame(stream) for _ in ALL] == ALL
    with pytest.raises(asyncio.IncompleteReadError):
        await read_frame(stream)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((FRAME_MAX_BYTES + 1).to_bytes(4, "big"), id="too-long"),
        pytest.param(b"\0\0\0\1\xc1", id="no-msgpack"),
        pytest.param(b"\0\0\0\6\x91\xa4what", id="unknown-tag"),
    ],
)
async def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        await read_frame(reader(data))


async def test_a_frame_that_ends_early_is_no_frame() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await read_frame(reader(encoded(Told(b"abc"))[:-1]))


def test_too_long_a_frame_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_MAX_BYTES", 100)
    with pytest.raises(FrameError, match="too long"):
        encoded(Told(b"x" * 200))
