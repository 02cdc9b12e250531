"""One request to one Ollama: lines as they come, bodies in pieces, ends told apart. Against a scripted engine."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.endpoint import Endpoint
from proxy.model_store import asking
from proxy.model_store.asking import Answered, Upload, ask
from proxy.relay import AttemptError, ConnectionPool
from scheduler.domain import Failure
from tests.proxy.gated import gated
from tests.proxy.relay.rig import CHUNKED_OK, Call, ScriptedEngine, chunk, sized
from tests.wait import until

PIECE = b"x" * 65_536


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async def nothing(_call: Call) -> None:
        pass

    engine = ScriptedEngine(nothing)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def pool(engine: ScriptedEngine) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(engine.endpoint, sweep_interval_s=0.02)
    yield pool
    pool.close()


async def test_lines_are_told_however_they_are_cut(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"a":1}\n{"b"'), chunk(b":2}\n\n"), chunk(b'{"c":3}'), b"0\r\n\r\n")

    engine.script = script
    heard: list[bytes] = []
    answered = await ask(pool, "POST", "/api/pull", b"{}", heard.append)

    assert heard == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert answered == Answered(200, b"")
    assert b"content-type: application/json" in engine.calls[0].head.lower()


async def test_an_error_is_kept_whole(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b'{"error":"invalid model name"}', "400 Bad Request"))

    engine.script = script
    heard: list[bytes] = []
    answered = await ask(pool, "POST", "/api/pull", b"{}", heard.append)

    assert answered == Answered(400, b'{"error":"invalid model name"}')
    assert heard == []


async def test_what_breaks_off_is_no_answer(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"a":1}\n'))
        await call.writer.drain()
        call.reset()

    engine.script = script
    with pytest.raises(AttemptError) as broken:
        await ask(pool, "POST", "/api/pull", b"{}", lambda _line: None)
    assert broken.value.failure is Failure.RESET


async def test_silence_has_an_end(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    engine.script = Call.gone
    with pytest.raises(AttemptError) as silent:
        await ask(pool, "POST", "/api/pull", b"{}", lambda _line: None, stall_s=0.05)
    assert silent.value.failure is Failure.TIMEOUT


async def test_a_line_without_end_is_refused(
    engine: ScriptedEngine, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"x" * 100))

    engine.script = script
    monkeypatch.setattr(asking, "MAX_LINE_BYTES", 50)
    with pytest.raises(AttemptError, match="in one line"):
        await ask(pool, "POST", "/api/pull", b"{}", lambda _line: None)


async def test_whoever_stops_asking_is_seen_to_leave(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    gone: list[bool] = []

    async def script(call: Call) -> None:
        await call.gone()
        gone.append(True)

    engine.script = script
    asked = asyncio.ensure_future(ask(pool, "POST", "/api/pull", b"{}", lambda _line: None))
    await until(lambda: engine.calls, "the request is there")
    asked.cancel()
    await until(lambda: gone, "the engine sees it")
    assert pool.active == 0


@pytest.mark.parametrize("length", [4 * len(PIECE), None])
async def test_an_upload_arrives_whole(engine: ScriptedEngine, pool: ConnectionPool, length: int | None) -> None:
    got: list[bytes] = []

    async def script(call: Call) -> None:
        got.append(call.head)
        wanted = 4 * len(PIECE) if length else 4 * len(b"10000\r\n" + PIECE + b"\r\n") + 5
        got.append(await call.reader.readexactly(wanted))
        call.write(sized(b"", "201 Created"))

    engine.script, engine.reads_bodies = script, False
    upload = Upload(pool, "/api/blobs/sha256:aa", length)
    await upload.begin()
    for _ in range(4):
        await upload.write(PIECE)
    assert await upload.end() == Answered(201, b"")
    upload.close()

    head, body = got
    assert head.startswith(b"POST /api/blobs/sha256:aa HTTP/1.1\r\n")
    assert (b"Content-Length: 262144" in head) is (length is not None)
    assert body.count(b"x") == 4 * len(PIECE)


async def test_an_upload_waits_for_a_slow_reader(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    """Nothing of a blob is held here beyond what the sockets hold."""
    read_on = asyncio.Event()

    async def script(call: Call) -> None:
        await read_on.wait()
        await call.reader.readexactly(400 * len(PIECE))
        call.write(sized(b"", "201 Created"))

    engine.script, engine.reads_bodies = script, False
    upload = Upload(pool, "/x", 400 * len(PIECE))
    await upload.begin()
    written: list[int] = []

    async def write() -> None:
        for number in range(400):
            await upload.write(PIECE)
            written.append(number)

    writing = asyncio.ensure_future(write())
    await until(lambda: written, "something was written")
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(written) < 300
    read_on.set()
    await writing
    assert (await upload.end()).status == 201


async def test_a_refusal_before_the_end_ends_the_connection_too(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    """Another request on it would be read as part of the body."""

    async def script(call: Call) -> None:
        call.write(sized(b'{"error":"no"}', "400 Bad Request"))
        await call.gone()

    engine.script, engine.reads_bodies = script, False
    upload = Upload(pool, "/x", 2 * len(PIECE))
    await upload.begin()
    await upload.write(PIECE)
    await until(upload._hearing.done.done, "the answer came")
    await upload.write(PIECE)
    assert (await upload.end()).status == 400
    assert pool.idle == 0


async def test_an_empty_upload(engine: ScriptedEngine, pool: ConnectionPool) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b"", "201 Created"))

    engine.script = script
    upload = Upload(pool, "/x", 0)
    await upload.begin()
    assert (await upload.end()).status == 201


async def test_nobody_there() -> None:
    pool = ConnectionPool(Endpoint("127.0.0.1:1", port=1, address="127.0.0.1"))
    with pytest.raises(AttemptError):
        await ask(pool, "POST", "/api/pull")
    with pytest.raises(AttemptError):
        await Upload(pool, "/x", 1).begin()


async def test_through_a_gate(engine: ScriptedEngine) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"a":1}\n'), b"0\r\n\r\n")

    engine.script = script
    async with gated(engine.endpoint) as box:
        pool = box.pool()
        heard: list[bytes] = []
        await ask(pool, "POST", "/api/pull", b"{}", heard.append)
        upload = Upload(pool, "/x", len(PIECE))
        await upload.begin()
        await upload.write(PIECE)
        assert (await upload.end()).status == 200
        pool.close()
    assert heard == [b'{"a":1}']
    assert engine.calls[1].body == PIECE
