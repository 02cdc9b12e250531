"""Answers that a transform changes on their way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from proxy.dialects.progress import ProgressFilter
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


PROGRESS = b'data: {"choices":[],"prompt_progress":{"total":3}}\n\n'
ERROR = b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n'


@pytest.mark.parametrize("together", [True, False])
async def test_an_error_behind_progress_frames_may_go_elsewhere(rig: Rig, together: bool) -> None:
    fed = asyncio.Event()

    class Watched(ProgressFilter):
        def feed(self, data: bytes) -> bytes:
            fed.set()
            return super().feed(data)

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(PROGRESS))
        if not together:
            await fed.wait()
        call.write(chunk(ERROR), LAST)

    rig.engine.script = script
    rig.options["transform"] = Watched
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is Failure.ENGINE_ERROR
    assert not rig.errors[0].committed
    assert rig.errors[0].detail == ERROR.decode().strip()
    assert rig.first_bytes == 0


def _fails(*_: object) -> Any:
    raise ValueError("cannot be said")


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
async def test_an_answer_whose_head_cannot_be_made_commits_to_nothing(rig: Rig, status: bytes) -> None:
    class Headless(Upper):
        head: Callable[..., Any] = _fails

    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 1\r\n\r\nx")

    rig.engine.script = script
    rig.options |= {"transform": Headless, "error_body": _fails}
    got = await rig.ask()
    assert (got.status, got.body) == (502, b"engine-error")
    assert not rig.errors[0].committed
    assert rig.first_bytes == 0


async def test_a_header_that_cannot_be_sent_commits_to_nothing(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"x"), LAST)

    rig.engine.script = script
    rig.extra = [("X-Slotgate-Decision", "a\r\nb")]
    got = await rig.ask()
    assert got.status == 502
    assert not rig.errors[0].committed
