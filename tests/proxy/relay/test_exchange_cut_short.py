"""Answers that do not arrive whole, and attempts that another backend may take over."""

import asyncio

import pytest

from proxy.relay import TruncatedReply
from proxy.relay.exchange import MAX_REFUSAL_BYTES
from scheduler.domain import Failure
from tests.proxy.relay.rig import CHUNKED_OK, Call, EndMark, Rig, Upper, chunk, sized
from tests.wait import until

LINES = [b'{"response":"%d","done":false}\n' % number for number in range(5)]
LAST = b"0\r\n\r\n"


async def test_a_client_that_leaves_in_prefill_closes_the_engines_connection(rig: Rig) -> None:
    client = await rig.connect()
    client.post()
    await until(lambda: rig.engine.calls, "the request to arrive")
    client.close()
    await until(lambda: rig.engine.open == 0, "the engine to see the close")
    assert rig.cancelled == 1
    assert rig.pool.active == 0


async def test_a_client_that_leaves_in_mid_stream_closes_the_engines_connection(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.gone()

    rig.engine.script = script
    client = await rig.connect()
    client.post()
    await client.reader.readuntil(LINES[0])
    client.close()
    await until(lambda: rig.engine.open == 0, "the engine to see the close")
    assert rig.cancelled == 1


async def test_an_engine_killed_in_mid_stream_never_looks_finished(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.writer.drain()
        await until(lambda: rig.first_bytes, "the first byte to pass")
        call.reset()

    rig.engine.script = script
    got = await rig.ask()
    assert not got.complete
    assert got.body.startswith(LINES[0])
    assert LAST not in got.raw
    assert b"500" not in got.raw
    assert rig.errors[0].failure is Failure.TRUNCATED
    assert rig.errors[0].committed


@pytest.mark.parametrize(("half", "told"), [(0, True), (20, False)])
async def test_an_error_is_told_only_between_chunks(rig: Rig, half: int, told: bool) -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await more.wait()
        call.write(chunk(LINES[1])[:half])
        await call.writer.drain()
        call.writer.close()

    rig.engine.script = script
    client = await rig.connect()
    client.post()
    begun = await client.reader.readuntil(LINES[0] + b"\r\n")
    more.set()
    rest = await client.reader.read()
    assert not begun.endswith(LAST)
    assert rest.startswith(chunk(LINES[1])[:half])
    assert (b"engine died" in rest) is told
    assert LAST not in rest


async def test_a_sized_answer_cut_short_never_looks_finished(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        await call.writer.drain()
        call.writer.close()

    rig.engine.script = script
    got = await rig.ask()
    assert not got.complete
    assert rig.errors[0].failure is Failure.TRUNCATED


@pytest.mark.parametrize("split", ["with the data", "alone", "torn apart"])
async def test_a_stream_without_its_end_mark_gets_no_last_chunk(rig: Rig, split: str) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.writer.drain()
        await until(lambda: rig.first_bytes, "the first byte to pass")
        if split == "with the data":
            call.write(chunk(LINES[1]), LAST)
            return
        call.write(chunk(LINES[1]))
        for part in [LAST] if split == "alone" else [b"0", b"\r", b"\n\r", b"\n"]:
            await call.writer.drain()
            await asyncio.sleep(0)
            call.write(part)

    rig.engine.script = script
    rig.options["watch"] = EndMark
    got = await rig.ask()
    assert not got.complete
    assert got.body == LINES[0] + LINES[1] + b'{"error":"engine died"}\n'
    assert LAST not in got.raw
    assert rig.errors[0].failure is Failure.TRUNCATED
    assert rig.errors[0].committed


async def test_a_stream_with_its_end_mark_is_whole(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]), chunk(b'{"done":true}\n'), LAST)

    rig.engine.script = script
    rig.options["watch"] = EndMark
    assert (await rig.ask()).complete
    assert not rig.errors


async def test_a_transform_that_misses_the_end_mark_gets_no_last_chunk(rig: Rig) -> None:
    class Unfinished(Upper):
        def finish(self) -> bytes:
            raise TruncatedReply

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.writer.drain()
        await until(lambda: rig.first_bytes, "the first byte to pass")
        call.write(chunk(LINES[1]), LAST)

    rig.engine.script = script
    rig.options["transform"] = Unfinished
    got = await rig.ask()
    assert not got.complete
    assert LINES[1].upper() in got.body
    assert rig.errors[0].committed


async def test_a_whole_answer_without_its_end_mark_may_be_tried_elsewhere(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b'{"done":false}'), LAST)

    rig.engine.script = script
    rig.options["watch"] = EndMark
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is Failure.TRUNCATED
    assert not rig.errors[0].committed


async def test_bad_framing_in_mid_stream_is_no_end(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.writer.drain()
        await until(lambda: rig.first_bytes, "the first byte to pass")
        call.write(b"+5\r\nhello\r\n")
        await call.gone()

    rig.engine.script = script
    got = await rig.ask()
    assert not got.complete
    assert b"hello" not in got.raw
    assert rig.errors[0].committed


async def test_nobody_listening(rig: Rig) -> None:
    await rig.engine.stop()
    assert (await rig.ask()).body == b"connect"
    assert rig.errors[0].failure is Failure.CONNECT


async def test_a_connection_reset_before_the_answer(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.reset()

    rig.engine.script = script
    assert (await rig.ask()).body == b"reset"
    assert rig.engine.connections == 1


async def test_a_connection_reset_within_the_head(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\nContent-")
        await call.writer.drain()
        call.writer.close()

    rig.engine.script = script
    assert (await rig.ask()).body == b"reset"


async def test_a_kept_connection_that_went_stale_is_replaced_once(rig: Rig) -> None:
    async def script(call: Call) -> None:
        if len(rig.engine.calls) == 2:
            # Closed in the moment in which the second request was under way.
            call.reset()
            return
        call.write(sized(b"fine"))

    rig.engine.script = script
    client = await rig.connect()
    for _ in range(2):
        client.post()
        assert (await client.answer()).body == b"fine"
    assert rig.engine.connections == 2
    assert len(rig.engine.calls) == 3
    assert not rig.errors


async def test_a_kept_connection_lost_in_prefill_is_no_stale_one(rig: Rig) -> None:
    async def script(call: Call) -> None:
        if len(rig.engine.calls) == 1:
            call.write(sized(b"fine"))
            return
        (connection,) = rig.pool._active
        connection._answer._sent_s -= 30
        call.reset()

    rig.engine.script = script
    client = await rig.connect()
    client.post()
    assert (await client.answer()).body == b"fine"
    client.post()
    assert (await client.answer()).body == b"reset"
    assert rig.engine.connections == 1
    assert len(rig.engine.calls) == 2


async def test_a_fresh_connection_that_closes_is_not_tried_again(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.reset()

    rig.engine.script = script
    await rig.ask()
    assert len(rig.engine.calls) == 1


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        ("503 X", b'{"error":{"message":"Loading model","code":503}}', Failure.LOADING),
        ("503 X", b'{"error":"server busy, please try again.  maximum pending requests exceeded"}', Failure.OVERLOADED),
        ("429 X", b"", Failure.OVERLOADED),
        ("502 X", b"bad gateway", Failure.ENGINE_ERROR),
        ("500 X", b'{"error":{"code":500,"message":"Context size has been exceeded."}}', Failure.ENGINE_ERROR),
        (
            "500 X",
            b'{"error":"an error was encountered while running the model: unexpected EOF"}',
            Failure.ENGINE_ERROR,
        ),
    ],
)
async def test_refusals_that_another_backend_may_not_share(
    rig: Rig, status: str, body: bytes, failure: Failure
) -> None:
    async def script(call: Call) -> None:
        call.write(sized(body, status))

    rig.engine.script = script
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is failure
    assert not rig.errors[0].committed
    assert rig.errors[0].detail == body.decode()
    assert rig.errors[0].error_body == body
    assert rig.first_bytes == 0


async def test_a_refusal_about_the_request_reaches_the_client_untouched(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b'{"error":"model not found"}', "404 Not Found", b"Content-Type: application/json\r\n"))

    rig.engine.script = script
    got = await rig.ask()
    assert got.status == 404
    assert got.body == b'{"error":"model not found"}'
    assert got.headers["content-type"] == "application/json"
    assert rig.results[0].status == 404
    assert rig.results[0].error_body == got.body


async def test_a_refusal_is_reworded_for_the_dialect(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(sized(b'{"error":{"message":"too long"}}', "400 Bad Request"))

    rig.engine.script = script
    rig.options["error_body"] = lambda status, body: (422, [("Content-Type", "x/y")], b"<" + body + b">")
    got = await rig.ask()
    assert got.status == 422
    assert got.body == b'<{"error":{"message":"too long"}}>'


@pytest.mark.parametrize(
    "first",
    [
        b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n',
        b'event: error\ndata: {"type":"error"}\n\n',
        b'{"error":"unexpected EOF"}\n',
    ],
)
@pytest.mark.parametrize("torn", [False, True])
async def test_a_stream_that_opens_with_an_error_may_go_elsewhere(rig: Rig, first: bytes, torn: bool) -> None:
    async def script(call: Call) -> None:
        if torn:
            for index in range(len(first)):
                call.write(CHUNKED_OK if index == 0 else b"", chunk(first[index : index + 1]))
                await call.writer.drain()
                await asyncio.sleep(0)
            call.write(LAST)
        else:
            call.write(CHUNKED_OK, chunk(first), LAST)

    rig.engine.script = script
    assert (await rig.ask()).status == 502
    assert rig.errors[0].failure is Failure.ENGINE_ERROR
    assert not rig.errors[0].committed
    assert "rror" in rig.errors[0].detail


@pytest.mark.parametrize("text", [b'error: {"a":1}\n', b"event: error\n", b'{"error":"x"}\n'])
async def test_text_that_looks_like_an_error_is_none_at_a_later_read(rig: Rig, text: bytes) -> None:
    read = asyncio.Event()

    class Held(Upper):
        def feed(self, data: bytes) -> bytes:
            read.set()
            return super().feed(data)

    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b"The log says: "))
        await read.wait()
        call.write(chunk(text), LAST)

    rig.engine.script = script
    rig.options["transform"] = lambda: Held(swallow=True)
    got = await rig.ask()
    assert (got.status, got.body) == (200, b"THE LOG SAYS: " + text.upper() + b".")


async def test_an_answer_that_opens_with_blanks_is_not_held_for_ever(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(b" " * (MAX_REFUSAL_BYTES + 1)))
        await call.gone()

    rig.engine.script = script
    client = await rig.connect()
    client.post()
    await until(lambda: rig.first_bytes, "the first byte to pass")


async def test_an_engine_that_never_answers(rig: Rig) -> None:
    rig.options["stall_timeout_s"] = 0.05
    assert (await rig.ask()).body == b"timeout"
    await until(lambda: rig.engine.open == 0, "the connection to close")


async def test_an_engine_that_stops_in_mid_stream(rig: Rig) -> None:
    async def script(call: Call) -> None:
        call.write(CHUNKED_OK, chunk(LINES[0]))
        await call.gone()

    rig.engine.script = script
    rig.options["stall_timeout_s"] = 0.05
    got = await rig.ask()
    assert not got.complete
    assert rig.errors[0].failure is Failure.TIMEOUT
    assert rig.errors[0].committed
