"""Answers that a transform changes on their way."""

import asyncio

from scheduler.domain import Failure
from tests.proxy.relay.rig import CHUNKED_OK, Call, Rig, Upper, chunk
from tests.wait import until

LAST = b"0\r\n\r\n"


async def test_a_transformed_stream_is_framed_anew(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"ab"))
        await call.writer.drain()
        call.write(chunk(b"cd"), LAST)

    rig.engine.script = script
    rig.options["transform"] = Upper
    got = await rig.ask()
    assert got.complete
    assert got.body == b"ABCD."
    assert got.headers["content-type"] == "text/upper"


async def test_a_transform_that_gives_all_at_the_end_makes_a_sized_answer(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"ab"))
        await call.writer.drain()
        assert rig.first_bytes == 0
        call.write(chunk(b"cd"), LAST)

    rig.engine.script = script
    rig.options["transform"] = lambda: Upper(swallow=True)
    got = await rig.ask()
    assert got.body == b"ABCD."
    assert got.headers["content-length"] == "5"


async def test_a_transform_may_step_aside_in_mid_stream(rig: Rig) -> None:
    step = asyncio.Event()

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"progress"))
        await call.writer.drain()
        call.write(chunk(b"switch"))
        await call.writer.drain()
        await step.wait()
        call.write(chunk(b"raw one"), chunk(b"raw two"), LAST)

    rig.engine.script = script
    rig.options["transform"] = lambda: Upper(b"switch")
    client = await rig.connect()
    client.post()
    await client.reader.readuntil(b"SWITCH\r\n")
    step.set()
    assert await client.reader.readuntil(LAST) == chunk(b"raw one") + chunk(b"raw two") + LAST


async def test_a_transform_that_fails_before_the_first_byte_allows_another_backend(rig: Rig) -> None:
    class Broken(Upper):
        def feed(self, data: bytes) -> bytes:
            raise ValueError("not JSON")

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"x"))
        await call.gone()

    rig.engine.script = script
    rig.options["transform"] = Broken
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is Failure.ENGINE_ERROR
    assert not rig.errors[0].committed
    await until(lambda: rig.engine.open == 0, "the engine's connection to close")
