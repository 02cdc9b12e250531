"""One pipelined connection: order, batches, deadlines, breaks."""

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from proxy.store.trouble import StoreSlow
from proxy.store.wire import Wire, WireBroken
from tests.proxy.store.lossy_socket import LossySocket
from tests.proxy.store.store_process import StoreProcess
from tests.wait import until


async def opened(url: str, broken: list[Exception], call_timeout_s: float = 5.0) -> Wire:
    wire = Wire(url, call_timeout_s=call_timeout_s, on_broken=broken.append)
    await wire.open()
    return wire


async def test_answers_come_in_the_order_of_calls_and_turns_share_a_write(own_process: StoreProcess) -> None:
    wire = await opened(own_process.url, [])

    first = [wire.call(("ECHO", str(i))) for i in range(100)]
    assert await asyncio.gather(*first) == [str(i).encode() for i in range(100)]
    assert wire.writes == 1
    assert await wire.call(("ECHO", "more")) == b"more"
    assert wire.writes == 2
    await wire.close()


async def test_an_error_belongs_to_its_call_alone(own_process: StoreProcess) -> None:
    wire = await opened(own_process.url, [])

    good, bad, last = wire.call(("ECHO", "1")), wire.call(("NONSENSE",)), wire.call(("ECHO", "2"))

    assert await good == b"1"
    with pytest.raises(ResponseError, match="unknown command"):
        await bad
    assert await last == b"2"
    await wire.close()


async def test_a_cancelled_call_disturbs_no_other(own_process: StoreProcess) -> None:
    wire = await opened(own_process.url, [])
    cancelled, other = wire.call(("ECHO", "1")), wire.call(("ECHO", "2"))
    cancelled.cancel()

    assert await other == b"2"
    await wire.close()


async def test_a_late_answer_breaks_the_connection_once(own_process: StoreProcess) -> None:
    broken: list[Exception] = []
    wire = await opened(own_process.url, broken, call_timeout_s=0.05)
    own_process.stall()

    results = await asyncio.gather(wire.call(("PING",)), wire.call(("PING",)), return_exceptions=True)

    assert [type(result) for result in results] == [WireBroken, WireBroken]
    assert [type(error) for error in broken] == [StoreSlow]
    with pytest.raises(WireBroken, match=r"no answer within 0\.05 s"):
        await wire.call(("PING",))
    await wire.close()


async def test_a_cut_connection_fails_what_waits_and_tells(own_process: StoreProcess, short_dir: Path) -> None:
    broken: list[Exception] = []
    async with LossySocket(own_process.url, short_dir) as lossy:
        wire = await opened(lossy.url, broken)
        lossy.hold_answers = True
        waiting = wire.call(("PING",))
        await until(lambda: lossy.forwarded, "the call is out")
        lossy.cut()

        with pytest.raises(WireBroken):
            await waiting
        assert len(broken) == 1
        await wire.close()


async def test_closing_fails_what_waits_without_telling(own_process: StoreProcess) -> None:
    broken: list[Exception] = []
    wire = await opened(own_process.url, broken)
    own_process.stall()
    waiting = wire.call(("PING",))
    await wire.close()
    own_process.go_on()

    with pytest.raises(WireBroken, match="closed by us"):
        await waiting
    assert broken == []


async def test_nobody_there_is_an_error_of_open(short_dir: Path) -> None:
    wire = Wire(f"unix://{short_dir}/none.sock", call_timeout_s=1, on_broken=lambda _: None)

    with pytest.raises(Exception, match=r"none\.sock"):
        await wire.open()
    await wire.close()
