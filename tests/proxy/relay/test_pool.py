import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.endpoint import Endpoint
from proxy.relay import AttemptError, ConnectionPool
from proxy.relay.connection import EngineConnection
from scheduler.domain import Failure
from tests.proxy.relay.rig import Call, Rig, ScriptedEngine, sized
from tests.wait import until


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async def script(call: Call) -> None:
        call.write(sized(b""))

    engine = ScriptedEngine(script)
    await engine.start()
    yield engine
    await engine.stop()


async def opened(pool: ConnectionPool, count: int) -> list[EngineConnection]:
    connections = [await pool.open() for _ in range(count)]
    for connection in connections:
        pool.lend(connection, 10)
    return connections


async def test_the_last_used_connection_is_taken_first(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint)
    first, second, third = await opened(pool, 3)
    for connection in (second, third, first):
        pool.give(connection)
    assert [pool.take(), pool.take(), pool.take(), pool.take()] == [first, third, second, None]
    pool.close()


async def test_a_connection_expires_before_the_engine_closes_it(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint, idle_expiry_s=0.05, sweep_interval_s=0.01)
    (connection,) = await opened(pool, 1)
    pool.give(connection)
    await until(lambda: pool.idle == 0, "the idle connection to be closed")
    await until(lambda: engine.open == 0, "the engine to see it")
    assert pool.take() is None


async def test_an_expired_connection_is_not_taken_even_between_two_sweeps(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint, idle_expiry_s=4.0, sweep_interval_s=1000)
    (connection,) = await opened(pool, 1)
    pool.give(connection)
    connection.idle_since_s -= 4.0
    assert pool.take() is None
    pool.close()


async def test_a_connection_that_the_engine_closed_is_forgotten(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint)
    (connection,) = await opened(pool, 1)
    pool.give(connection)
    await engine.stop()
    await until(lambda: pool.idle == 0, "the pool to notice")
    pool.close()


async def test_no_more_idle_connections_are_kept_than_asked(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint, max_idle=2)
    for connection in await opened(pool, 3):
        pool.give(connection)
    assert pool.idle == 2
    pool.close()


async def test_closing_leaves_no_connection(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint)
    idle, running = await opened(pool, 2)
    pool.give(idle)
    pool.close()
    pool.give(running)
    assert (pool.idle, pool.active, pool.take()) == (0, 0, None)
    await until(lambda: engine.open == 0, "the engine to see both close")


async def test_a_connection_opened_while_the_pool_closed_is_not_lent(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint)
    opening = asyncio.ensure_future(pool.open())
    await asyncio.sleep(0)  # it has begun to connect
    pool.close()
    with pytest.raises(AttemptError) as caught:
        await opening
    assert caught.value.failure is Failure.CONNECT
    await until(lambda: engine.connections == 1 and engine.open == 0, "the engine to see it close")


async def test_the_timer_rests_when_there_is_nothing_to_watch(engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint, idle_expiry_s=0.02, sweep_interval_s=0.01)
    (connection,) = await opened(pool, 1)
    pool.give(connection)
    await until(lambda: pool.idle == 0 and pool._timer is None, "the timer to stop")


async def test_refused_and_missing_endpoints_are_connect_failures() -> None:
    for endpoint in (
        Endpoint(host="a", address="127.0.0.1", port=1),
        Endpoint(host="a", unix_path="/nonexistent/socket"),
    ):
        with pytest.raises(AttemptError) as caught:
            await ConnectionPool(endpoint).open()
        assert caught.value.failure is Failure.CONNECT
        assert caught.value.detail


async def test_a_connect_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine) -> None:
    pool = ConnectionPool(engine.endpoint, connect_timeout_s=0.01)

    class Loop:
        async def create_connection(self, *_: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(pool, "_loop", Loop())
    with pytest.raises(AttemptError, match=r"within 0\.01 s"):
        await pool.open()


async def test_closing_fails_what_runs(rig: Rig) -> None:
    client = await rig.connect()
    client.post()
    await until(lambda: rig.engine.calls, "the request to arrive")
    rig.pool.close()
    assert (await client.answer()).body == b"reset"
    with pytest.raises(AttemptError):
        await rig.pool.open()
