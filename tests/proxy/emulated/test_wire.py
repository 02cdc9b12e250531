"""The HTTP/1.1 of the emulated engines, on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from proxy.emulated.wire import Exchange, Headers, Listener, Manners
from tests.wait import until


def plain_head(exchange: Exchange, status: int, headers: Headers, length: int | None, keep: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers)]
    lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
    return ("\r\n".join(lines) + f"\r\nkeep: {keep}\r\n\r\n").encode()


Start = Callable[..., Awaitable[Listener]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts listeners and ends them."""
    made: list[Listener] = []

    async def begin(respond: Callable[[Exchange], Awaitable[None]], *, path: str = "", **manners: object) -> Listener:
        listener = Listener(Manners(plain_head, **manners), respond)  # type: ignore[arg-type]
        await listener.start(unix_path=path)
        made.append(listener)
        return listener

    yield begin
    for listener in made:
        await listener.close()


async def connect(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if listener.url.startswith("unix:"):
        return await asyncio.open_unix_connection(listener.url.removeprefix("unix:"))
    host, port = listener.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def echo(exchange: Exchange) -> None:
    text = f"{exchange.method} {exchange.path} {exchange.query} {exchange.headers.get('x-a')} {len(exchange.body)}"
    exchange.whole(200, [], text.encode())


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    return await reader.readexactly(length)


async def test_requests_are_read_whole(start: Start) -> None:
    reader, writer = await connect(await start(echo))
    writer.write(b"POST /a%20b?c=d&e HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhe")
    await writer.drain()
    writer.write(b"llo")
    assert await answer_of(reader) == b"POST /a b {'c': 'd', 'e': ''} 1 5"
    writer.write(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
    assert await answer_of(reader) == b"POST / {} None 7"
    writer.close()


async def test_a_client_that_wants_to_be_asked_is_asked(start: Start) -> None:
    reader, writer = await connect(await start(echo))
    writer.write(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ab")
    assert await answer_of(reader) == b"POST / {} None 2"
    writer.close()


async def test_what_is_no_http_is_refused(start: Start) -> None:
    reader, writer = await connect(await start(echo))
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_head_has_no_body(start: Start) -> None:
    reader, writer = await connect(await start(echo))
    writer.write(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"keep: False\r\n\r\n")
    writer.close()


async def test_pipelined_requests_wait_for_each_other(start: Start) -> None:
    waiting: list[Exchange] = []

    async def respond(exchange: Exchange) -> None:
        waiting.append(exchange)

    reader, writer = await connect(await start(respond))
    writer.write(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
    await until(lambda: waiting, "the first arrives")
    waiting[0].whole(200, [], b"one")
    await until(lambda: len(waiting) == 2, "the second follows")
    waiting[1].whole(200, [], b"two")
    assert [await answer_of(reader), await answer_of(reader)] == [b"one", b"two"]
    writer.close()


async def test_streams_are_chunked_and_end(start: Start) -> None:
    async def respond(exchange: Exchange) -> None:
        exchange.begin(200, [("A", "b")])
        exchange.chunk(b"x" * 17)
        exchange.chunk(b"")
        exchange.end()
        exchange.chunk(b"too late")
        exchange.end()

    reader, writer = await connect(await start(respond))
    writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    assert text.endswith(b"\r\n\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n")
    writer.close()


async def test_an_abort_leaves_the_stream_unfinished(start: Start) -> None:
    async def respond(exchange: Exchange) -> None:
        exchange.begin(200, [])
        exchange.chunk(b"part")
        exchange.abort()

    reader, writer = await connect(await start(respond))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert not (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_reset_is_one(start: Start) -> None:
    async def respond(exchange: Exchange) -> None:
        exchange.abort(reset=True)

    reader, writer = await connect(await start(respond))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_new_connections_can_be_reset_or_refused(start: Start) -> None:
    listener = await start(echo)
    listener.reset_new = True
    reader, writer = await connect(listener)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    listener.reset_new = False
    kept_reader, kept_writer = await connect(listener)
    kept_writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await answer_of(kept_reader)
    listener.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(listener)
    kept_writer.write(b"GET / HTTP/1.1\r\n\r\n")  # who was connected stays so
    await answer_of(kept_reader)
    listener.reopen()
    listener.refuse()
    listener.reopen()
    await until(lambda: _connects(listener), "it listens again")
    assert listener.accepted == 3
    listener.cut_all()
    assert await kept_reader.read() == b""
    kept_writer.close()


async def _connects(listener: Listener) -> bool:
    try:
        _, writer = await connect(listener)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_a_unix_socket_serves_too_and_its_path_goes(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    listener = await start(echo, path=str(path))
    reader, writer = await connect(listener)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await answer_of(reader)
    writer.close()
    assert listener.url == f"unix:{path}"
    await listener.close()
    assert not path.exists()


async def test_manners_end_connections(start: Start) -> None:
    async def respond(exchange: Exchange) -> None:
        exchange.whole(404 if exchange.path == "/no" else 200, [], b"")

    listener = await start(respond, idle_timeout_s=0.05, requests_per_connection=3, closes_after_errors=True)
    for requests in (["/no"], ["/yes", "/yes", "/yes"], ["/yes"], []):
        reader, writer = await connect(listener)
        for path in requests:
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert await reader.read() == b""  # by the error, the count, twice the idle time
        writer.close()


async def test_a_client_that_leaves_is_told_of_but_what_is_ready_still_goes_out(start: Start) -> None:
    told: list[str] = []
    exchanges: list[Exchange] = []

    async def respond(exchange: Exchange) -> None:
        exchange.on_gone = lambda: told.append("gone")
        exchange.on_ended.append(lambda: told.append("ended"))
        exchanges.append(exchange)

    reader, writer = await connect(await start(respond))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: exchanges, "it arrives")
    writer.write_eof()
    await until(lambda: told, "the half-close is seen")
    exchanges[0].whole(200, [], b"still")
    assert told == ["gone", "ended"]
    assert (await reader.read()).endswith(b"still")
    writer.close()


async def test_an_answer_that_fails_cuts_the_connection(start: Start) -> None:
    async def respond(exchange: Exchange) -> None:
        raise RuntimeError("a bug")

    reader, writer = await connect(await start(respond))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
