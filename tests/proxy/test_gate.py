"""The gate as other boxes meet it: who is let in, what they are told, and what holds on both sides of it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from proxy.endpoint import Endpoint, Gate
from proxy.gate import MAX_HEAD_BYTES, GateListener
from proxy.relay import AttemptError, Collector, ConnectionPool, Outgoing, exchange
from scheduler.domain import Failure
from tests.certificates import Certificates, make_certificates
from tests.proxy.gated import SECRET, Backends, Gated, gated, gated_rig
from tests.proxy.relay.rig import CHUNKED_OK, Call, Rig, ScriptedEngine, chunk, sized
from tests.wait import until


async def echo(call: Call) -> None:
    call.write(sized(call.head + call.body))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(echo)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> Certificates | None:
    return request.getfixturevalue("certificates") if request.param == "tls" else None


async def said(box: Gated, head: bytes) -> bytes:
    """What a plain gate answers to these bytes, until it closes or lets in."""
    reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
    try:
        writer.write(head)
        async with asyncio.timeout(10):
            answer = await reader.readuntil(b"\r\n\r\n")
            return answer if answer.startswith(b"HTTP/1.1 200") else answer + await reader.read()
    finally:
        writer.close()


def knock(backend: str = "gpu0", secret: str = SECRET) -> bytes:
    return f"CONNECT {backend} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (knock(), b"200 OK"),
        (knock(secret="another-secret-that-is-long"), b"401 Unauthorized"),
        (knock(secret=""), b"401 Unauthorized"),
        (knock(secret="\u00e9" * 16), b"401 Unauthorized"),
        (b"CONNECT gpu0 HTTP/1.1\r\n\r\n", b"401 Unauthorized"),
        (knock("gpu9"), b"404 Not Found"),
        (knock("far"), b"404 Not Found"),
        (knock("dead"), b"502 Bad Gateway"),
        (knock("nowhere"), b"502 Bad Gateway"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01 TLS\r\n\r\n", b"400 Bad Request"),
        (b"CONNECT gpu0 HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, b"431 Head Too Large"),
    ],
)
async def test_who_is_let_in(engine: ScriptedEngine, head: bytes, status: bytes) -> None:
    async with gated(engine.endpoint) as box:
        box.backends.endpoints["dead"] = Endpoint(host="a", address="127.0.0.1", port=1)
        box.backends.endpoints["nowhere"] = Endpoint(host="a", unix_path="/nonexistent/socket")
        box.backends.endpoints["far"] = Endpoint(host="a", gate=Gate("127.0.0.1", 1, "far"))
        answer = await said(box, head)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n"), answer
        assert b"Slotgate-Box: box-a\r\n" in answer
        assert SECRET.encode() not in answer
        await until(lambda: box.gate.passages == 0, "the passage to end")
        await until(lambda: engine.open == 0, "the engine to be let go")
    assert engine.connections == (status == b"200 OK")


async def test_strangers_have_a_few_seconds(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint, head_timeout_s=0.05) as box:
        assert (await said(box, b"CONNECT gpu0")).startswith(b"HTTP/1.1 408 ")


async def test_strangers_are_bounded_and_do_not_keep_boxes_out(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint, max_unknown=2) as box:
        strangers = [await asyncio.open_connection("127.0.0.1", box.port) for _ in range(2)]
        await until(lambda: len(box.gate._unknown) == 2, "two strangers")
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        for _, other in [*strangers, (reader, writer)]:
            other.close()
        await until(lambda: not box.gate._unknown, "they leave")
        assert (await said(box, knock())).startswith(b"HTTP/1.1 200")


async def test_passages_are_bounded(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint, max_passages=1) as box:
        pool = box.pool()
        await pool.open()
        with pytest.raises(AttemptError, match=r"box-a .* answered 503"):
            await pool.open()
        pool.close()


async def test_refused_secrets_are_logged_once_a_second_and_not_shown(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint) as box:
        with capture_logs() as lines:
            for _ in range(5):
                await said(box, knock(secret="wrong-secret-of-a-box"))
            box.gate.refused("10.0.0.7")
        told = [line["peer"] for line in lines if line["event"] == "secret refused at the gate"]
        assert told == ["127.0.0.1", "10.0.0.7"]
        assert "wrong-secret" not in str(lines)
        for number in range(5000):
            box.gate.refused(f"10.1.{number // 256}.{number % 256}")
        assert len(box.gate._told_s) <= 1024


async def ask(pool: ConnectionPool, body: bytes = b"{}") -> Collector:
    collector = Collector()
    outgoing = Outgoing("POST", "/api/chat", [], body)
    await exchange(pool, outgoing, collector, on_first_byte=lambda: None, headers=[])
    return collector


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
async def test_the_gate_tells_what_the_engine_wants_in_each_request(tls: Certificates | None, unix: bool) -> None:
    engine = ScriptedEngine(echo)
    await engine.start(unix=unix)
    key = (("Authorization", "Bearer engines-own-key"), ("X-Odd", "a: b"))
    endpoint = msgspec.structs.replace(engine.endpoint, prefix="/llm", headers=key)
    async with gated(endpoint, tls) as box:
        pool = box.pool()
        for _ in range(3):
            head = (await ask(pool)).body
            assert head.startswith(b"POST /llm/api/chat HTTP/1.1\r\nHost: " + endpoint.host.encode())
            assert b"Authorization: Bearer engines-own-key\r\nX-Odd: a: b\r\n" in head
            assert SECRET.encode() not in head
        assert (pool.opened, engine.connections) == (1, 1), "the connection is kept"
        pool.close()
        await until(lambda: engine.open == 0 and box.gate.passages == 0, "all to close")
    await engine.stop()


async def test_a_hundred_at_once_do_not_mix(engine: ScriptedEngine, tls: Certificates | None) -> None:
    bodies = [os.urandom(1000 + 331 * number) for number in range(100)]
    together = asyncio.Event()

    async def script(call: Call) -> None:
        if len(engine.calls) == len(bodies):
            together.set()
        await together.wait()
        call.write(CHUNKED_OK)
        for start in range(0, len(call.body), 997):
            call.write(chunk(call.body[start : start + 997]))
            await call.writer.drain()
        call.write(b"0\r\n\r\n")

    engine.script = script
    async with gated(engine.endpoint, tls) as box:
        pool = box.pool(connect_timeout_s=60)
        answers = await asyncio.gather(*(ask(pool, body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert (pool.opened, engine.connections) == (100, 100)
        pool.close()
        await until(lambda: engine.open == 0, "the engine to see all close")
        await until(lambda: box.gate.passages == 0, "no passage is left")


async def test_a_client_that_leaves_frees_the_engine_at_once(tls: Certificates | None) -> None:
    async with gated_rig(tls) as (rig, box):
        client = await rig.connect()
        client.post()
        await until(lambda: rig.engine.calls, "the request to arrive")
        client.close()
        await until(lambda: rig.engine.open == 0, "the engine to see that nobody waits")
        await until(lambda: rig.cancelled == 1 and box.gate.passages == 0, "nothing is left")


async def test_a_box_that_leaves_at_any_moment_leaves_nothing_behind(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint) as box:
        for moment in range(30):
            before = engine.connections
            _, writer = await asyncio.open_connection("127.0.0.1", box.port)
            writer.write(knock())
            while not box.gate.passages or (moment >= 10 and engine.connections == before):
                await asyncio.sleep(0)
            for _ in range(moment % 10):
                await asyncio.sleep(0)
            for side in tuple(box.gate._passages):  # as if the box's reset were seen now
                side.abort()
            await until(lambda: not box.gate.passages and not box.gate.tasks._tasks, "the passage to end")
            await until(lambda: engine.open == 0, f"the engine to be let go (moment {moment})")
            writer.close()


async def test_a_box_that_leaves_while_the_gate_still_dials(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.gate.CONNECT_TIMEOUT_S", 1000.0)
    async with gated(None) as box:
        full = socket.socket()
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # fills its backlog: a further connection gets no answer
            each.setblocking(False)
            each.connect_ex(address)
        box.backends.endpoints["gpu0"] = Endpoint(host="a", address=address[0], port=address[1])
        _, writer = await asyncio.open_connection("127.0.0.1", box.port)
        writer.write(knock())
        await until(lambda: box.gate.passages == 1, "the gate to dial")
        writer.close()
        await until(lambda: box.gate.passages == 0, "the passage to end")
        await until(lambda: not box.gate.tasks._tasks, "the dialing to end")
        for each in [full, *waiting]:
            each.close()


async def test_a_gate_that_dies_in_mid_stream_cuts_the_answer(tls: Certificates | None) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"response":"a"}\n'))
        await call.gone()

    async with gated_rig(tls) as (rig, box):
        rig.engine.script = script
        client = await rig.connect()
        client.post()
        await client.reader.readuntil(b'"a"}')
        await box.gate.close()
        assert await client.ended() or b"engine died" in await client.reader.read()
        await until(lambda: rig.errors, "the attempt to fail")
        assert (rig.errors[0].failure, rig.errors[0].committed) == (Failure.TRUNCATED, True)
        await until(lambda: rig.engine.open == 0, "the engine to see it")
        with pytest.raises(AttemptError) as caught:
            await rig.pool.open()
        assert caught.value.failure is Failure.CONNECT
        assert f"the gate 127.0.0.1:{box.port}" in caught.value.detail


async def test_a_reader_that_stops_stops_the_engine_and_gets_everything_in_the_end(tls: Certificates | None) -> None:
    block, blocks = os.urandom(256 * 1024), 128
    written = 0

    async def script(call: Call) -> None:
        nonlocal written
        call.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(block) * blocks))
        for _ in range(blocks):
            call.write(block)
            await call.writer.drain()
            written += 1

    async with gated_rig(tls) as (rig, box):
        rig.frontend.write_buffer_bytes = 64 * 1024
        rig.engine.script = script
        client = await rig.connect(receive_buffer_bytes=64 * 1024)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        client.post()
        before = -1

        def stands_still() -> bool:
            nonlocal before
            before, still = written, written == before
            return still and written > 0

        for _ in range(20):  # not just between two reads
            await until(stands_still, "the engine to be stopped")
        assert written < blocks
        (side,) = box.gate._passages
        for each in (side, side.other):
            assert each is not None
            assert each.transport.get_write_buffer_size() <= 1024 * 1024
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await client.reader.readuntil(b"\r\n\r\n")
        for _ in range(blocks):
            assert await client.reader.readexactly(len(block)) == block


async def test_stopping_lets_answers_end_and_takes_nothing_new(tls: Certificates | None) -> None:
    finish = asyncio.Event()

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"a"))
        await finish.wait()
        call.write(chunk(b"b"), b"0\r\n\r\n")

    async with gated_rig(tls) as (rig, box):
        rig.engine.script = script
        client = await rig.connect()
        client.post()
        await client.reader.readuntil(b"a\r\n")
        _, other = await asyncio.open_connection("127.0.0.1", box.port)
        await until(lambda: box.gate._unknown or tls is not None, "a stranger")
        box.gate.stop_listening()
        with pytest.raises(AttemptError):
            await rig.pool.open()
        finish.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        assert box.gate.passages == 1
        rig.pool.close()
        await until(lambda: not box.gate.passages, "the last passage to end")
        other.close()


async def test_an_engine_that_ends_its_side_is_followed_and_then_let_go(engine: ScriptedEngine) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        call.writer.write_eof()
        assert b"more" in await call.reader.readuntil(b"more"), "the other direction stays open"
        await call.gone()

    engine.script = script
    async with gated(engine.endpoint, linger_s=0.05) as box:
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        writer.write(knock() + b"POST / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b"HTTP/1.0 200 OK\r\n\r\nall of it"
        writer.write(b"more")
        await until(lambda: engine.open == 0 and box.gate.passages == 0, "the gate to close what the box does not")
        writer.close()


def test_a_gate_needs_a_secret_and_a_key_that_fits(certificates: Certificates, tmp_path: Any) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(ValueError, match="needs a secret"):
        GateListener(Backends(), "")
    for cert, key in [(certificates.cert, other.key), (tmp_path / "none.pem", other.key), (certificates.cert, None)]:
        with pytest.raises(ValueError, match=r"box\.tls_cert .* cannot be used"):
            GateListener(Backends(), SECRET, tls_cert=cert, tls_key=key)


async def test_a_renewed_certificate_is_used_without_a_restart(engine: ScriptedEngine, tmp_path: Any) -> None:
    files = make_certificates(tmp_path)
    async with gated(engine.endpoint, files) as box:
        old = box.client()
        await ConnectionPool(box.endpoint(), old).open()
        make_certificates(tmp_path)
        box.gate.renew_certificate()
        with pytest.raises(AttemptError, match="not trusted"):
            await ConnectionPool(box.endpoint(), old).open()
        await ConnectionPool(box.endpoint(), box.client()).open()
        files.key.write_text("")
        with pytest.raises(ValueError, match="cannot be used"):
            box.gate.renew_certificate()
        await ConnectionPool(box.endpoint(), box.client()).open()


async def test_the_rig_is_whole(certificates: Certificates) -> None:
    async with gated_rig(certificates, unix=True) as (rig, box):
        assert isinstance(rig, Rig)
        assert box.gate._tls is not None
        rig.engine.script = echo
        assert (await rig.ask(body=b"through")).body.endswith(b"through")
