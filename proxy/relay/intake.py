"""What a request must be before anybody reads it, and reading its body. Must not know routes, dialects or engines."""

from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion11, web

MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_URL_BYTES: Final = 8 * 1024


class BodyTooLarge(Exception):
    """A request body exceeds the limit. The rest of it was not read: close the connection."""


def check_request(request: web.BaseRequest) -> tuple[int, str] | None:
    """Judge what aiohttp's parser lets through and a proxy must not.

    Returns:
        Status and reason of the refusal, after which the connection must be closed; None: the request may be routed.
        Limits: 100 headers, 32 KiB of head, 8 KiB of URL (RFC 9112 asks for 8,000 octets at least).
    """
    path, pairs, headers = request.raw_path, request.raw_headers, request.headers
    if len(path) > MAX_URL_BYTES:
        return HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL is longer than {MAX_URL_BYTES} bytes"
    if request.method == "CONNECT" or not path.startswith("/"):
        return HTTPStatus.BAD_REQUEST, "this is no forward proxy: send a path, not an absolute URL or CONNECT"
    if len(pairs) > MAX_HEADERS:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {MAX_HEADERS} headers"
    if len(path) + sum([len(name) + len(value) + 4 for name, value in pairs]) > MAX_HEAD_BYTES:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request's head is larger than {MAX_HEAD_BYTES} bytes"
    hosts = len(headers.getall("Host", ()))  # aiohttp refuses a second one; that is no reason to forward it
    if hosts > 1 or (not hosts and request.version >= HttpVersion11):
        return HTTPStatus.BAD_REQUEST, "a request has exactly one Host header"
    return _check_framing(request)


def _check_framing(request: web.BaseRequest) -> tuple[int, str] | None:
    headers = request.headers
    if codings := headers.getall("Transfer-Encoding", ()):
        if len(codings) > 1 or request.version < HttpVersion11:
            return HTTPStatus.BAD_REQUEST, "Transfer-Encoding twice, or in HTTP/1.0"
        if codings[0].strip().lower() != "chunked":
            return HTTPStatus.NOT_IMPLEMENTED, "the only transfer coding known is chunked"
    # An offer of h2c may be ignored (RFC 9110, 7.8), and Java's client always makes it.
    if headers.get("Upgrade", "h2c").strip().lower() != "h2c":
        return HTTPStatus.BAD_REQUEST, "no upgrade to another protocol here, WebSocket included"
    if headers.get("Expect", "100-continue").strip().lower() != "100-continue":
        return HTTPStatus.EXPECTATION_FAILED, "the only expectation known is 100-continue"
    return None


async def read_body(request: web.BaseRequest, limit_bytes: int) -> bytes:
    """The whole request body; a client that waits for `100 Continue` gets it.

    Raises:
        BodyTooLarge: longer than `limit_bytes`, by its Content-Length or in fact; nothing more was read.
        ConnectionError: the client left or broke its framing half-way.
    """
    content = request.content
    if (request.content_length or 0) > limit_bytes:
        raise BodyTooLarge(f"the body is larger than {limit_bytes} bytes")
    if content.is_eof():
        body = content.read_nowait()
        if len(body) > limit_bytes:
            raise BodyTooLarge(f"the body is larger than {limit_bytes} bytes")
        return body
    if "Expect" in request.headers and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := await content.readany():
            size += len(piece)
            if size > limit_bytes:
                raise BodyTooLarge(f"the body is larger than {limit_bytes} bytes")
            pieces.append(piece)
    except web.RequestPayloadError as error:
        raise ConnectionError(f"the request's body broke: {error}") from error
    return b"".join(pieces)
