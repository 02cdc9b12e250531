"""Owns compressed request bodies: which routes take them, and unpacking them within bounds. Must not know sockets."""

from typing import Final

from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

from proxy.dialects.contract import Headers
from proxy.dialects.errors import ClientError
from proxy.dialects.routes import Route

MAX_UNPACKED_BYTES: Final = 20 * 1024 * 1024
"""Of one body, as in Ollama's server/cloud_proxy.go (maxDecompressedBodySize)."""
MAX_FRAMES: Final = 100
"""Of one body. Clients send one; each costs a copy of what follows it, in the event loop that all requests share."""
_WINDOW_LOG: Final = 23
"""Largest window that a packed body may ask to be kept, as a power of two: 8 MiB, as there (WithDecoderMaxMemory)."""

_ROUTES: Final = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
)
"""Where Ollama takes zstd; Codex sends it."""

_NAME: Final = "content-encoding"


def unpacked(route: Route, body: bytes, headers: Headers) -> bytes:
    """The body as it was before a Content-Encoding: that is also what engines get.

    Raises:
        ClientError: 415: an encoding that is not taken here. 400: it cannot be unpacked, or not within 20 MiB.
    """
    for name, value in headers:
        if len(name) != len(_NAME) or name.lower() != _NAME:
            continue
        encoding = value.strip().lower()
        if encoding == "zstd" and route.path in _ROUTES:
            body = _unzstd(body)
        elif encoding != "identity":
            takes = "zstd is the only encoding" if route.path in _ROUTES else "request bodies come without encodings"
            raise ClientError(415, f"Content-Encoding: {value[:40]!a} is not supported: {takes} on {route.path}")
    return body


def _unzstd(body: bytes) -> bytes:
    pieces: list[bytes] = []
    room = MAX_UNPACKED_BYTES
    try:
        while body:  # several frames in a row are one text
            if len(pieces) == MAX_FRAMES:
                raise ClientError(400, f"failed to decompress request body: more than {MAX_FRAMES} frames")
            unpacker = ZstdDecompressor(options={DecompressionParameter.window_log_max: _WINDOW_LOG})
            pieces.append(unpacker.decompress(body, max_length=room + 1))
            room -= len(pieces[-1])
            if room < 0:
                raise ClientError(400, "http: request body too large")
            if not unpacker.eof:
                raise ClientError(400, "failed to decompress request body: unexpected EOF")
            body = unpacker.unused_data
    except ZstdError as error:
        raise ClientError(400, f"failed to decompress request body: {error}") from None
    return b"".join(pieces)
