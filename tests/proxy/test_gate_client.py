"""Dialing a gate: every way that it can go wrong is a failure to connect which says what to do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from proxy.endpoint import Endpoint, Gate
from proxy.gate_client import MAX_ANSWER_BYTES, GateClient, GateError
from proxy.relay import AttemptError, ConnectionPool
from scheduler.domain import Failure
from tests.certificates import Certificates, make_certificates
from tests.proxy.gated import SECRET, gated
from tests.proxy.relay.rig import Call, ScriptedEngine, sized
from tests.wait import until


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async def script(call: Call) -> None:
        call.write(sized(b""))

    engine = ScriptedEngine(script)
    await engine.start()
    yield engine
    await engine.stop()


async def refusal(endpoint: Endpoint, client: GateClient) -> str:
    """How an attempt to connect is refused."""
    with pytest.raises(AttemptError) as caught:
        await ConnectionPool(endpoint, client).open()
    assert caught.value.failure is Failure.CONNECT
    assert not caught.value.committed
    assert SECRET not in caught.value.detail
    return caught.value.detail


async def test_refusals_name_the_box_and_the_cure(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint) as box:
        place = f"127.0.0.1:{box.port}"
        wrong = await refusal(box.endpoint(), box.client("another-secret-0123456789"))
        assert wrong == f"box box-a ({place}) refused the secret: set box.secret to the same on both boxes"
        assert await refusal(box.endpoint("gpu7"), box.client()) == (
            f"box box-a ({place}) has no such backend: 'gpu7' is not there now"
        )
        await engine.stop()
        dead = await refusal(box.endpoint(), box.client())
        assert dead.startswith(f"box box-a ({place}) does not reach its engine: http://127.0.0.1:")
        assert await refusal(box.endpoint("a b"), box.client()) == f"'a b' is no name of a backend at the gate {place}"
    assert (await refusal(box.endpoint(), box.client())).startswith(f"the gate {place}: Connect")
    assert "set box.secret" in await refusal(box.endpoint(), GateClient())
    with pytest.raises(AttemptError, match=r"set box\.secret"):
        await ConnectionPool(box.endpoint()).open()


async def test_a_gate_whose_certificate_is_not_trusted(
    engine: ScriptedEngine, certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path, "DNS:elsewhere.example")
    async with gated(engine.endpoint, certificates) as box:
        for client in (GateClient(SECRET, other.ca), GateClient(SECRET)):
            why = await refusal(box.endpoint(), client)
            assert why.startswith(f"the certificate of the gate 127.0.0.1:{box.port} is not trusted: ")
            assert "box.tls_ca" in why
        await ConnectionPool(box.endpoint(host="localhost"), box.client()).open()
    async with gated(engine.endpoint, other) as box:
        assert "not trusted: IP address mismatch" in await refusal(box.endpoint(), box.client())
    assert engine.connections == 1


async def test_tls_on_one_side_only(engine: ScriptedEngine, certificates: Certificates) -> None:
    async with gated(engine.endpoint, certificates) as box:
        assert "want TLS" in await refusal(box.endpoint(tls=False), box.client())
    async with gated(engine.endpoint) as box:
        why = await refusal(box.endpoint(tls=True), GateClient(SECRET, certificates.ca))
        assert why.startswith(f"no TLS with the gate 127.0.0.1:{box.port}: ")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def other_program(serve: Serve) -> tuple[asyncio.Server, Gate]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, Gate("127.0.0.1", server.sockets[0].getsockname()[1], "gpu0")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is no gate: it answers b'SSH-2.0-OpenSSH_9.2"),
        (b"HTTP/1.1 200 OK\r\n", "closed without an answer"),
        (b"", "closed without an answer"),
        (b"HTTP/1.1 ok\r\n\r\n", "is no gate"),
        (b"HTTP/1.1 407 No\r\nContent-Length: x\r\n\r\n", "is no gate"),
        (b"HTTP/1.1 405 Not Allowed\r\nContent-Length: 4\r\n\r\nnono", "answered 405: nono"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_ANSWER_BYTES, "is no gate"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "spoke first"),
    ],
)
async def test_what_is_no_gate(answer: bytes, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server, gate = await other_program(serve)
    assert words in await refusal(Endpoint(host="a", gate=gate), GateClient(SECRET))
    server.close()


async def test_a_gate_that_does_not_answer() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() != b""
        gone.set()
        writer.close()

    server, gate = await other_program(serve)
    pool = ConnectionPool(Endpoint(host="a", gate=gate), GateClient(SECRET), connect_timeout_s=0.05)
    with pytest.raises(AttemptError, match=rf"no connection through the gate 127\.0\.0\.1:{gate.port} within 0\.05 s"):
        await pool.open()
    await until(gone.is_set, "the connection to be closed")
    server.close()


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


async def test_who_gives_up_leaves_no_connection_even_when_just_let_in(engine: ScriptedEngine) -> None:
    async with gated(engine.endpoint) as box:
        gate = box.endpoint().gate
        assert gate is not None
        protocol = _Protocol()
        dialing = asyncio.ensure_future(box.client().connect(gate, protocol))
        while protocol.transport is None:
            await asyncio.sleep(0)
        dialing.cancel()  # it is let in and has not been told yet
        with pytest.raises(asyncio.CancelledError):
            await dialing
        await until(lambda: protocol.lost and engine.open == 0, "both ends to close")


def test_certificates_to_trust_are_read_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"box\.tls_ca .* cannot be used: No such file"):
        GateClient(SECRET, tmp_path / "none.pem")
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ValueError, match=r"box\.tls_ca .* cannot be used"):
        GateClient(SECRET, tmp_path / "empty.pem")
    assert issubclass(GateError, ConnectionError)
