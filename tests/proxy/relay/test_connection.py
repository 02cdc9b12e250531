import asyncio

import pytest

from scheduler.domain import Failure
from tests.proxy.relay.rig import CHUNKED_OK, Call, Rig, chunk, sized
from tests.wait import until


async def test_a_head_may_come_byte_by_byte(rig: Rig) -> None:
    async def script(call: Call) -> None:
        for byte in sized(b"fine", extra=b"X-A: b\r\n"):
            call.write(bytes([byte]))
            await call.writer.drain()
            await asyncio.sleep(0)

    rig.engine.script = script
    got = await rig.ask()
    assert got.body == b"fine"
    assert got.headers["x-a"] == "b"


async def test_interim_answers_are_left_out(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", sized(b"fine"))

    rig.engine.script = script
    got = await rig.ask()
    assert got.body == b"fine"
    assert b"100" not in got.raw
    assert "link" not in got.headers


@pytest.mark.parametrize(
    "answer", [sized(b"fine") + b"HTTP/1.1 200 OK\r\n", CHUNKED_OK + chunk(b"fine") + b"0\r\n\r\nx"]
)
async def test_a_connection_with_bytes_too_many_is_not_used_again(rig: Rig, answer: bytes) -> None:
    async def script(call: Call) -> None:
        call.write(answer)

    rig.engine.script = script
    client = await rig.connect()
    for _ in range(2):
        client.post()
        assert (await client.answer()).body == b"fine"
    assert rig.engine.connections == 2


async def test_bytes_that_nobody_asked_for_close_the_connection(rig: Rig) -> None:
    kept: list[Call] = []

    async def script(call: Call) -> None:
        kept.append(call)
        call.write(sized(b"fine"))

    rig.engine.script = script
    await rig.ask()
    assert rig.pool.idle == 1
    kept[0].write(sized(b"poison"))
    await until(lambda: rig.pool.idle == 0, "the connection to be closed")
    assert (await rig.ask()).body == b"fine"


async def test_the_engines_wish_to_close_is_heeded(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b"fine", extra=b"Connection: close\r\n"))

    rig.engine.script = script
    await rig.ask()
    assert rig.pool.idle == 0


async def test_an_answer_before_the_whole_request_is_read_passes_and_spoils_the_connection(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b"too large", "413 Payload Too Large"))
        await call.gone()

    rig.engine.script = script
    rig.engine.reads_bodies = False
    got = await rig.ask(body=b"x" * 20_000_000)
    assert got.status == 413
    assert rig.pool.idle == 0


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"x" * 70_000]
)
async def test_what_is_not_http_is_an_engine_error(rig: Rig, answer: bytes) -> None:
    async def script(call: Call) -> None:
        call.write(answer)
        await call.gone()

    rig.engine.script = script
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is Failure.ENGINE_ERROR
    await until(lambda: rig.engine.open == 0, "the connection to close")
