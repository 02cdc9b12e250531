"""What goes over a line between two proxies of one box: frames of msgpack, each after its length. Knows no socket path.

The one that dials tells; the other one answers the greeting with a welcome and is silent from then on.
"""

import asyncio
import struct

import msgspec

FORMAT = 1
"""Another one is not understood: such a proxy counts as not connected."""
FRAME_MAX_BYTES = 8 * 1024 * 1024
"""As a picture in the store: all leases and waiting requests of a proxy are far less."""

_LENGTH = struct.Struct("!I")


class FrameError(Exception):
    """Something came that is no frame of ours."""


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="greeting"):
    """First words of who dials."""

    format: int
    fleet: str
    owner: str
    wanted: str
    """The proxy that is meant: a path may be another one's by now."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The answer to a greeting that is taken."""

    owner: str


class StoreState(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """Whether the sender is without the store. First after the greeting, and with every change."""

    away: bool
    knows: tuple[str, ...]
    """Proxies of the fleet as the sender last knew them."""


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """News, encoded as in the log."""

    payload: bytes


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked"):
    """Answer when all that was told before was heard."""

    number: int


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """All that was told before that number was asked has been heard, and all that the sender told is before this."""

    number: int


Frame = Greeting | Welcome | StoreState | Told | Asked | Answered

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encoded(frame: Frame) -> bytes:
    """A frame with its length.

    Raises:
        FrameError: it is too long.
    """
    body = _encoder.encode(frame)
    if len(body) > FRAME_MAX_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is too long")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        FrameError: it is too long or not understood.
        asyncio.IncompleteReadError: the other side ended.
        OSError: the connection broke.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > FRAME_MAX_BYTES:
        raise FrameError(f"a frame of {length} bytes is too long")
    try:
        return _decoder.decode(await reader.readexactly(length))
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from error
